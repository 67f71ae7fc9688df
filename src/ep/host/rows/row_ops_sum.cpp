// SPDX-License-Identifier: Apache-2.0
// row_ops_sum.cpp: sums of token rows. All rows are added in registers, one vector of channels at a
// time, so each row is read once and the target is written once. Sums start at +0, so a sum of
// negative zeros is +0 for any number of rows.
//
// Compiled without floating-point contraction: a fused multiply-add would give other bits than the
// backends that round both operations.
#include "ep/host/rows/row_ops.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ep/host/rows/row_ops_sum.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include "ep/host/rows/row_ops_simd-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace shoal::ep::host::HWY_NAMESPACE {

// Each row is a separate stream; a sum reads more streams than the hardware prefetchers follow.
constexpr std::size_t kPrefetchBytes = 512;

template <class Element>
HWY_INLINE void prefetch(const Element* row, std::size_t index) {
  hwy::Prefetch(reinterpret_cast<const std::uint8_t*>(row + index) + kPrefetchBytes);
}

template <class Format>
struct SumRows {
  std::uint16_t* target;
  std::span<const void* const> rows;
  const std::uint16_t* biases[2];

  template <Store kStore, class D>
  HWY_INLINE void vector(D d, std::size_t i) const {
    const FloatTag<D> floats;
    auto even = hn::Zero(floats), odd = hn::Zero(floats);
    const auto add = [&](const std::uint16_t* row) HWY_ATTR {
      prefetch(row, i);
      const auto value = Format::widen(d, hn::LoadU(d, row + i));
      even = hn::Add(even, value.even);
      odd = hn::Add(odd, value.odd);
    };
    for (const std::uint16_t* bias : biases)
      if (bias != nullptr) add(bias);
    for (const void* row : rows) add(static_cast<const std::uint16_t*>(row));
    store_vector<kStore>(d, Format::narrow(d, even, odd), target + i);
  }

  void scalar(std::size_t i) const {
    float sum = 0;
    for (const std::uint16_t* bias : biases)
      if (bias != nullptr) sum += Format::to_float(bias[i]);
    for (const void* row : rows) sum += Format::to_float(static_cast<const std::uint16_t*>(row)[i]);
    target[i] = Format::from_float(sum);
  }
};

struct SumRowsFloat32 {
  float* target;
  std::span<const void* const> rows;
  const float* biases[2];

  template <Store kStore, class D>
  HWY_INLINE void vector(D d, std::size_t i) const {
    auto sum = hn::Zero(d);
    for (const float* bias : biases)
      if (bias != nullptr) sum = hn::Add(sum, hn::LoadU(d, bias + i));
    for (const void* row : rows) {
      prefetch(static_cast<const float*>(row), i);
      sum = hn::Add(sum, hn::LoadU(d, static_cast<const float*>(row) + i));
    }
    store_vector<kStore>(d, sum, target + i);
  }

  void scalar(std::size_t i) const {
    float sum = 0;
    for (const float* bias : biases)
      if (bias != nullptr) sum += bias[i];
    for (const void* row : rows) sum += static_cast<const float*>(row)[i];
    target[i] = sum;
  }
};

struct WeightedSum {
  std::uint16_t* target;
  std::span<const std::uint16_t* const> rows;
  std::span<const float> weights;

  template <Store kStore, class D>
  HWY_INLINE void vector(D d, std::size_t i) const {
    const auto sum = group(d, i, 0, rows.size());
    store_vector<kStore>(d, Bfloat16::narrow(d, sum.even, sum.odd), target + i);
  }

  void scalar(std::size_t i) const { target[i] = Bfloat16::from_float(group(i, 0, rows.size())); }

  template <class D>
  HWY_INLINE FloatHalves<D> group(D d, std::size_t i, std::size_t first, std::size_t end) const {
    const FloatTag<D> floats;
    auto even = hn::Zero(floats), odd = hn::Zero(floats);
    for (std::size_t r = first; r < end; ++r) {
      prefetch(rows[r], i);
      const auto value = Bfloat16::widen(d, hn::LoadU(d, rows[r] + i));
      const auto weight = hn::Set(floats, weights[r]);
      even = hn::Add(even, hn::Mul(weight, value.even));
      odd = hn::Add(odd, hn::Mul(weight, value.odd));
    }
    return {even, odd};
  }

  float group(std::size_t i, std::size_t first, std::size_t end) const {
    float sum = 0;
    for (std::size_t r = first; r < end; ++r)
      sum = numeric::accumulate(sum, weights[r], Bfloat16::to_float(rows[r][i]));
    return sum;
  }
};

struct LeveledWeightedSum {
  WeightedSum terms;
  std::span<const std::int32_t> ends;

