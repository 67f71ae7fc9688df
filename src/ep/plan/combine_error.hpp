// SPDX-License-Identifier: Apache-2.0
// combine_error.hpp: how far a combined bfloat16 value may be from the exact weighted sum. Pure.
//
// Sums are float32. Each level rounds its sums to bfloat16 once:
//
//   level   what is rounded                     when
//   expert  the output of each expert           low latency; normal mode with one row per expert
//                                               (CombineOptions::topk_rows)
//   rank    the sum over the experts of a rank  normal mode; low latency with Reduction::per_rank
//   node    the sum over the ranks of a node    normal mode on several nodes of several ranks
//   result  the sum of all                      always
//
// A rounding changes a value by at most kBf16Rounding of its magnitude. The values of one level are
// together at most the sum of the magnitudes of all terms, so a level below the result adds at most
// kBf16Rounding of that sum, and the result kBf16Rounding of its own magnitude.
#pragma once

#include <cmath>
#include <cstdint>

#include "shoal/ep/low_latency.hpp"

namespace shoal::ep::detail {

/// Largest relative error of a rounding to bfloat16, and to normal numbers of e4m3.
inline constexpr double kBf16Rounding = 0x1p-8, kE4m3Rounding = 0x1p-4;

/// Levels below the result in normal mode, of a group of `ranks` ranks on `nodes` nodes. A node of
/// one rank returns its row unchanged.
constexpr int normal_mode_levels(std::int64_t ranks, std::int64_t nodes,
                                 bool row_per_expert = false) {
  return 1 + (row_per_expert ? 1 : 0) + (nodes > 1 && ranks > nodes ? 1 : 0);
}

/// Levels below the result in low-latency mode, on any number of nodes.
constexpr int low_latency_levels(Reduction reduction = Reduction::per_rank) {
  return reduction == Reduction::exact ? 1 : 2;
}

/// The bound of the error of one value.
struct CombineError {
  double of_terms;   ///< share of the sum of the magnitudes of the terms
  double of_result;  ///< share of the magnitude of the exact sum

  double bound(double magnitude, double sum) const {
    return of_terms * magnitude + of_result * std::abs(sum);
  }
};

/// From the levels below the result and the relative error of the rows that the experts receive.
constexpr CombineError combine_error(int levels, double row_error = 0) {
  // Roundings of rounded values, and the float32 sums of up to 128 terms.
  constexpr double kSecondOrder = 1.02;
  return {kSecondOrder * (levels * kBf16Rounding + row_error), kSecondOrder * kBf16Rounding};
}

}  // namespace shoal::ep::detail
