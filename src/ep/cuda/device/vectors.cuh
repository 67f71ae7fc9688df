// SPDX-License-Identifier: Apache-2.0
// vectors.cuh: sixteen bytes of elements as float32 values, and back.
//
// narrow() rounds once, to nearest, ties to even. It takes results of arithmetic, whose NaNs all
// have one pattern on GPUs (PTX: 0x7fffffff), and returns the bits that numeric/float16.hpp
// returns. Other NaNs would differ, because the instructions for pairs drop sign and payload. One
// instruction for two elements replaces fourteen.
#pragma once

#include <cstdint>

#include "ep/numeric/arithmetic.hpp"
#include "ep/numeric/float16.hpp"
#include "shoal/device/ptx.cuh"

namespace shoal::ep::cuda {

struct Float32Vector {
  static constexpr int kCount = 4;
  __device__ static void widen(const uint4& vector, float (&values)[kCount]) {
    values[0] = __uint_as_float(vector.x), values[1] = __uint_as_float(vector.y);
    values[2] = __uint_as_float(vector.z), values[3] = __uint_as_float(vector.w);
  }
  __device__ static uint4 narrow(const float (&values)[kCount]) {
    return {__float_as_uint(values[0]), __float_as_uint(values[1]), __float_as_uint(values[2]),
            __float_as_uint(values[3])};
  }
};

struct Bfloat16Vector {
  static constexpr int kCount = 8;
  __device__ static void widen(const uint4& vector, float (&values)[kCount]) {
    const std::uint32_t words[4] = {vector.x, vector.y, vector.z, vector.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      values[2 * i] = __uint_as_float(words[i] << 16);
      values[2 * i + 1] = __uint_as_float(words[i] & 0xffff'0000u);
    }
  }
  /// `first` becomes the lower half of the word.
  __device__ static std::uint32_t narrow(float first, float second) {
    return ptx::cvt_rn_bf16x2_f32(second, first);
  }
  __device__ static uint4 narrow(const float (&values)[kCount]) {
    return {narrow(values[0], values[1]), narrow(values[2], values[3]),
            narrow(values[4], values[5]), narrow(values[6], values[7])};
  }
};

struct Float16Vector {
  static constexpr int kCount = 8;
  __device__ static void widen(const uint4& vector, float (&values)[kCount]) {
    const std::uint32_t words[4] = {vector.x, vector.y, vector.z, vector.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      values[2 * i] = widen(static_cast<std::uint16_t>(words[i]));
      values[2 * i + 1] = widen(static_cast<std::uint16_t>(words[i] >> 16));
    }
  }
  __device__ static uint4 narrow(const float (&values)[kCount]) {
    return {narrow(values[0], values[1]), narrow(values[2], values[3]),
            narrow(values[4], values[5]), narrow(values[6], values[7])};
  }

 private:
  __device__ static float widen(std::uint16_t bits) { return ptx::cvt_f32_f16(bits); }
  __device__ static std::uint32_t narrow(float first, float second) {
    return ptx::cvt_rn_f16x2_f32(second, first);
  }
};

/// sum += vector, element by element.
template <class Format>
__device__ void add_vector(float (&sum)[Format::kCount], const uint4& vector) {
  float values[Format::kCount];
  Format::widen(vector, values);
#pragma unroll
  for (int i = 0; i < Format::kCount; ++i) sum[i] = numeric::add(sum[i], values[i]);
}

/// Stands for an element type where at most one vector is added: its bits stay as they are.
struct CopiedVector : Float32Vector {};
template <>
__device__ inline void add_vector<CopiedVector>(float (&sum)[CopiedVector::kCount],
                                                const uint4& vector) {
  CopiedVector::widen(vector, sum);
}

}  // namespace shoal::ep::cuda
