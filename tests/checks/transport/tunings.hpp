// SPDX-License-Identifier: Apache-2.0
// tunings.hpp: checks of a network transport between two PEs, for any SHOAL_NETWORK_DEPTH,
// SHOAL_NETWORK_CHUNK and SHOAL_PROGRESS_WAIT.
#pragma once

#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string>

#include <gtest/gtest.h>

#include "shoal/settings.hpp"
#include "shoal/world.hpp"

namespace shoal::test {

struct Tuning {
  const char* name;
  std::int64_t depth;
  std::size_t chunk;
  const char* wait = "yield";
};

/// The tunings that every network transport is tested with.
inline constexpr Tuning kTunings[] = {
    {"default", 256, 1 << 20},
    {"depth_1", 1, 1 << 20},
    {"small_chunk", 4, 4096},
    {"sleep", 256, 1 << 20, "sleep"},
};
inline void PrintTo(const Tuning& tuning, std::ostream* out) {
  *out << tuning.name;
}

Settings tuned(Settings settings, const Tuning& tuning);

/// Sizes around the chunk, odd addresses, one and many requests in flight.
void check_chunks(World& world, std::size_t chunk);
/// Thousands of requests at once: never more in flight than the depth.
void check_many_requests(World& world, std::int64_t depth_setting);
/// A PE that sees the signal sees the data, for any size, and for blocking and nbi puts.
void check_signals_after_data(World& world, int times);
/// A fence orders two puts to different places for a PE that polls without a signal, whatever the
/// order in which the network writes.
void check_fence_between_puts(World& world);

}  // namespace shoal::test
