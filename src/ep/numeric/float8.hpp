// SPDX-License-Identifier: Apache-2.0
// float8.hpp: e4m3 codes under the names that quantization uses; shoal/numeric.hpp converts.
#pragma once

#include "ep/numeric/arithmetic.hpp"
#include "shoal/numeric.hpp"

namespace shoal::ep::numeric {

using shoal::kE4m3Max;
using shoal::kE4m3Nan;

SHOAL_HOST_DEVICE inline float decode_e4m3(std::uint8_t code) {
  return float_from_e4m3(code);
}
SHOAL_HOST_DEVICE inline std::uint8_t encode_e4m3(float value) {
  return e4m3_from_float(value);
}

}  // namespace shoal::ep::numeric
