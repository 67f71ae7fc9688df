// SPDX-License-Identifier: Apache-2.0
// puller.hpp: reads from the heaps of the PEs of a team.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "fabric/fabric.hpp"
#include "pe/memory.hpp"
#include "team/team_state.hpp"
#include "world/state.hpp"

namespace shoal::collective {

/// True if the PEs of the team deliver their data rather than pull it: loads do not reach the heaps
/// of all PEs, which are on the host. The same on all PEs of the team.
bool delivers(const detail::TeamState& team);

/// Reads a heap directly where loads and stores reach it, else by non-blocking gets, which finish()
/// completes. The host cannot read heaps in GPU memory directly. `pe` is the index in the team.
class Puller {
 public:
  explicit Puller(detail::TeamState& team) : team_(team) {}
  ~Puller();
  Puller(const Puller&) = delete;
  Puller& operator=(const Puller&) = delete;

  /// Copies `bytes` bytes at `offset` of the heap of `pe` to `target`; complete after finish(). The
  /// source may be the target.
  void pull(void* target, std::size_t pe, std::size_t offset, std::size_t bytes);
  /// The address at which those bytes can be read after finish(): in place, or `scratch`, which
  /// must have room for them.
  const void* view(std::size_t pe, std::size_t offset, std::size_t bytes, void* scratch);
  /// Memory for view(), valid as long as this object. Gets that were not completed may still write
  /// to it: the world then keeps it until it ends.
  std::byte* scratch(std::size_t bytes);
  bool reaches(std::size_t pe) const { return base(pe) != nullptr; }
  /// Completes the gets in flight.
  void finish();

 private:
  const std::byte* base(std::size_t pe) const {
    return team_.world->memory().cuda() == nullptr ? team_.world->fabric().peer_base(team_.pes[pe])
                                                   : nullptr;
  }

  detail::TeamState& team_;
  std::shared_ptr<std::vector<std::byte>> scratch_;
  bool pending_ = false;
};

}  // namespace shoal::collective
