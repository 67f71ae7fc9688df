// SPDX-License-Identifier: Apache-2.0
// row_ops_quantize.cpp: bfloat16 rows to float8_e4m3 with one scale per 128 channels, and back; to
// MXFP8 and NVFP4. The scales come from numeric/scale.hpp and numeric/nvfp4.hpp; the element
// conversions are those of numeric/float8.hpp and numeric/nvfp4.hpp, vectorized.
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

/// Codes of magnitudes that are no NaN, one per 32-bit word, as numeric::encode_e2m1 gives them.
template <class DF, class VF>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<DF>> encode_e2m1_word(DF floats, VF magnitude) {
  const hn::RebindToUnsigned<DF> words;
  const auto bounded = hn::Min(magnitude, hn::Set(floats, 2 * numeric::kE2m1Max));
  const auto below_2 = hn::Lt(bounded, hn::Set(floats, 2.0f)),
             below_4 = hn::Lt(bounded, hn::Set(floats, 4.0f));
  const auto choose = [&](float a, float b, float c) {
    return hn::IfThenElse(below_2, hn::Set(floats, a),
                          hn::IfThenElse(below_4, hn::Set(floats, b), hn::Set(floats, c)));
  };
  // In units of the distance of neighbours, plus a number whose unit in the last place is 1.
  const auto integers = hn::Set(floats, 0x1.8p23f);
  const auto rounded = hn::Add(hn::Mul(bounded, choose(2, 1, 0.5f)), integers);
  const hn::RebindToSigned<DF> signed_words;
  const auto first = hn::BitCast(words, hn::ConvertTo(signed_words, choose(0, 2, 4)));
  const auto code =
      hn::Add(hn::Sub(hn::BitCast(words, rounded), hn::BitCast(words, integers)), first);
  return hn::Min(code, hn::Set(words, 7));
}

struct QuantizeNvfp4Group {
  std::uint8_t* target;  ///< two channels a byte
  const std::uint16_t* source;
  float divisor;

  template <Store kStore, class D>
  HWY_INLINE void vector(D d, std::size_t i) const {
    const FloatTag<D> floats;
    const WordTag<D> words;
    const hn::Rebind<std::uint8_t, FloatTag<D>> bytes;
    const auto value = Bfloat16::widen(d, hn::LoadU(d, source + i));
    const auto by = hn::Set(floats, divisor);
    const auto code = [&](auto channel) {
      const auto sign = hn::And(hn::ShiftRight<28>(hn::BitCast(words, channel)), hn::Set(words, 8));
      return hn::Or(encode_e2m1_word(floats, hn::Div(hn::Abs(channel), by)), sign);
    };
    const auto pair = hn::Or(code(value.even), hn::ShiftLeft<4>(code(value.odd)));
    hn::StoreU(hn::TruncateTo(bytes, pair), bytes, target + i / 2);
  }

  /// Encodes two channels where `i` is even. A group has whole vectors or none.
  void scalar(std::size_t i) const {
    if (i % 2 != 0) return;
    target[i / 2] = static_cast<std::uint8_t>(numeric::encode_nvfp4(source[i], divisor) |
                                              numeric::encode_nvfp4(source[i + 1], divisor) << 4);
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

void QuantizeMxfp8RowKernel(std::uint8_t* target, std::uint8_t* scales, const std::uint16_t* source,
                            std::size_t channels) {
  for (std::size_t first = 0; first < channels; first += numeric::kMxGroup) {
    const std::size_t count = HWY_MIN(numeric::kMxGroup, channels - first);
    const std::uint16_t largest = largest_magnitude(source + first, count);
    const numeric::MxScale scale = numeric::mx_scale(Bfloat16::to_float(largest));
    *scales++ = scale.code;
    if (largest >= 0x7f80)
      std::memset(target + first, numeric::kE4m3Nan, count);
    else
      walk_row<Store::cached>(Tag16(), Tag16x8(), target, count,
                              QuantizeGroup{target + first, source + first, scale.quantize});
  }
}

void QuantizeNvfp4RowKernel(std::uint8_t* target, std::uint8_t* scales, const std::uint16_t* source,
                            std::size_t channels, float global) {
  for (std::size_t first = 0; first < channels; first += numeric::kNvfp4Group) {
    const std::uint16_t largest = largest_magnitude(source + first, numeric::kNvfp4Group);
    const numeric::Nvfp4Scale scale = numeric::nvfp4_scale(Bfloat16::to_float(largest), global);
    *scales++ = scale.code;
    const QuantizeNvfp4Group group{target + first / 2, source + first, scale.divisor};
    if (largest >= 0x7f80)
      for (std::size_t i = 0; i < numeric::kNvfp4Group; ++i) group.scalar(i);
    else
      walk_row<Store::cached>(Tag16(), Tag16x8(), target, numeric::kNvfp4Group, group);
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
HWY_EXPORT(QuantizeMxfp8RowKernel);
HWY_EXPORT(QuantizeNvfp4RowKernel);
HWY_EXPORT(DequantizeRowKernel);

void quantize_row(std::uint8_t* target, float* inverse_scales, const std::uint16_t* source,
                  std::size_t channels, ScaleForm form) {
  const auto rounding = form == ScaleForm::power_of_two ? numeric::ScaleRounding::power_of_two
                                                        : numeric::ScaleRounding::none;
  HWY_DYNAMIC_DISPATCH(QuantizeRowKernel)(target, inverse_scales, source, channels, rounding);
}

void quantize_mxfp8_row(std::uint8_t* target, std::uint8_t* scales, const std::uint16_t* source,
                        std::size_t channels) {
  HWY_DYNAMIC_DISPATCH(QuantizeMxfp8RowKernel)(target, scales, source, channels);
}

void quantize_nvfp4_row(std::uint8_t* target, std::uint8_t* scales, const std::uint16_t* source,
                        std::size_t channels, float global) {
  HWY_DYNAMIC_DISPATCH(QuantizeNvfp4RowKernel)(target, scales, source, channels, global);
}

void encode_row(Quantize quantize, float global, std::uint8_t* codes, std::byte* scales,
                const std::uint16_t* source, std::size_t channels) {
  auto* const bytes = reinterpret_cast<std::uint8_t*>(scales);
  if (quantize == Quantize::mxfp8) return quantize_mxfp8_row(codes, bytes, source, channels);
  if (quantize == Quantize::nvfp4)
    return quantize_nvfp4_row(codes, bytes, source, channels, global);
  quantize_row(codes, reinterpret_cast<float*>(scales), source, channels,
               quantize == Quantize::fp8 ? ScaleForm::plain : ScaleForm::power_of_two);
}

void dequantize_row(std::uint16_t* target, const std::uint8_t* source, const float* inverse_scales,
                    std::size_t channels) {
  HWY_DYNAMIC_DISPATCH(DequantizeRowKernel)(target, source, inverse_scales, channels);
}

}  // namespace shoal::ep::host
#endif
