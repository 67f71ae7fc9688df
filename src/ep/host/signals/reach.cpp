// SPDX-License-Identifier: Apache-2.0
#include "ep/host/signals/reach.hpp"

#include <atomic>
#include <cstring>

#include "base/log.hpp"

namespace shoal::ep::host {

void put(const GroupState& group, std::int32_t to, std::size_t offset, const void* source,
         std::size_t bytes) {
  if (group.peers[to] != nullptr)
    std::memcpy(group.peers[to] + offset, source, bytes);
  else
    group.world->host_put(group.team.world_pe(to), group.host_offset + offset, source, bytes);
}

void put_far(const GroupState& group, std::int32_t to, std::size_t offset, const void* source,
             std::size_t bytes) {
  group.world->host_put_nbi(group.team.world_pe(to), group.host_offset + offset, source, bytes);
}

void signal(const GroupState& group, std::int32_t to, std::size_t offset, std::uint64_t value) {
  if (group.peers[to] != nullptr)
    std::atomic_ref(*reinterpret_cast<std::uint64_t*>(group.peers[to] + offset))
        .store(value, std::memory_order_release);
  else
    group.world->host_signal(group.team.world_pe(to), group.host_offset + offset, SignalOp::set,
                             value);
}

void mask_unreachable(GroupState& group, std::int32_t to) {
  try {
    throw;
  } catch (const Error& error) {
    if (!group.options.mask_failed ||
        (error.code() != Code::peer_failed && error.code() != Code::timeout))
      throw;
    group.host->out_of_reach[to] = 1;
    if (group.host->masked[to]) return;
    group.host->masked[to] = 1;
    log::warn("PE {} cannot be reached and is masked from now on: {}", group.team.world_pe(to),
              error.what());
  }
}

}  // namespace shoal::ep::host
