// SPDX-License-Identifier: Apache-2.0
// row_ops_simd-inl.hpp: shared by the row operations: 16-bit floats as pairs of float32 vectors,
// stores, and the loop over a row.
//
// Included once per instruction set by each row_ops*.cpp (Highway's foreach_target), so it has
// Highway's toggling guard. A vector of 16-bit floats becomes two of float32: its even and its odd
// elements. That needs shifts and masks but no permutation across lanes.

#if defined(SHOAL_EP_HOST_ROW_OPS_SIMD_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef SHOAL_EP_HOST_ROW_OPS_SIMD_INL_HPP
#undef SHOAL_EP_HOST_ROW_OPS_SIMD_INL_HPP
#else
#define SHOAL_EP_HOST_ROW_OPS_SIMD_INL_HPP
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

#include "ep/host/rows/row_ops.hpp"
#include "ep/numeric/numeric.hpp"

HWY_BEFORE_NAMESPACE();
namespace shoal::ep::host::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Tag16 = hn::ScalableTag<std::uint16_t>;
using Tag16x8 = hn::CappedTag<std::uint16_t, 8>;  // 16 bytes, the alignment of rows
using Tag32f = hn::ScalableTag<float>;
using Tag32fx4 = hn::CappedTag<float, 4>;

template <class Vector>
struct Halves {
  Vector even, odd;
};

template <class D16>
using WordTag = hn::RepartitionToWide<D16>;
template <class D16>
using FloatTag = hn::RebindToFloat<WordTag<D16>>;
template <class D16>
using FloatHalves = Halves<hn::Vec<FloatTag<D16>>>;

template <class D16, class V16>
HWY_INLINE Halves<hn::Vec<WordTag<D16>>> split(D16, V16 v) {
  const WordTag<D16> words;
  const auto both = hn::BitCast(words, v);
  return {hn::And(both, hn::Set(words, 0xffff)), hn::ShiftRight<16>(both)};
}

/// The inverse of split; the upper 16 bits of `even` must be zero.
template <class D16, class Words>
HWY_INLINE hn::Vec<D16> join(D16 d, Words even, Words odd) {
  return hn::BitCast(d, hn::Or(even, hn::ShiftLeft<16>(odd)));
}

/// The formats give the same bits as the functions of numeric/ that they name.
struct Bfloat16 {
  using Element = std::uint16_t;
  static float to_float(Element value) { return numeric::to_float(numeric::Bf16{value}); }
  static Element from_float(float value) { return numeric::to_bf16(value).bits; }

  template <class D16, class V16>
  static HWY_INLINE FloatHalves<D16> widen(D16, V16 v) {
    const WordTag<D16> words;
    const FloatTag<D16> floats;
    const auto both = hn::BitCast(words, v);
    return {hn::BitCast(floats, hn::ShiftLeft<16>(both)),
            hn::BitCast(floats, hn::And(both, hn::Set(words, 0xffff0000u)))};
  }

  /// The rounded value in the upper 16 bits; the lower bits are not part of it.
  template <class DF, class VF>
  static HWY_INLINE hn::Vec<hn::RebindToUnsigned<DF>> round_word(DF floats, VF value) {
    const hn::RebindToUnsigned<DF> words;
    const auto bits = hn::BitCast(words, value);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(words, 1));
    const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(words, 0x7fff)));
    const auto is_nan = hn::RebindMask(words, hn::Ne(value, value));
    (void)floats;
    return hn::IfThenElse(is_nan, hn::Or(bits, hn::Set(words, 0x400000)), rounded);
  }

  template <class D16, class VF>
  static HWY_INLINE hn::Vec<D16> narrow(D16 d, VF even, VF odd) {
    const FloatTag<D16> floats;
    const WordTag<D16> words;
    return hn::BitCast(d, hn::Or(hn::ShiftRight<16>(round_word(floats, even)),
                                 hn::And(round_word(floats, odd), hn::Set(words, 0xffff0000u))));
  }
};

struct Float16 {
  using Element = std::uint16_t;
  static float to_float(Element value) { return numeric::to_float(numeric::Fp16{value}); }
  static Element from_float(float value) { return numeric::to_fp16(value).bits; }

  template <class D16, class V16>
  static HWY_INLINE FloatHalves<D16> widen(D16 d, V16 v) {
    const auto parts = split(d, v);
    return {widen_word(WordTag<D16>(), parts.even), widen_word(WordTag<D16>(), parts.odd)};
  }

  template <class D16, class VF>
  static HWY_INLINE hn::Vec<D16> narrow(D16 d, VF even, VF odd) {
    return join(d, narrow_word(FloatTag<D16>(), even), narrow_word(FloatTag<D16>(), odd));
  }

