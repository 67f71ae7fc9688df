// SPDX-License-Identifier: Apache-2.0
// plan.hpp: which algorithm a reduction takes and which part of it each PE reduces. Pure functions,
// the same on every PE.
#pragma once

#include <cstddef>
#include <cstdint>

#include <shoal/config.hpp>

namespace shoal::device::detail {

/// Algorithm of a reduction.
enum class Reduction : std::uint8_t {
  packets,   ///< every PE sends its elements to all, with the epoch in each word
  one_shot,  ///< every PE reads and reduces all elements, between two barriers
  two_shot,  ///< every PE reduces its share and writes it to all, between two barriers
};

/// Input of the choice: `bytes` of the elements of a PE, and the limits of the team.
struct ReductionShape {
  std::uint64_t bytes = 0;
  std::int32_t pes = 0;
  bool in_place = false;
  std::uint64_t packet_limit = 0;    ///< bytes; 0: no packets
  std::uint64_t one_shot_limit = 0;  ///< bytes that a PE reads from others
};

/// In place, a PE must not overwrite what others may still read, so one shot is not possible.
SHOAL_HOST_DEVICE constexpr Reduction choose_reduction(const ReductionShape& shape) {
  if (shape.bytes <= shape.packet_limit) return Reduction::packets;
  const auto others = static_cast<std::uint64_t>(shape.pes - 1);
  const bool one_shot =
      !shape.in_place && (others == 0 || shape.bytes <= shape.one_shot_limit / others);
  return one_shot ? Reduction::one_shot : Reduction::two_shot;
}

/// Elements [begin, begin + count).
struct Share {
  std::uint64_t begin = 0;
  std::uint64_t count = 0;
};

/// The share of `count` elements that `pe` of `pes` reduces: equal multiples of 64 bytes, so that
/// no two PEs write to one cache line of an aligned target; the last ones may be shorter or empty.
SHOAL_HOST_DEVICE constexpr Share share_of(std::uint64_t count, std::uint64_t element_bytes,
                                           std::int32_t pes, std::int32_t pe) {
  if (count == 0) return {};
  const std::uint64_t line = 64 / element_bytes;
  const std::uint64_t each = count / static_cast<std::uint64_t>(pes) +
                             (count % static_cast<std::uint64_t>(pes) != 0 ? 1 : 0);
  const std::uint64_t share = (each / line + (each % line != 0 ? 1 : 0)) * line;
  // No product that overflows: share is at most count rounded up to a line.
  if (static_cast<std::uint64_t>(pe) > count / share) return {count, 0};
  const std::uint64_t begin = static_cast<std::uint64_t>(pe) * share;
  if (begin >= count) return {count, 0};
  return {begin, count - begin < share ? count - begin : share};
}

}  // namespace shoal::device::detail
