// SPDX-License-Identifier: Apache-2.0
// elementary.hpp: log2 and exp2 in float32 from fused multiply-adds. They give the same bits on
// every machine, which libm does not guarantee.
//
// The error is below 2 units in the last place (unit_ep_numeric_test).
#pragma once

#include "ep/numeric/arithmetic.hpp"

namespace shoal::ep::numeric {

/// log2(1 + f) / f for 1 + f in [sqrt(1/2), sqrt(2)), least relative error over that range.
SHOAL_HOST_DEVICE inline float log2_over_f(float f) {
  float p = -0x1.c25a6cp-4f;
  p = fma(p, f, 0x1.7d494ap-3f);
  p = fma(p, f, -0x1.874beap-3f);
  p = fma(p, f, 0x1.a305a6p-3f);
  p = fma(p, f, -0x1.eabc88p-3f);
  p = fma(p, f, 0x1.277e36p-2f);
  p = fma(p, f, -0x1.715a76p-2f);
  p = fma(p, f, 0x1.ec7096p-2f);
  p = fma(p, f, -0x1.715470p-1f);
  return fma(p, f, 0x1.715476p+0f);
}

/// Base-2 logarithm. 0 gives -infinity, negative values NaN; infinity and NaN stay.
SHOAL_HOST_DEVICE inline float log2(float x) {
  std::uint32_t u = bits_of(x);
  std::int32_t offset = 0;
  if (u - 1u < 0x7f'ffffu) {  // subnormal: u units of 2^-149
    u = bits_of(static_cast<float>(u));
    offset = -149;
  }
  // x = 2^exponent * m with m in [sqrt(1/2), sqrt(2)), so that the sum below loses nothing near 1.
  const std::int32_t exponent = static_cast<std::int32_t>(u - 0x3f35'04f3u) >> 23;
  const float f = sub(float_of(u - (static_cast<std::uint32_t>(exponent) << 23)), 1.0f);
  const float finite = fma(log2_over_f(f), f, static_cast<float>(exponent + offset));
  if (u - 1u < kInfinityBits - 1u) return finite;
  if ((u & ~kSignBit) == 0) return float_of(kSignBit | kInfinityBits);
  return u == kInfinityBits ? x : float_of(kQuietNanBits);
}

/// log2 of normal positive values, with the same bits. 0 and subnormals give something from -127 to
/// -126.
SHOAL_HOST_DEVICE inline float log2_of_normal(float x) {
  const std::uint32_t u = bits_of(x);
  const std::int32_t exponent = static_cast<std::int32_t>(u - 0x3f35'04f3u) >> 23;
  const float f = sub(float_of(u - (static_cast<std::uint32_t>(exponent) << 23)), 1.0f);
  return fma(log2_over_f(f), f, static_cast<float>(exponent));
}

/// Adding this rounds to an integer, which is then found in the low bits.
inline constexpr float kToInteger = 0x1.8p23f;

/// 2^r for r in [-1/2, 1/2], least relative error.
SHOAL_HOST_DEVICE inline float exp2_of_fraction(float r) {
  float p = 0x1.41d334p-13f;
  p = fma(p, r, 0x1.5f456ap-10f);
  p = fma(p, r, 0x1.3b2dbcp-7f);
  p = fma(p, r, 0x1.c6aed4p-5f);
  p = fma(p, r, 0x1.ebfbdap-3f);
  p = fma(p, r, 0x1.62e430p-1f);
  return fma(p, r, 1.0f);
}

/// exp2 for x from -125.4 to 125.4, with the same bits: 2^r * 2^n is normal there, so n is added to
/// its exponent.
SHOAL_HOST_DEVICE inline float exp2_to_normal(float x) {
  const float shifted = add(x, kToInteger);
  const float p = exp2_of_fraction(sub(x, sub(shifted, kToInteger)));
  return float_of(bits_of(p) + (bits_of(shifted) << 23));
}

/// 2^x. Overflow gives infinity, underflow subnormals and then 0; NaN stays.
SHOAL_HOST_DEVICE inline float exp2(float x) {
  const float low = x < -151.0f ? -151.0f : x;
  const float clamped = low > 129.0f ? 129.0f : low;
  const float shifted = add(clamped, kToInteger);
  const std::int32_t n = static_cast<std::int32_t>(bits_of(shifted) - bits_of(kToInteger));
  const float p = exp2_of_fraction(sub(clamped, sub(shifted, kToInteger)));
  // Two steps, because 2^n alone may be out of range where the result is not.
  const std::int32_t half = n >> 1;
  const float first = float_of(static_cast<std::uint32_t>(half + 127) << 23);
  const float second = float_of(static_cast<std::uint32_t>(n - half + 127) << 23);
  return mul(mul(p, first), second);
}

}  // namespace shoal::ep::numeric