 private:
  template <class DW, class VW>
  static HWY_INLINE hn::Vec<hn::RebindToFloat<DW>> widen_word(DW words, VW half) {
    const hn::RebindToFloat<DW> floats;
    const hn::RebindToSigned<DW> integers;
    const auto sign = hn::ShiftLeft<16>(hn::And(half, hn::Set(words, 0x8000)));
    const auto magnitude = hn::And(half, hn::Set(words, 0x7fff));
    const auto shifted = hn::ShiftLeft<13>(magnitude);
    const auto normal = hn::Add(shifted, hn::Set(words, 112u << 23));
    const auto units = hn::ConvertTo(floats, hn::BitCast(integers, magnitude));
    const auto subnormal = hn::BitCast(words, hn::Mul(units, hn::Set(floats, 0x1p-24f)));
    auto result = hn::IfThenElse(hn::Lt(magnitude, hn::Set(words, 0x400)), subnormal, normal);
    result = hn::IfThenElse(hn::Gt(magnitude, hn::Set(words, 0x7bff)),
                            hn::Or(shifted, hn::Set(words, 0x7f800000u)), result);
    return hn::BitCast(floats, hn::Or(sign, result));
  }

  template <class DF, class VF>
  static HWY_INLINE hn::Vec<hn::RebindToUnsigned<DF>> narrow_word(DF floats, VF value) {
    const hn::RebindToUnsigned<DF> words;
    const auto bits = hn::BitCast(words, value);
    const auto sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(words, 0x8000));
    const auto magnitude = hn::And(bits, hn::Set(words, 0x7fffffffu));
    const auto upper = hn::ShiftRight<13>(magnitude);
    // The unit in the last place of 0.5f is 2^-24, that of float16 subnormals: the addition rounds
    // as float16 would.
    const auto subnormal =
        hn::Sub(hn::BitCast(words, hn::Add(hn::BitCast(floats, magnitude), hn::Set(floats, 0.5f))),
                hn::Set(words, 0x3f000000u));
    const auto rebias_and_half = hn::Set(words, 0xfffu - (112u << 23));
    const auto normal = hn::ShiftRight<13>(
        hn::Add(hn::Add(magnitude, rebias_and_half), hn::And(upper, hn::Set(words, 1))));
    const auto nan = hn::Or(hn::Set(words, 0x7e00), hn::And(upper, hn::Set(words, 0x3ff)));
    auto result = hn::IfThenElse(hn::Lt(magnitude, hn::Set(words, 0x38800000u)), subnormal, normal);
    result = hn::IfThenElse(hn::Gt(magnitude, hn::Set(words, 0x477fefffu)), hn::Set(words, 0x7c00),
                            result);
    result = hn::IfThenElse(hn::Gt(magnitude, hn::Set(words, 0x7f800000u)), nan, result);
    return hn::Or(sign, result);
  }
};

template <Store kStore, class D, class V>
HWY_INLINE void store_vector(D d, V v, hn::TFromD<D>* target) {
  if constexpr (kStore == Store::streamed)
    hn::Stream(v, d, target);
  else
    hn::StoreU(v, d, target);
}

/// Walks `count` elements: vectors of `wide` where the target allows it, vectors of `narrow` (16
/// bytes) and single elements around them. Streamed stores need a target aligned to the vector, so
/// a row that starts elsewhere begins with cached stores. `kernel` has vector<Store>(d, index),
/// which does Lanes(d) elements, and scalar(index).
template <Store kStore, class DWide, class DNarrow, class Kernel>
HWY_INLINE void walk_row(DWide wide, DNarrow narrow, const void* target, std::size_t count,
                         const Kernel& kernel) {
  std::size_t i = 0;
  if constexpr (HWY_TARGET != HWY_SCALAR) {
    const std::size_t step = hn::Lanes(wide);
    const std::size_t small_step = hn::Lanes(narrow);
    if constexpr (kStore == Store::streamed) {
      const std::size_t misaligned =
          reinterpret_cast<std::uintptr_t>(target) / sizeof(hn::TFromD<DWide>) % step;
      const std::size_t head = misaligned == 0 ? 0 : HWY_MIN(step - misaligned, count);
      for (; i + small_step <= head; i += small_step)
        kernel.template vector<Store::cached>(narrow, i);
      for (; i < head; ++i) kernel.scalar(i);
    }
    for (; i + step <= count; i += step) kernel.template vector<kStore>(wide, i);
    for (; i + small_step <= count; i += small_step)
      kernel.template vector<Store::cached>(narrow, i);
  }
  for (; i < count; ++i) kernel.scalar(i);
}

}  // namespace shoal::ep::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
