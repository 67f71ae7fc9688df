// SPDX-License-Identifier: Apache-2.0
// experts.hpp: the experts on the host, SwiGLU feed-forward networks:
// y = down * (silu(gate * x) . (up * x)).
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "moe/inputs.hpp"

namespace shoal::moe {

/// Applies experts to one row at a time in Real arithmetic: float for the run, double for the
/// reference. Sums add their terms in ascending order.
template <typename Real>
class FeedForward {
 public:
  explicit FeedForward(const Shape& shape)
      : gate_(static_cast<std::size_t>(shape.ffn)),
        up_(gate_.size()),
        y_(static_cast<std::size_t>(shape.hidden)) {}

  /// Returns the expert output for a row of hidden values. `weights` are those of load_weights. The
  /// result is valid until the next call.
  const std::vector<Real>& operator()(const std::vector<float>& weights, const float* x) {
    for (std::vector<Real>* sums : {&gate_, &up_, &y_}) std::ranges::fill(*sums, Real{0});
    const std::size_t hidden = y_.size(), ffn = gate_.size();
    const float *gate = weights.data(), *up = gate + hidden * ffn, *down = up + hidden * ffn;
    for (std::size_t h = 0; h < hidden; ++h) {
      add_scaled(gate_, x[h], gate + h * ffn);
      add_scaled(up_, x[h], up + h * ffn);
    }
    for (std::size_t f = 0; f < ffn; ++f)
      add_scaled(y_, gate_[f] / (1 + std::exp(-gate_[f])) * up_[f], down + f * hidden);
    return y_;
  }

 private:
  static void add_scaled(std::vector<Real>& sums, Real factor, const float* __restrict row) {
    Real* __restrict sum = sums.data();
    for (std::size_t i = 0; i < sums.size(); ++i) sum[i] += factor * static_cast<Real>(row[i]);
  }
  std::vector<Real> gate_, up_, y_;
};

}  // namespace shoal::moe
