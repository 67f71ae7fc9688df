// SPDX-License-Identifier: Apache-2.0
// reduce_plan.hpp: the division of a reduction among the PEs of a team. Pure functions of its
// shape, the same on every PE.
#pragma once

#include <algorithm>
#include <cstddef>

#include "base/align.hpp"

namespace shoal::collective {

/// A range of elements.
struct Range {
  std::size_t begin = 0;
  std::size_t count = 0;
};

/// Up to this many bytes read per PE, every PE reduces all elements: reading n times as much costs
/// less than the second round of waiting that a division needs.
inline constexpr std::size_t kUndividedBytes = 32 << 10;

/// True if each PE reduces its own block, which the other PEs then collect.
constexpr bool divides_reduction(std::size_t count, std::size_t element_bytes, std::size_t n_pes) {
  return n_pes > 1 && count > kUndividedBytes / element_bytes / n_pes;
}

/// The same where PEs deliver elements to each other's scratch memory of `room` bytes per PE. Two
/// PEs send each other as many bytes either way; longer reductions take longer than the second
/// round of waiting.
inline constexpr std::size_t kUndividedPairBytes = 128 << 10;
constexpr bool divides_delivered_reduction(std::size_t count, std::size_t element_bytes,
                                           std::size_t n_pes, std::size_t room) {
  const bool pair_fits = n_pes == 2 && count <= std::min(room, kUndividedPairBytes) / element_bytes;
  return divides_reduction(count, element_bytes, n_pes) && !pair_fits;
}

/// The block of `count` elements that `pe` reduces. Blocks are equal and a multiple of 64 bytes, so
/// that no two PEs write to the same cache line of an aligned target; the last ones may be shorter
/// or empty.
constexpr Range reduction_block(std::size_t count, std::size_t element_bytes, std::size_t n_pes,
                                std::size_t pe) {
  const std::size_t line = 64 / element_bytes;
  const std::size_t share = count / n_pes + (count % n_pes != 0);
  const std::size_t block = align_up(share, line);
  const std::size_t begin = std::min(count, pe * block);
  return {begin, std::min(block, count - begin)};
}

/// Elements that PEs deliver at a time: all, or where their scratch memory has too little room per
/// PE, pieces whose blocks have kPieceBlockBytes. 0: it has no room for those either.
inline constexpr std::size_t kPieceBlockBytes = 256 << 10;
constexpr std::size_t delivered_piece(std::size_t count, std::size_t element_bytes,
                                      std::size_t n_pes, std::size_t room) {
  const std::size_t longest = divides_delivered_reduction(count, element_bytes, n_pes, room)
                                  ? reduction_block(count, element_bytes, n_pes, 0).count
                                  : count;
  if (longest <= room / element_bytes) return count;
  return room < kPieceBlockBytes ? 0 : kPieceBlockBytes / element_bytes * n_pes;
}

}  // namespace shoal::collective
