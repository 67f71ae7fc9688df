// SPDX-License-Identifier: Apache-2.0
// float16.hpp: bfloat16 and float16 as distinct types. Their conversions are those of
// shoal/numeric.hpp: round to nearest, ties to even.
#pragma once

#include <cstdint>

#include "shoal/numeric.hpp"

namespace shoal::ep::numeric {

struct Bf16 {
  std::uint16_t bits;
};
struct Fp16 {
  std::uint16_t bits;
};
static_assert(sizeof(Bf16) == 2 && sizeof(Fp16) == 2);

SHOAL_HOST_DEVICE inline float to_float(Bf16 value) {
  return float_from_bfloat16(value.bits);
}
SHOAL_HOST_DEVICE inline float to_float(Fp16 value) {
  return float_from_float16(value.bits);
}

/// Infinities stay, NaN stays NaN (quiet, with sign and the upper part of its payload), overflow
/// gives infinity.
SHOAL_HOST_DEVICE inline Bf16 to_bf16(float value) {
  return {bfloat16_from_float(value)};
}
SHOAL_HOST_DEVICE inline Fp16 to_fp16(float value) {
  return {float16_from_float(value)};
}

}  // namespace shoal::ep::numeric
