// SPDX-License-Identifier: Apache-2.0
// reach.hpp: writes to another rank's block: a store on this node, the world's transports beyond.
//
// Offsets are those of GroupLayout. Between nodes, a transport that finds the other end gone throws
// Error{peer_failed}.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "ep/host/group/group.hpp"
#include "transport/scoped_timeout.hpp"

namespace shoal::ep::host {

/// Copies `bytes` bytes to `offset` of the block of `to`. The source may be reused on return.
void put(const HostGroup& group, std::int32_t to, std::size_t offset, const void* source,
         std::size_t bytes);
/// The same to a rank on another node, without waiting. The source stays in use until that rank has
/// acknowledged.
void put_remote(const HostGroup& group, std::int32_t to, std::size_t offset, const void* source,
                std::size_t bytes);
/// Sets a 64-bit word of the block of `to`, after everything that this rank has put there before.
void signal(const HostGroup& group, std::int32_t to, std::size_t offset, std::uint64_t value);
/// The two halves of signal: the first wakes no rank on this node.
void store_signal(const HostGroup& group, std::int32_t to, std::size_t offset, std::uint64_t value);
void wake_for(const HostGroup& group, std::int32_t to, std::size_t offset);

/// Runs `write`, which writes to `to`. If the group masks failed ranks, masks a rank that cannot be
/// reached within the group's timeout and returns false. Skips a masked rank after its first
/// failure.
template <typename Write>
bool write_or_mask(HostGroup& group, std::int32_t to, Write&& write);

/// Masks an unreachable rank, with a warning, or rethrows if the group does not mask failed ranks.
/// Called while the exception is handled.
void mask_unreachable(HostGroup& group, std::int32_t to);

template <typename Write>
bool write_or_mask(HostGroup& group, std::int32_t to, Write&& write) {
  if (group.out_of_reach[to]) return false;
  try {
    // A network retains what an unreachable rank has not taken. A masked rank is not worth the
    // wait.
    std::optional<transport::ScopedTimeout> bound;
    if (group.state.options.mask_failed && !group.state.nodes.here(to)) {
      bound.emplace(group.masked[to] ? std::chrono::milliseconds(0) : group.state.timeout);
      group.state.world->progress().set_awaited(group.state.team.world_pe(to));
    }
    write();
    return true;
  } catch (const Error&) {
    mask_unreachable(group, to);
    return false;
  }
}

}  // namespace shoal::ep::host
