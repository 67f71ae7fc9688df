// SPDX-License-Identifier: Apache-2.0
#include "ep/host/signals/reach.hpp"

#include <atomic>
#include <cstring>

#include "base/log.hpp"
#include "fabric/fabric.hpp"

namespace shoal::ep::host {
namespace {

transport::Transport& route_to(const HostGroup& group, std::int32_t to) {
  return group.state.world->fabric().route(group.state.team.world_pe(to));
}

}  // namespace

void put(const HostGroup& group, std::int32_t to, std::size_t offset, const void* source,
         std::size_t bytes) {
  if (group.state.peers[to] != nullptr)
    std::memcpy(group.state.peers[to] + offset, source, bytes);
  else
    route_to(group, to).put(group.state.team.world_pe(to), group.state.host_offset + offset, source,
                            bytes);
}

void put_remote(const HostGroup& group, std::int32_t to, std::size_t offset, const void* source,
                std::size_t bytes) {
  route_to(group, to).put_nbi(group.state.team.world_pe(to), group.state.host_offset + offset,
                              source, bytes);
}

void store_signal(const HostGroup& group, std::int32_t to, std::size_t offset,
                  std::uint64_t value) {
  if (group.state.peers[to] != nullptr)
    std::atomic_ref(*reinterpret_cast<std::uint64_t*>(group.state.peers[to] + offset))
        .store(value, std::memory_order_release);
  else
    route_to(group, to).signal(group.state.team.world_pe(to), group.state.host_offset + offset,
                               SignalOp::set, value);
}

void wake_for(const HostGroup& group, std::int32_t to, std::size_t offset) {
  if (group.state.peers[to] != nullptr)
    group.state.world->waits().notify(group.pes[to], group.state.host_offset + offset,
                                      sizeof(std::uint64_t));
}

void signal(const HostGroup& group, std::int32_t to, std::size_t offset, std::uint64_t value) {
  store_signal(group, to, offset, value);
  wake_for(group, to, offset);
}

void mask_unreachable(HostGroup& group, std::int32_t to) {
  try {
    throw;
  } catch (const Error& error) {
    if (!group.state.options.mask_failed ||
        (error.code() != Code::peer_failed && error.code() != Code::timeout))
      throw;
    group.out_of_reach[to] = 1;
    if (group.masked[to]) return;
    group.masked[to] = 1;
    log::warn("SHOAL-N561: PE {} cannot be reached and is masked from now on: {}",
              group.state.team.world_pe(to), error.what());
  }
}

}  // namespace shoal::ep::host
