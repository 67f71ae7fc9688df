// SPDX-License-Identifier: Apache-2.0
// worlds.hpp: checks of worlds whose PEs reach each other over a network.
#pragma once

#include <cstdint>
#include <string_view>

#include "shoal/world.hpp"

namespace shoal::test {

/// `transport` alone reaches all other PEs, and check_everything holds over it.
void check_operations_over(World& world, std::string_view transport);
/// Long transfers in both directions at once, cut at chunks, at odd offsets. Two PEs or more.
void check_long_transfers(World& world);
/// A PE that sees the signal sees the data, for lengths on both sides of the longest message.
void check_data_before_signals(World& world);
void check_data_before_signals_for(World& world, std::uint64_t rounds);
/// check_fence with fewer rounds.
void check_fence_for(World& world, std::uint64_t rounds);
/// All PEs update the same words of PE 1, some through shared memory and some over the network.
void check_mixed_atomics(World& world);
void check_mixed_atomics_for(World& world, std::uint64_t times);
/// For worlds of 4 PEs, two of which each share memory and reach the others by the network.
Settings next_to_shared_memory(Settings settings);
/// Such a world updates words together and runs collectives.
void check_next_to_shared_memory(const Settings& settings, const std::string& transport);
/// A PE that polls a word never sees half of a put. Two PEs.
void check_words_are_whole(World& world);
void check_words_are_whole_for(World& world, std::uint64_t puts);
/// Threads of a PE that call at once share its network. Two PEs.
void check_threads_of_a_pe(World& world);

}  // namespace shoal::test
