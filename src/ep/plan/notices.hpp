// SPDX-License-Identifier: Apache-2.0
// notices.hpp: values with the same meaning in the notices of all backends.
#pragma once

#include <cstdint>

namespace shoal::ep::detail {

/// In place of an offset: the rank has no room, or no such array.
constexpr std::uint64_t kNoRoom = ~std::uint64_t{0};

/// Distinguishes a dispatch from a combine with the same epoch.
enum class Operation : std::uint64_t { dispatch = 1, combine = 2 };

/// The combine rows that one rank provides to another in low-latency mode: a weighted sum over its
/// experts per token, in bfloat16; a row per expert in bfloat16; a row per expert in LogFMT-10.
enum class CombineRowForm : std::uint32_t { sums, rows, log_fmt };

}  // namespace shoal::ep::detail
