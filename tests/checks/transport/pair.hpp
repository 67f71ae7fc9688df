// SPDX-License-Identifier: Apache-2.0
// pair.hpp: checks of a network transport between two PEs that are threads, without a world.
//
//   run_pair(module.make, settings, settings, check_signals_follow_data);
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "shoal/settings.hpp"
#include "transport/transport.hpp"

namespace shoal::test {

inline constexpr std::size_t kPairSegmentBytes = std::size_t{1} << 20;

/// One of the two PEs. The last words of the segments are used by meet().
struct Pair {
  Pe pe;
  Pe other;
  transport::Transport& transport;
  std::byte* local;   ///< this PE's segment
  std::byte* remote;  ///< the other PE's, to look at what must have arrived

  std::atomic_ref<std::uint64_t> word(std::size_t offset) const {
    return std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(local + offset));
  }
  /// Waits until the local word is at least `value`; false after 20 s.
  bool wait_for(std::size_t offset, std::uint64_t value) const;
  /// Returns when the other PE has called it as often.
  void meet();

  std::uint64_t meetings = 0;
};

/// Connects two PEs and runs `body` on both. `settings`: of PE 0 and PE 1. `nics`: of both.
void run_pair(transport::Factory make, const Settings& first, const Settings& second,
              const std::function<void(Pair&)>& body, std::vector<std::string> nics = {});
/// Two PEs that do not fit together; `look` sees the reason of each.
void run_unconnected_pair(transport::Factory make, const Settings& first, const Settings& second,
                          const std::function<void(const std::string&)>& look);

/// Settings with this SHOAL_NETWORK_DEPTH and SHOAL_NETWORK_CHUNK.
Settings pair_settings(std::int64_t depth, std::size_t chunk);

// Puts of many lengths, with signals and fences; each needs a network of at most this adversity:
// messages overtake each other, RMA is incomplete until the transport waits for it.
void check_signals_follow_data(Pair& pair);
void check_fences_order_puts(Pair& pair);
void check_quiet_completes_everything(Pair& pair);
void check_atomics_and_signals_are_applied_once_in_order(Pair& pair);

}  // namespace shoal::test
