// SPDX-License-Identifier: Apache-2.0
// notices.hpp: values with the same meaning in the notices of all backends.
#pragma once

#include <cstdint>

#include "shoal/config.hpp"

namespace shoal::ep::detail {

/// In place of an offset: the rank has no room, or no such array.
constexpr std::uint64_t kNoRoom = ~std::uint64_t{0};

/// Distinguishes a dispatch from a combine with the same epoch.
enum class Operation : std::uint64_t { dispatch = 1, combine = 2 };

/// The combine rows that one rank provides to another in low-latency mode: a weighted sum over its
/// experts per token, in bfloat16; a row per expert in bfloat16; a row per expert in LogFMT-10.
enum class CombineRowForm : std::uint32_t { sums, rows, log_fmt };

/// Value of the `failed` word that a rank which gives up the group writes at every rank: the rank
/// that it waited for; never 0. `gave_up`: that rank had given the group up before, so that the
/// cause is in its `failed` word. Otherwise that rank is the cause: it is late, for instance.
SHOAL_HOST_DEVICE constexpr std::uint64_t failed_word(std::int32_t rank, bool gave_up) {
  return (static_cast<std::uint64_t>(gave_up) << 32) | (static_cast<std::uint32_t>(rank) + 1);
}

/// The first cause of the failure of rank `by`, which has given the group up. `word(rank)` is the
/// `failed` word of a rank, or 0. Ends at a word that names no rank of the group.
template <typename Word>
std::int32_t first_cause(std::int32_t by, std::int32_t ranks, const Word& word) {
  std::int32_t cause = by;
  for (std::int32_t links = 0; links < ranks; ++links) {
    const std::uint64_t value = word(cause);
    const auto named = static_cast<std::uint32_t>(value);
    if (named == 0 || named > static_cast<std::uint32_t>(ranks)) break;
    cause = static_cast<std::int32_t>(named - 1);
    if (value >> 32 == 0) break;
  }
  return cause;
}

}  // namespace shoal::ep::detail
