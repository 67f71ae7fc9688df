// SPDX-License-Identifier: Apache-2.0
#include "heap/staging.hpp"

#include "base/check.hpp"
#include "team/outcome.hpp"

namespace shoal::detail {

std::size_t allocate_staging(WorldState& state, std::size_t bytes) {
  Memory& memory = state.memory();
  memory::Allocator& staging = memory.staging();
  const auto offset = staging.allocate(bytes, memory::Allocator::kMinimumAlignment);
  const auto failure = attempt([&] {
    require(
        offset.has_value(), Code::exhausted,
        "SHOAL-N786: staging has no room for {} bytes: {} of {} are free; SHOAL_STAGING_SIZE sets "
        "the size",
        bytes, staging.free(), staging.size());
  });
  try {
    agree_on_outcome(state, failure, "staging");
  } catch (...) {
    if (offset) staging.release(*offset);
    throw;
  }
  return memory.host_offset(*offset);
}

void release_staging(WorldState& state, std::size_t offset) {
  sync(state.teams().world_team(), "staging");
  state.memory().staging().release(offset - state.memory().layout().bytes());
}

}  // namespace shoal::detail
