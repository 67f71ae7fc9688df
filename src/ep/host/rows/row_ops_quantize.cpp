// SPDX-License-Identifier: Apache-2.0
// row_ops_quantize.cpp: bfloat16 rows to float8_e4m3 with one scale per 128 channels, and back. The
// scales come from numeric/scale.hpp; the element conversions are those of numeric/float8.hpp,
// vectorized.
#include "ep/host/rows/row_ops.hpp"

#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ep/host/rows/row_ops_quantize.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include "ep/host/rows/row_ops_simd-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace shoal::ep::host::HWY_NAMESPACE {

/// Codes of finite values, one per 32-bit word.
template <class DF, class VF>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<DF>> encode_e4m3_word(DF floats, VF value) {
  const hn::RebindToUnsigned<DF> words;
  const auto bits = hn::BitCast(words, value);
  const auto sign = hn::And(hn::ShiftRight<24>(bits), hn::Set(words, 0x80));
  // 0x43e00000 is 448, the largest finite value of e4m3.
  const auto clamped =
      hn::Min(hn::And(bits, hn::Set(words, 0x7fffffffu)), hn::Set(words, 0x43e00000u));
  const auto odd = hn::And(hn::ShiftRight<20>(clamped), hn::Set(words, 1));
  const auto normal =
      hn::ShiftRight<20>(hn::Add(hn::Add(clamped, odd), hn::Set(words, 0x7ffffu - (120u << 23))));
  // A unit in the last place of 2^14 is 2^-9, the unit of e4m3's subnormals: the addition rounds at
  // the right bit.
  const auto subnormal =
      hn::Sub(hn::BitCast(words, hn::Add(hn::BitCast(floats, clamped), hn::Set(floats, 0x1p14f))),
              hn::Set(words, 0x46800000u));
  return hn::Or(sign,
                hn::IfThenElse(hn::Lt(clamped, hn::Set(words, 0x3c800000u)), subnormal, normal));
}

template <class DW, class VW>
HWY_INLINE hn::Vec<hn::RebindToFloat<DW>> decode_e4m3_word(DW words, VW code) {
  const hn::RebindToFloat<DW> floats;
  const hn::RebindToSigned<DW> integers;
  const auto sign = hn::ShiftLeft<24>(hn::And(code, hn::Set(words, 0x80)));
  const auto magnitude = hn::And(code, hn::Set(words, 0x7f));
  const auto normal = hn::Add(hn::ShiftLeft<20>(magnitude), hn::Set(words, 120u << 23));
  const auto units = hn::ConvertTo(floats, hn::BitCast(integers, magnitude));
  const auto subnormal = hn::BitCast(words, hn::Mul(units, hn::Set(floats, 0x1p-9f)));
  auto result = hn::IfThenElse(hn::Lt(magnitude, hn::Set(words, 8)), subnormal, normal);
  result = hn::IfThenElse(hn::Eq(magnitude, hn::Set(words, 0x7f)),
                          hn::Set(words, numeric::kQuietNanBits), result);
  return hn::BitCast(floats, hn::Or(sign, result));
}

struct QuantizeGroup {
  std::uint8_t* target;
  const std::uint16_t* source;
  float scale;

  template <Store kStore, class D>
  HWY_INLINE void vector(D d, std::size_t i) const {
    const FloatTag<D> floats;
    const hn::Rebind<std::uint8_t, D> bytes;
    const auto value = Bfloat16::widen(d, hn::LoadU(d, source + i));
    const auto factor = hn::Set(floats, scale);
    const auto codes = join(d, encode_e4m3_word(floats, hn::Mul(value.even, factor)),
                            encode_e4m3_word(floats, hn::Mul(value.odd, factor)));
    hn::StoreU(hn::TruncateTo(bytes, codes), bytes, target + i);
  }

  void scalar(std::size_t i) const {
    target[i] = numeric::encode_e4m3(numeric::mul(Bfloat16::to_float(source[i]), scale));
  }
};

struct DequantizeGroup {
  std::uint16_t* target;
  const std::uint8_t* source;
  float scale;

