// SPDX-License-Identifier: Apache-2.0
// reach.hpp: writing to another member's block, wherever it lies: a store on this node, the world's
// transports beyond.
//
// Offsets are those of GroupLayout. Between nodes a transport that finds the other end gone throws
// Error{peer_failed}.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "ep/host/group.hpp"
#include "transport/scoped_timeout.hpp"

namespace shoal::ep::host {

/// Copies `bytes` bytes to `offset` of member `to`'s block; the source may be reused when it
/// returns.
void put(const HostGroup& group, std::int32_t to, std::size_t offset, const void* source,
         std::size_t bytes);
/// The same to a member on another node, without waiting: the source stays in use until that member
/// has acknowledged.
void put_remote(const HostGroup& group, std::int32_t to, std::size_t offset, const void* source,
                std::size_t bytes);
/// Sets a 64-bit word of member `to`'s block after everything that this member has put there
/// before.
void signal(const HostGroup& group, std::int32_t to, std::size_t offset, std::uint64_t value);

/// Runs `tell`, which writes to member `to`. Where the group masks failed members one that cannot
/// be reached within the group's timeout is masked, and false is returned; one that is masked
/// already is not told again once that has failed.
template <typename Tell>
bool write_or_mask(HostGroup& group, std::int32_t to, Tell&& tell);

/// Masks a member that cannot be reached, with a warning, or rethrows where the group does not
/// mask. Called while the exception is handled.
void mask_unreachable(HostGroup& group, std::int32_t to);

template <typename Tell>
bool write_or_mask(HostGroup& group, std::int32_t to, Tell&& tell) {
  if (group.out_of_reach[to]) return false;
  try {
    // A network holds back what an unreachable member has not taken: for a masked one that is no
    // reason to wait.
    std::optional<transport::ScopedTimeout> patience;
    if (group.state.options.mask_failed && !group.state.nodes.here(to)) {
      patience.emplace(group.masked[to] ? std::chrono::milliseconds(0) : group.state.timeout);
      group.state.world->set_awaited(group.state.team.world_pe(to));
    }
    tell();
    return true;
  } catch (const Error&) {
    mask_unreachable(group, to);
    return false;
  }
}

}  // namespace shoal::ep::host
