// SPDX-License-Identifier: Apache-2.0
// trial.hpp: the first operations over a network that has connected, before any pair relies on it.
//
// A handshake shows that the requests of a network come through. The trial shows that the
// operations made of them do: put, signal, get and atomic, with their effects. Where the network
// accesses heaps in GPU memory, the trial puts to these and gets from them as well.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "pe/control.hpp"
#include "transport/transport.hpp"

namespace shoal::detail {

/// Content of the trial area of a PE (ControlLayout::trial) on another PE.
struct TrialArea {
  std::uint64_t flag = 0;  ///< set by a signal, then raised by an atomic
  std::uint64_t word = 0;  ///< put by itself
  std::array<std::uint64_t, 48> block{};
};
static_assert(sizeof(TrialArea) <= ControlLayout::kTrialBytes);

/// The local memory of a trial. A network that fails may write to it until it is gone.
struct TrialMemory {
  explicit TrialMemory(std::size_t n_pes) : sent(n_pes), received(n_pes), from_heap(n_pes) {}
  std::vector<TrialArea> sent, received;
  std::vector<decltype(TrialArea::block)> from_heap;
};

/// Tries the operations on `pes` at once, in two round trips for segments and two for heaps. Heaps
/// must not be in use. Returns by element why that PE failed; empty: everything works. Ends within
/// `limit`. `round`: counts the networks that are tried. `area`: offset of this PE's trial area.
std::vector<std::string> try_operations(transport::Transport& network, Pe my_pe, std::uint8_t round,
                                        std::span<const Pe> pes, std::size_t area,
                                        std::chrono::milliseconds limit, TrialMemory& memory);

}  // namespace shoal::detail
