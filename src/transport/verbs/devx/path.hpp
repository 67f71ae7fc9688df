// SPDX-License-Identifier: Apache-2.0
// path.hpp: the address path of a queue pair, which INIT2RTR_QP takes.
//
// InfiniBand routes by LID. RoCE routes by GID; the command also needs the MAC address of the next
// hop, which libibverbs would resolve in a change of state. Here an address handle shows it.
#pragma once

#include <cstdint>
#include <string>

#include "transport/verbs/devx/library.hpp"
#include "transport/verbs/port/port.hpp"

namespace shoal::transport::verbs::devx {

/// Writes `path` to the context of a queue pair at `at`. Returns why it cannot, or "": on RoCE, no
/// route or no reply from the peer's host.
std::string set_path(std::byte* at, const Library& library, const Port& port, ibv_ah_attr& path,
                     std::uint16_t udp_source);

/// UDP source port of RoCE v2 between two queue pairs, 49152 to 65535: switches choose one of
/// several paths by it.
constexpr std::uint16_t udp_source_port(std::uint32_t queue_pair, std::uint32_t remote) {
  const std::uint32_t mixed = (queue_pair * 0x9e37'79b1U) ^ (remote * 0x85eb'ca77U);
  return static_cast<std::uint16_t>(0xc000 | mixed >> 18);
}

}  // namespace shoal::transport::verbs::devx
