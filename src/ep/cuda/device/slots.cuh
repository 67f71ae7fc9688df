// SPDX-License-Identifier: Apache-2.0
// slots.cuh: numbered things that the lanes of a warp share, such as the top-k slots of a token:
// lane l has the numbers l, l + 32, ... up to kPerLane of them.
//
// Kernels that hold top-k slots in their lanes are compiled for one number a lane, which serves
// top-k up to 32, and for kMostPerLane.
#pragma once

#include <type_traits>

#include "ep/cuda/device/group.cuh"
#include "shoal/ep/options.hpp"

namespace shoal::ep::cuda {

inline constexpr int kMostPerLane = kMaxTopK / 32;
/// Numbers of which a lane has one, at most.
inline constexpr std::int32_t kOnePerLane = 32;

#ifdef __CUDACC__

/// A bit for each of 32 * kWords numbers.
template <int kWords>
struct NumberSet {
  std::uint32_t words[kWords] = {};

  /// The numbers whose lanes give true in `mine`. The whole warp calls.
  __device__ static NumberSet vote(const bool (&mine)[kWords]) {
    NumberSet set;
#pragma unroll
    for (int w = 0; w < kWords; ++w) set.words[w] = __ballot_sync(~0u, mine[w]);
    return set;
  }
  /// The numbers below `end`, which is positive.
  __device__ static NumberSet below(std::uint32_t end) {
    NumberSet set;
    if constexpr (kWords == 1) {
      set.words[0] = ~0u >> (32 - end);
    } else {
#pragma unroll
      for (std::uint32_t w = 0; w < kWords; ++w)
        set.words[w] = end >= 32 * w + 32 ? ~0u : end <= 32 * w ? 0 : (1u << end % 32) - 1;
    }
    return set;
  }

