// SPDX-License-Identifier: Apache-2.0
// random.hpp: counter-based random numbers. Element i of a stream is a function of (seed, stream,
// i). Any PE can generate any part of an array, and the same seed gives the same run on any number
// of PEs.
#pragma once

#include <cstdint>

namespace shoal::moe {

class Random {
 public:
  Random(std::uint64_t seed, std::uint64_t stream) : key_(mix(mix(seed) + stream)) {}

  std::uint64_t bits(std::uint64_t index) const {
    return mix(key_ + index * 0x9e37'79b9'7f4a'7c15u);
  }

  /// Uniform in [-1, 1), 24 bits.
  float uniform(std::uint64_t index) const {
    return to_uniform(static_cast<std::uint32_t>(bits(index)));
  }

  /// Nearly normal with mean 0 and variance 1: the sum of four uniform numbers.
  float normal(std::uint64_t index) const {
    const std::uint64_t a = bits(2 * index), b = bits(2 * index + 1);
    const float sum = to_uniform(static_cast<std::uint32_t>(a)) +
                      to_uniform(static_cast<std::uint32_t>(a >> 32)) +
                      to_uniform(static_cast<std::uint32_t>(b)) +
                      to_uniform(static_cast<std::uint32_t>(b >> 32));
    return sum * 0.8660254f;  // the variance of the sum is 4/3
  }

 private:
  static float to_uniform(std::uint32_t word) {
    return static_cast<float>(static_cast<std::int32_t>(word) >> 8) * 0x1p-23f;
  }
  /// A bijection of 64-bit words that changes half of the bits on average (xor-shift and multiply,
  /// as in SplitMix64).
  static std::uint64_t mix(std::uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58'476d'1ce4'e5b9u;
    x = (x ^ (x >> 27)) * 0x94d0'49bb'1331'11ebu;
    return x ^ (x >> 31);
  }
  std::uint64_t key_;
};

/// The streams of one seed. Every expert has its own, from `weights` on.
enum Stream : std::uint64_t {
  tokens_stream = 1,
  router_stream,
  bias_stream,
  popularity_stream,
  weights_stream = 1000
};

}  // namespace shoal::moe