  template <Store kStore, class D>
  HWY_INLINE void vector(D d, std::size_t i) const {
    const FloatTag<D> floats;
    const WordTag<D> words;
    const hn::Rebind<std::uint8_t, D> bytes;
    const auto codes = split(d, hn::PromoteTo(d, hn::LoadU(bytes, source + i)));
    const auto factor = hn::Set(floats, scale);
    const auto even = hn::Mul(decode_e4m3_word(words, codes.even), factor);
    const auto odd = hn::Mul(decode_e4m3_word(words, codes.odd), factor);
    hn::StoreU(Bfloat16::narrow(d, even, odd), d, target + i);
  }

  void scalar(std::size_t i) const {
    target[i] = Bfloat16::from_float(numeric::mul(numeric::decode_e4m3(source[i]), scale));
  }
};

/// Largest magnitude, as the bits of a bfloat16. Magnitudes compare like their bit patterns;
/// infinities and NaN are above all others.
HWY_INLINE std::uint16_t largest_magnitude(const std::uint16_t* source, std::size_t count) {
  std::size_t i = 0;
  std::uint16_t largest = 0;
  if constexpr (HWY_TARGET != HWY_SCALAR) {
    const Tag16 d;
    auto largest_of_lanes = hn::Zero(d);
    for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d))
      largest_of_lanes =
          hn::Max(largest_of_lanes, hn::And(hn::LoadU(d, source + i), hn::Set(d, 0x7fff)));
    largest = hn::GetLane(hn::MaxOfLanes(d, largest_of_lanes));
  }
  for (; i < count; ++i) largest = HWY_MAX(largest, static_cast<std::uint16_t>(source[i] & 0x7fff));
  return largest;
}

void QuantizeRowKernel(std::uint8_t* target, float* inverse_scales, const std::uint16_t* source,
                       std::size_t channels, numeric::ScaleRounding rounding) {
  for (std::size_t first = 0; first < channels; first += numeric::kGroupChannels) {
    const std::size_t count = HWY_MIN(numeric::kGroupChannels, channels - first);
    const std::uint16_t largest = largest_magnitude(source + first, count);
    const numeric::Scale scale = numeric::scale_of(Bfloat16::to_float(largest), rounding);
    *inverse_scales++ = scale.dequantize;
    if (largest >= 0x7f80)  // not finite: the whole group becomes NaN
      std::memset(target + first, numeric::kE4m3Nan, count);
    else
      walk_row<Store::cached>(Tag16(), Tag16x8(), target, count,
                              QuantizeGroup{target + first, source + first, scale.quantize});
  }
}

void DequantizeRowKernel(std::uint16_t* target, const std::uint8_t* source,
                         const float* inverse_scales, std::size_t channels) {
  for (std::size_t first = 0; first < channels; first += numeric::kGroupChannels) {
    const std::size_t count = HWY_MIN(numeric::kGroupChannels, channels - first);
    walk_row<Store::cached>(Tag16(), Tag16x8(), target, count,
                            DequantizeGroup{target + first, source + first, *inverse_scales++});
  }
}

}  // namespace shoal::ep::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shoal::ep::host {

HWY_EXPORT(QuantizeRowKernel);
HWY_EXPORT(DequantizeRowKernel);

void quantize_row(std::uint8_t* target, float* inverse_scales, const std::uint16_t* source,
                  std::size_t channels, ScaleForm form) {
  const auto rounding = form == ScaleForm::power_of_two ? numeric::ScaleRounding::power_of_two
                                                        : numeric::ScaleRounding::none;
  HWY_DYNAMIC_DISPATCH(QuantizeRowKernel)(target, inverse_scales, source, channels, rounding);
}

void dequantize_row(std::uint16_t* target, const std::uint8_t* source, const float* inverse_scales,
                    std::size_t channels) {
  HWY_DYNAMIC_DISPATCH(DequantizeRowKernel)(target, source, inverse_scales, channels);
}

}  // namespace shoal::ep::host
#endif