  __device__ bool any() const {
    std::uint32_t all = words[0];
#pragma unroll
    for (int w = 1; w < kWords; ++w) all |= words[w];
    return all != 0;
  }
  __device__ std::uint32_t count() const {
    std::uint32_t all = 0;
#pragma unroll
    for (int w = 0; w < kWords; ++w) all += static_cast<std::uint32_t>(__popc(words[w]));
    return all;
  }
  __device__ bool has(std::uint32_t number) const {
    if constexpr (kWords == 1) return (words[0] >> number & 1) != 0;
    std::uint32_t word = words[0];
#pragma unroll
    for (std::uint32_t w = 1; w < kWords; ++w) word = number / 32 == w ? words[w] : word;
    return (word >> number % 32 & 1) != 0;
  }
  __device__ bool has_below(std::uint32_t number) const {
    if constexpr (kWords == 1) return (words[0] & ((1u << number) - 1)) != 0;
    return count_below(number) != 0;
  }
  /// How many numbers of the set are less than `number`, one of 32 * kWords.
  __device__ std::uint32_t count_below(std::uint32_t number) const {
    if constexpr (kWords == 1)
      return static_cast<std::uint32_t>(__popc(words[0] & ((1u << number) - 1)));
    std::uint32_t all = 0;
#pragma unroll
    for (std::uint32_t w = 0; w < kWords; ++w) {
      const std::uint32_t before = number / 32 > w ? ~0u : (1u << number % 32) - 1;
      if (number / 32 >= w) all += static_cast<std::uint32_t>(__popc(words[w] & before));
    }
    return all;
  }
  /// The least number of a set that has any.
  __device__ std::int32_t first() const {
    if constexpr (kWords == 1) return __ffs(static_cast<int>(words[0])) - 1;
    std::int32_t number = 0;
#pragma unroll
    for (int w = kWords - 1; w >= 0; --w)
      if (words[w] != 0) number = 32 * w + __ffs(static_cast<int>(words[w])) - 1;
    return number;
  }
  /// The greatest number of a set that has any.
  __device__ std::int32_t last() const {
    std::int32_t number = 31 - __clz(static_cast<int>(words[0]));
#pragma unroll
    for (int w = 1; w < kWords; ++w)
      if (words[w] != 0) number = 32 * w + 31 - __clz(static_cast<int>(words[w]));
    return number;
  }
  __device__ NumberSet without_first() const {
    NumberSet rest = *this;
    if constexpr (kWords == 1) {
      rest.words[0] &= rest.words[0] - 1;
    } else {
      bool taken = false;
#pragma unroll
      for (int w = 0; w < kWords; ++w) {
        if (!taken) rest.words[w] &= rest.words[w] - 1;
        taken = taken || words[w] != 0;
      }
    }
    return rest;
  }
  __device__ NumberSet operator&(const NumberSet& other) const {
    NumberSet both = *this;
#pragma unroll
    for (int w = 0; w < kWords; ++w) both.words[w] &= other.words[w];
    return both;
  }
  __device__ NumberSet operator~() const {
    NumberSet rest;
#pragma unroll
    for (int w = 0; w < kWords; ++w) rest.words[w] = ~words[w];
    return rest;
  }
};

/// The number of this lane in turn `turn` of its kPerLane.
__device__ inline std::uint32_t number_of_lane(int turn) {
  return static_cast<std::uint32_t>(turn) * 32 + lane_id();
}

/// The value of `number`, one of 32 * kPerLane. Lanes may ask for different ones; the whole warp
/// calls.
template <int kPerLane, typename T>
__device__ T value_of(const T (&values)[kPerLane], std::uint32_t number) {
  const auto from_lane = [number](T value) {
    const auto lane = static_cast<int>(number);  // shuffles take it modulo 32
    if constexpr (std::is_pointer_v<T>)
      return reinterpret_cast<T>(
          __shfl_sync(~0u, reinterpret_cast<unsigned long long>(value), lane));
    else
      return __shfl_sync(~0u, value, lane);
  };
  T value = from_lane(values[0]);
#pragma unroll
  for (std::uint32_t turn = 1; turn < kPerLane; ++turn) {
    const T other = from_lane(values[turn]);
    if (number / 32 % kPerLane == turn) value = other;
  }
  return value;
}

/// For each number of a lane those that have the same value. The whole warp calls.
template <int kPerLane>
__device__ void find_same(const std::int32_t (&values)[kPerLane],
                          NumberSet<kPerLane> (&same)[kPerLane]) {
  if constexpr (kPerLane == 1) {
    same[0].words[0] = __match_any_sync(~0u, values[0]);
  } else {
#pragma unroll
    for (int w = 0; w < kPerLane; ++w)
#pragma unroll 1
      for (int lane = 0; lane < 32; ++lane) {
        const std::int32_t value = __shfl_sync(~0u, values[w], lane);
#pragma unroll
        for (int turn = 0; turn < kPerLane; ++turn)
          if (values[turn] == value) same[turn].words[w] |= 1u << lane;
      }
  }
}

/// A value of each number, 0 or more; -1: none.
template <int kPerLane>
struct NumberedValues {
  std::int32_t value[kPerLane];
  NumberSet<kPerLane> exist;

  /// load(number) gives the value of a lane's number. The whole warp calls, as of the others.
  template <typename Load>
  __device__ explicit NumberedValues(Load&& load) {
    bool exists[kPerLane];
#pragma unroll
    for (int turn = 0; turn < kPerLane; ++turn) {
      value[turn] = load(number_of_lane(turn));
      exists[turn] = value[turn] >= 0;
    }
    exist = NumberSet<kPerLane>::vote(exists);
  }
  /// Calls f(value) for each that exists, in the order of numbers.
  template <typename F>
  __device__ void each(F&& f) const {
    for (NumberSet<kPerLane> left = exist; left.any(); left = left.without_first())
      f(value_of(value, static_cast<std::uint32_t>(left.first())));
  }
};

#endif

}  // namespace shoal::ep::cuda
