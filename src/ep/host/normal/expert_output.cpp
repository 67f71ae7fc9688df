// SPDX-License-Identifier: Apache-2.0
#include "ep/host/normal/expert_output.hpp"

#include <algorithm>
#include <vector>

#include "base/check.hpp"
#include "ep/numeric/arithmetic.hpp"
#include "ep/numeric/float16.hpp"

namespace shoal::ep::host {
namespace {

float value_of(float element) {
  return element;
}
float value_of(numeric::Bf16 element) {
  return numeric::to_float(element);
}
float value_of(numeric::Fp16 element) {
  return numeric::to_float(element);
}

void round_to(float& element, float value) {
  element = value;
}
void round_to(numeric::Bf16& element, float value) {
  element = numeric::to_bf16(value);
}
void round_to(numeric::Fp16& element, float value) {
  element = numeric::to_fp16(value);
}

void check_topk_rows(const TensorView& topk_rows, std::int64_t rows) {
  const std::int64_t top_k = topk_rows.shape[1];
  for (std::int64_t i = 0; i < topk_rows.size(); ++i) {
    const std::int32_t row = topk_rows.as<std::int32_t>()[i];
    require(row >= -1 && row < rows, Code::invalid_argument,
            "combine: CombineOptions.topk_rows[{}, {}] is {}; allowed: -1 to {}", i / top_k,
            i % top_k, row, rows - 1);
  }
}

/// float32, top-k slots ascending, rounded once.
template <typename T>
Tensor sum_rows(const TensorView& y, const TensorView& topk_rows) {
  const std::int64_t rows = topk_rows.shape[0], top_k = topk_rows.shape[1], hidden = y.shape[1];
  Tensor sums = Tensor::empty(y.dtype, {rows, hidden});
  std::vector<float> sum(static_cast<std::size_t>(hidden));
  for (std::int64_t row = 0; row < rows; ++row) {
    std::fill(sum.begin(), sum.end(), 0.0F);
    for (std::int64_t slot = 0; slot < top_k; ++slot) {
      const std::int32_t from = topk_rows.as<std::int32_t>()[row * top_k + slot];
      if (from < 0) continue;
      const T* const values = y.as<T>() + from * hidden;
      for (std::int64_t c = 0; c < hidden; ++c) sum[c] = numeric::add(sum[c], value_of(values[c]));
    }
    T* const out = sums.as<T>() + row * hidden;
    for (std::int64_t c = 0; c < hidden; ++c) round_to(out[c], sum[c]);
  }
  return sums;
}

Tensor sum_rows_of(const TensorView& y, const TensorView& topk_rows) {
  switch (y.dtype) {
    case DataType::bfloat16:
      return sum_rows<numeric::Bf16>(y, topk_rows);
    case DataType::float16:
      return sum_rows<numeric::Fp16>(y, topk_rows);
    default:
      return sum_rows<float>(y, topk_rows);
  }
}

Tensor weights_of(const CombineOptions& options) {
  const TensorView& by_slot = options.topk_rows.defined() ? options.topk_rows : options.topk_idx;
  const std::int64_t rows = by_slot.shape[0], top_k = by_slot.shape[1];
  Tensor weights = Tensor::empty(DataType::float32, {rows, top_k});
  const auto* const from = options.weights.as<float>();
  for (std::int64_t i = 0; i < rows * top_k; ++i) {
    float weight = 0;
    if (options.topk_rows.defined()) {
      const std::int32_t row = options.topk_rows.as<std::int32_t>()[i];
      if (row >= 0) weight = from[row];
    } else if (options.topk_idx.as<std::int64_t>()[i] >= 0) {
      weight = from[i / top_k * options.weights.strides[0] + i % top_k];
    }
    weights.as<float>()[i] = weight;
  }
  return weights;
}

}  // namespace

ExpertOutput prepare_expert_output(const TensorView& y, const CombineOptions& options) {
  if (options.topk_rows.defined()) check_topk_rows(options.topk_rows, y.shape[0]);
  ExpertOutput output;
  output.y = options.topk_rows.defined() ? sum_rows_of(y, options.topk_rows) : Tensor(y, nullptr);
  if (options.weights.defined())
    output.weights = options.topk_rows.defined() || options.topk_idx.defined()
                         ? weights_of(options)
                         : Tensor(options.weights, nullptr);
  return output;
}

}  // namespace shoal::ep::host
