// SPDX-License-Identifier: Apache-2.0
// checked.hpp: arithmetic on sizes that throws instead of wrapping modulo 2^64.
//
// `option` is what the user can change: it opens the message. Example:
//
//   const std::size_t bytes = checked_mul("GroupOptions.max_tokens", ranks, tokens, row_bytes);
#pragma once

#include <concepts>
#include <cstddef>

#include "base/align.hpp"
#include "base/check.hpp"

namespace shoal {

/// Throws Error{invalid_argument}: a size that follows from `option` does not fit into 64 bits.
[[noreturn]] inline void fail_size(const char* option) {
  fail(Code::invalid_argument,
       "SHOAL-N102: {}: a size that follows from these values exceeds 2^64 - 1 bytes; choose "
       "smaller ones",
       option);
}

/// The product of sizes and counts. A negative factor counts as too large.
template <std::integral... Factors>
std::size_t checked_mul(const char* option, Factors... factors) {
  std::size_t product = 1;
  bool wraps = false;
  // Every factor is examined: a product with a zero does not hide a negative one.
  ((wraps |= __builtin_mul_overflow(product, factors, &product)), ...);
  if (wraps) fail_size(option);
  return product;
}

/// The sum of sizes and counts.
template <std::integral... Terms>
std::size_t checked_add(const char* option, Terms... terms) {
  std::size_t sum = 0;
  bool wraps = false;
  ((wraps |= __builtin_add_overflow(sum, terms, &sum)), ...);
  if (wraps) fail_size(option);
  return sum;
}

/// The smallest multiple of `unit` (at least 1) that is at least `value`.
inline std::size_t checked_align_up(const char* option, std::size_t value, std::size_t unit) {
  return checked_add(option, value, unit - 1) / unit * unit;
}

}  // namespace shoal
