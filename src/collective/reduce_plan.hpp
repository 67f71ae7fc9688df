// SPDX-License-Identifier: Apache-2.0
// reduce_plan.hpp: how a reduction is divided among the members. Pure functions of its shape, the
// same on every member.
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

/// Up to this many bytes read per member, every member reduces everything: reading n times as much
/// costs less than the second round of waiting that dividing the work needs.
inline constexpr std::size_t kUndividedBytes = 32 << 10;

/// Whether each member reduces a block of its own, which the others then collect.
constexpr bool divides_reduction(std::size_t count, std::size_t element_bytes,
                                 std::size_t members) {
  return members > 1 && count > kUndividedBytes / element_bytes / members;
}

/// The block of `count` elements that `member` reduces. Blocks are equal and a multiple of 64
/// bytes, so that no two members write to the same cache line of an aligned target; the last ones
/// may be shorter or empty.
constexpr Range reduction_block(std::size_t count, std::size_t element_bytes, std::size_t members,
                                std::size_t member) {
  const std::size_t line = 64 / element_bytes;
  const std::size_t share = count / members + (count % members != 0);
  const std::size_t block = align_up(share, line);
  const std::size_t begin = std::min(count, member * block);
  return {begin, std::min(block, count - begin)};
}

}  // namespace shoal::collective
