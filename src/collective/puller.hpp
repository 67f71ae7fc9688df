// SPDX-License-Identifier: Apache-2.0
// puller.hpp: reads from the heaps of a team's members, by the best means that each of them allows.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "world/state.hpp"

namespace shoal::collective {

/// Members whose heap loads and stores reach are read directly; the others by non-blocking gets,
/// which finish() completes. Heaps in GPU memory are never read directly: the host cannot.
class Puller {
 public:
  explicit Puller(detail::TeamState& team) : team_(team) {}
  ~Puller();
  Puller(const Puller&) = delete;
  Puller& operator=(const Puller&) = delete;

  /// Copies `bytes` bytes at `offset` of `member`'s heap to `target`, complete after finish().
  /// Copying a place onto itself is allowed.
  void pull(void* target, std::size_t member, std::size_t offset, std::size_t bytes);
  /// Where those bytes can be read here after finish(): in place, or in `scratch`, which has room
  /// for them.
  const void* view(std::size_t member, std::size_t offset, std::size_t bytes, void* scratch);
  /// Room for view(), as long as this object exists. Where gets could not be completed they may
  /// still write to it: then the world keeps it until it ends.
  std::byte* scratch(std::size_t bytes);
  bool reaches(std::size_t member) const { return base(member) != nullptr; }
  /// Completes the gets under way.
  void finish();

 private:
  const std::byte* base(std::size_t member) const {
    return team_.world->cuda() == nullptr ? team_.world->peer_base(team_.members[member]) : nullptr;
  }

  detail::TeamState& team_;
  std::shared_ptr<std::vector<std::byte>> scratch_;
  bool pending_ = false;
};

}  // namespace shoal::collective
