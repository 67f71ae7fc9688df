// SPDX-License-Identifier: Apache-2.0
// gate.hpp: the arithmetic of a gate, with the same bits on host and device (shoal/ep/gate.hpp).
#pragma once

#include "ep/numeric/arithmetic.hpp"
#include "ep/numeric/exponential.hpp"

namespace shoal::ep::numeric {

/// A softmax adds in this many parts: expert e belongs to part e % kSoftmaxParts. Part i is then
/// added to part i - w for w = 16, 8, 4, 2, 1, as the lanes of a warp do.
inline constexpr int kSoftmaxParts = 32;

/// Sums and scores that have underflowed to 0 give weights of 0, not NaN.
inline constexpr double kLeastSum = 1e-300;

/// `term`: exp of the exponent.
SHOAL_HOST_DEVICE inline double sigmoid_exponent(float logit) {
  return -static_cast<double>(logit);
}
SHOAL_HOST_DEVICE inline float sigmoid(double term) {
  return static_cast<float>(div(1.0, add(1.0, term)));
}

/// `largest`: the largest logit of the token; 0 if that is -infinity.
SHOAL_HOST_DEVICE inline double softmax_exponent(float logit, float largest) {
  return add(static_cast<double>(logit), -static_cast<double>(largest));
}
SHOAL_HOST_DEVICE inline float softmax(double term, double sum) {
  return static_cast<float>(div(term, sum > kLeastSum ? sum : kLeastSum));
}

/// Factor of the scores; `sum`: of the chosen scores, added in the order of choice.
SHOAL_HOST_DEVICE inline double weight_factor(bool normalize, float scaling, double sum) {
  if (!normalize) return static_cast<double>(scaling);
  return div(static_cast<double>(scaling), sum > kLeastSum ? sum : kLeastSum);
}
SHOAL_HOST_DEVICE inline float weight(float score, double factor) {
  return static_cast<float>(mul(static_cast<double>(score), factor));
}

/// An integer that orders as the value does: a larger value has the larger one, equal values (0 and
/// -0 too) the same. 0 for no value, which is less than all.
SHOAL_HOST_DEVICE inline std::uint32_t order_key(float value) {
  const std::uint32_t bits = bits_of(add(value, 0.0f));
  return (bits & kSignBit) != 0 ? ~bits : bits | kSignBit;
}
SHOAL_HOST_DEVICE inline float value_of_key(std::uint32_t key) {
  return float_of((key & kSignBit) != 0 ? key & ~kSignBit : ~key);
}

}  // namespace shoal::ep::numeric
