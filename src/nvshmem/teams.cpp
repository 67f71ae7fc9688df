// SPDX-License-Identifier: Apache-2.0
#include "nvshmem/teams.hpp"

#include <cstring>
#include <utility>

#include "base/check.hpp"
#include "nvshmem.h"
#include "nvshmem/device_state.hpp"
#include "pe/memory.hpp"
#include "shoal/collective.hpp"
#include "team/team_state.hpp"
#include "world/state.hpp"

namespace shoal::nvshmem {
namespace {

constexpr std::size_t kPredefined = NVSHMEMX_TEAM_GPU_LEADERS + 1;

}  // namespace

std::size_t Teams::capacity(const World& world) {
  return kPredefined + static_cast<std::size_t>(world.settings().max_teams);
}

Teams::Teams(const World& world, DeviceTeams* device) : device_(device), slots_(capacity(world)) {
  put(NVSHMEM_TEAM_WORLD, world.team(), 0);
  put(NVSHMEM_TEAM_SHARED, world.shared_team(), 0);
  put(NVSHMEMX_TEAM_NODE, world.node_team(), 0);
  put(NVSHMEMX_TEAM_SAME_MYPE_NODE, world.same_index_team(), 0);
  make_gpu_teams(world);
}

void Teams::make_gpu_teams(const World& world) {
  const auto& devices = state_of(world).memory().devices();
  const auto n = static_cast<std::size_t>(world.n_pes());
  const auto me = static_cast<std::size_t>(world.my_pe());
  // The first PE on the GPU of each.
  std::vector<std::size_t> first(n);
  bool shared = false;
  for (std::size_t pe = 0; pe < n; ++pe) {
    first[pe] = pe;
    for (std::size_t other = 0; other < pe && first[pe] == pe && !devices.empty(); ++other)
      if (devices[other].uuid == devices[pe].uuid) first[pe] = other;
    shared |= first[pe] != pe;
  }
  if (!shared) {
    put(NVSHMEMX_TEAM_SAME_GPU, world.self_team(), 0);
    put(NVSHMEMX_TEAM_GPU_LEADERS, world.team(), 0);
    return;
  }
  struct Ids {
    std::uint64_t same_gpu, leaders;
  };
  const Ids mine{world.make_team_id(), world.make_team_id()};
  const auto bytes = exchange_bytes(world.team(), std::as_bytes(std::span(&mine, 1)));
  std::vector<Ids> ids(n);
  std::memcpy(ids.data(), bytes.data(), bytes.size());
  Pe size = 0, index = 0, leaders = 0, leader = 0;
  for (std::size_t pe = 0; pe < n; ++pe) {
    if (first[pe] == first[me]) {
      if (pe < me) ++index;
      ++size;
    }
    if (first[pe] == pe) {
      if (pe < me) ++leader;
      ++leaders;
    }
  }
  put(NVSHMEMX_TEAM_SAME_GPU, world.make_team(ids[first[me]].same_gpu, size, index), 0);
  if (first[me] == me)
    put(NVSHMEMX_TEAM_GPU_LEADERS, world.make_team(ids[0].leaders, leaders, leader), 0);
}

void Teams::put(Id id, Team team, int contexts) {
  if (device_ != nullptr) device_->set(id, team);
  slots_[static_cast<std::size_t>(id)] = {std::move(team), contexts};
}

bool Teams::has(Id id) const {
  const std::lock_guard lock(mutex_);
  return id >= 0 && static_cast<std::size_t>(id) < slots_.size() &&
         slots_[static_cast<std::size_t>(id)].team.valid();
}

Team Teams::at(Id id) const {
  require(
      has(id), Code::invalid_argument,
      "SHOAL-N865: team is {}; allowed: a predefined team or one that a split made, on its own PEs",
      id);
  const std::lock_guard lock(mutex_);
  return slots_[static_cast<std::size_t>(id)].team;
}

int Teams::contexts(Id id) const {
  const std::lock_guard lock(mutex_);
  return slots_[static_cast<std::size_t>(id)].contexts;
}

Teams::Id Teams::add(Team team, int contexts) {
  if (!team.valid()) return NVSHMEM_TEAM_INVALID;
  const std::lock_guard lock(mutex_);
  for (std::size_t i = kPredefined; i < slots_.size(); ++i) {
    if (slots_[i].team.valid()) continue;
    put(static_cast<Id>(i), std::move(team), contexts);
    return static_cast<Id>(i);
  }
  fail(Code::exhausted, "SHOAL-N866: all {} teams are in use; Setting: SHOAL_MAX_TEAMS",
       slots_.size() - kPredefined);
}

void Teams::destroy(Id id) {
  require(id >= static_cast<Id>(kPredefined), Code::invalid_argument,
          "SHOAL-N867: team is {}, a predefined one; allowed: teams that a split made", id);
  at(id).free();
  const std::lock_guard lock(mutex_);
  if (device_ != nullptr) device_->clear(id);
  slots_[static_cast<std::size_t>(id)] = {};
}

}  // namespace shoal::nvshmem
