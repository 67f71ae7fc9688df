// SPDX-License-Identifier: Apache-2.0
// experts.hpp: the experts, SwiGLU feed-forward networks: y = down * (silu(gate * x) . (up * x)).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "moe/npy.hpp"
#include "moe/options.hpp"

namespace shoal::moe {

/// The three matrices of one expert. The last dimension is the one of the inner loops.
struct ExpertWeights {
  std::vector<float> gate, up;  ///< [hidden, ffn]
  std::vector<float> down;      ///< [ffn, hidden]

  /// Rounds all values to bfloat16.
  void round();
};

/// Reads weights from --weights FILE, float [experts, 3, hidden, ffn] with gate, up and down, or
/// generates them from the seed.
class WeightSource {
 public:
  /// resolve_shape must have checked the file.
  WeightSource(const Options& options, const Shape& shape);
  ExpertWeights load(std::int32_t expert);

 private:
  std::int64_t hidden_, ffn_;
  std::uint64_t seed_;
  std::optional<tools::NpyReader> file_;
};

/// Applies experts to one row at a time in Real arithmetic: float for the run, double for the
/// reference.
template <typename Real>
class FeedForward {
 public:
  explicit FeedForward(const Shape& shape)
      : hidden_(static_cast<std::size_t>(shape.hidden)),
        gate_(static_cast<std::size_t>(shape.ffn)),
        up_(gate_.size()),
        y_(hidden_) {}

  /// Returns the expert output for `hidden` values x. Valid until the next call.
  const std::vector<Real>& operator()(const ExpertWeights& weights, const float* x) {
    std::fill(gate_.begin(), gate_.end(), Real{0});
    std::fill(up_.begin(), up_.end(), Real{0});
    std::fill(y_.begin(), y_.end(), Real{0});
    const std::size_t ffn = gate_.size();
    for (std::size_t h = 0; h < hidden_; ++h) {
      add_scaled(gate_.data(), x[h], weights.gate.data() + h * ffn, ffn);
      add_scaled(up_.data(), x[h], weights.up.data() + h * ffn, ffn);
    }
    for (std::size_t f = 0; f < ffn; ++f) {
      gate_[f] = gate_[f] / (1 + std::exp(-gate_[f])) * up_[f];
      add_scaled(y_.data(), gate_[f], weights.down.data() + f * hidden_, hidden_);
    }
    return y_;
  }

  /// The sums of the magnitudes of the terms of the last result: [hidden]. Valid until the next
  /// call.
  const std::vector<Real>& magnitude(const ExpertWeights& weights) {
    std::fill(magnitude_.begin(), magnitude_.end(), Real{0});
    magnitude_.resize(hidden_);
    for (std::size_t f = 0; f < gate_.size(); ++f)
      for (std::size_t h = 0; h < hidden_; ++h)
        magnitude_[h] += std::abs(gate_[f] * static_cast<Real>(weights.down[f * hidden_ + h]));
    return magnitude_;
  }

 private:
  static void add_scaled(Real* __restrict sum, Real factor, const float* __restrict row,
                         std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) sum[i] += factor * static_cast<Real>(row[i]);
  }
  std::size_t hidden_;
  std::vector<Real> gate_, up_, y_;  ///< gate_ holds the inner values after a row
  std::vector<Real> magnitude_;
};

}  // namespace shoal::moe
