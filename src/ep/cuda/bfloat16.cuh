// bfloat16.cuh: 16 bytes of bfloat16 as eight floats, and back; the same bits as numeric/float16.hpp.
#pragma once

#include "ep/numeric/float16.hpp"

namespace shoal::ep::cuda {

__device__ inline void widen(const uint4& vector, float (&values)[8]) {
  const std::uint32_t words[4] = {vector.x, vector.y, vector.z, vector.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    values[2 * i] = __uint_as_float(words[i] << 16);
    values[2 * i + 1] = __uint_as_float(words[i] & 0xffff'0000u);
  }
}

__device__ inline uint4 narrow(const float (&values)[8]) {
  std::uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i)
    words[i] = numeric::to_bf16(values[2 * i]).bits | std::uint32_t{numeric::to_bf16(values[2 * i + 1]).bits} << 16;
  return {words[0], words[1], words[2], words[3]};
}

}  // namespace shoal::ep::cuda