  template <Store kStore, class D>
  HWY_INLINE void vector(D d, std::size_t i) const {
    const FloatTag<D> floats;
    auto even = hn::Zero(floats), odd = hn::Zero(floats);
    std::size_t first = 0;
    for (const std::int32_t end : ends) {
      const auto sum = terms.group(d, i, first, static_cast<std::size_t>(end));
      const auto rounded = Bfloat16::widen(d, Bfloat16::narrow(d, sum.even, sum.odd));
      even = hn::Add(even, rounded.even);
      odd = hn::Add(odd, rounded.odd);
      first = static_cast<std::size_t>(end);
    }
    store_vector<kStore>(d, Bfloat16::narrow(d, even, odd), terms.target + i);
  }

  void scalar(std::size_t i) const {
    float sum = 0;
    std::size_t first = 0;
    for (const std::int32_t end : ends) {
      sum += Bfloat16::to_float(
          Bfloat16::from_float(terms.group(i, first, static_cast<std::size_t>(end))));
      first = static_cast<std::size_t>(end);
    }
    terms.target[i] = Bfloat16::from_float(sum);
  }
};

template <class DWide, class DNarrow, class Kernel>
HWY_INLINE void walk(DWide wide, DNarrow narrow, void* target, std::size_t count, Store mode,
                     const Kernel& kernel) {
  if (mode == Store::streamed)
    walk_row<Store::streamed>(wide, narrow, target, count, kernel);
  else
    walk_row<Store::cached>(wide, narrow, target, count, kernel);
}

template <class Format>
HWY_INLINE void sum_rows16(void* target, std::span<const void* const> rows, const void* bias0,
                           const void* bias1, std::size_t channels, Store mode) {
  auto* const output = static_cast<std::uint16_t*>(target);
  walk(Tag16(), Tag16x8(), output, channels, mode,
       SumRows<Format>{
           output,
           rows,
           {static_cast<const std::uint16_t*>(bias0), static_cast<const std::uint16_t*>(bias1)}});
}

void SumRowsBfloat16Kernel(void* target, std::span<const void* const> rows, const void* bias0,
                           const void* bias1, std::size_t channels, Store mode) {
  sum_rows16<Bfloat16>(target, rows, bias0, bias1, channels, mode);
}

void SumRowsFloat16Kernel(void* target, std::span<const void* const> rows, const void* bias0,
                          const void* bias1, std::size_t channels, Store mode) {
  sum_rows16<Float16>(target, rows, bias0, bias1, channels, mode);
}

void SumRowsFloat32Kernel(void* target, std::span<const void* const> rows, const void* bias0,
                          const void* bias1, std::size_t channels, Store mode) {
  auto* const output = static_cast<float*>(target);
  walk(Tag32f(), Tag32fx4(), output, channels, mode,
       SumRowsFloat32{
           output, rows, {static_cast<const float*>(bias0), static_cast<const float*>(bias1)}});
}

void WeightedSumKernel(std::uint16_t* target, std::span<const std::uint16_t* const> rows,
                       std::span<const float> weights, std::span<const std::int32_t> level_ends,
                       std::size_t channels, Store mode) {
  const WeightedSum terms{target, rows, weights};
  if (level_ends.empty())
    walk(Tag16(), Tag16x8(), target, channels, mode, terms);
  else
    walk(Tag16(), Tag16x8(), target, channels, mode, LeveledWeightedSum{terms, level_ends});
}

}  // namespace shoal::ep::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shoal::ep::host {

HWY_EXPORT(SumRowsBfloat16Kernel);
HWY_EXPORT(SumRowsFloat16Kernel);
HWY_EXPORT(SumRowsFloat32Kernel);
HWY_EXPORT(WeightedSumKernel);

void sum_rows(DataType dtype, void* target, std::span<const void* const> rows, const void* bias0,
              const void* bias1, std::size_t channels, Store store) {
  switch (dtype) {
    case DataType::float16:
      return HWY_DYNAMIC_DISPATCH(SumRowsFloat16Kernel)(target, rows, bias0, bias1, channels,
                                                        store);
    case DataType::float32:
      return HWY_DYNAMIC_DISPATCH(SumRowsFloat32Kernel)(target, rows, bias0, bias1, channels,
                                                        store);
    default:
      return HWY_DYNAMIC_DISPATCH(SumRowsBfloat16Kernel)(target, rows, bias0, bias1, channels,
                                                         store);
  }
}

void weighted_sum_rows(std::uint16_t* target, std::span<const std::uint16_t* const> rows,
                       std::span<const float> weights, std::span<const std::int32_t> level_ends,
                       std::size_t channels, Store store) {
  HWY_DYNAMIC_DISPATCH(WeightedSumKernel)(target, rows, weights, level_ends, channels, store);
}

}  // namespace shoal::ep::host
#endif
