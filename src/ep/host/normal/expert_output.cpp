// SPDX-License-Identifier: Apache-2.0
#include "ep/host/normal/expert_output.hpp"
#include "ep/group/aligned_rows.hpp"

#include <array>

#include "base/check.hpp"
#include "ep/host/rows/row_ops.hpp"

namespace shoal::ep::host {
namespace {

void check_topk_rows(const ConstTensorView& topk_rows, std::int64_t rows) {
  const std::int64_t top_k = topk_rows.shape[1];
  for (std::int64_t i = 0; i < topk_rows.size(); ++i) {
    const std::int32_t row = topk_rows.as<std::int32_t>()[i];
    require(row >= -1 && row < rows, Code::invalid_argument,
            "SHOAL-N544: combine: CombineOptions.topk_rows[{}, {}] is {}; allowed: -1 to {}",
            i / top_k, i % top_k, row, rows - 1);
  }
}

/// float32, top-k slots ascending, rounded once.
Tensor sums_of(const ConstTensorView& y, const ConstTensorView& topk_rows, std::byte* at,
               Store store, WorkerPool* workers) {
  const std::int64_t rows = topk_rows.shape[0], top_k = topk_rows.shape[1], hidden = y.shape[1];
  const std::size_t row_bytes = static_cast<std::size_t>(hidden) * size_of(y.dtype);
  Tensor sums = at == nullptr ? Tensor::empty(y.dtype, {rows, hidden})
                              : Tensor(TensorView(at, y.dtype, {rows, hidden}), nullptr);
  const auto add = [&](std::int64_t first, std::int64_t last) {
    std::array<const void*, kMaxTopK> parts;
    for (std::int64_t row = first; row < last; ++row) {
      std::size_t count = 0;
      for (std::int64_t slot = 0; slot < top_k; ++slot)
        if (const std::int32_t from = topk_rows.as<std::int32_t>()[row * top_k + slot]; from >= 0)
          parts[count++] = y.as<std::byte>() + from * row_bytes;
      sum_rows(y.dtype, sums.as<std::byte>() + row * row_bytes, {parts.data(), count}, nullptr,
               nullptr, static_cast<std::size_t>(hidden), store);
    }
  };
  if (workers != nullptr)
    workers->for_ranges(rows, add);
  else
    add(0, rows);
  flush_streamed_rows();
  return sums;
}

Tensor weights_of(const CombineOptions& options) {
  const ConstTensorView& by_slot =
      options.topk_rows.defined() ? options.topk_rows : options.topk_idx;
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

ExpertOutput prepare_expert_output(const ConstTensorView& y, const CombineOptions& options,
                                   std::byte* sums, Store store, WorkerPool* workers) {
  if (options.topk_rows.defined()) check_topk_rows(options.topk_rows, y.shape[0]);
  ExpertOutput output;
  output.y = options.topk_rows.defined() ? sums_of(y, options.topk_rows, sums, store, workers)
                                         : detail::for_reading(y);
  if (options.weights.defined())
    output.weights = options.topk_rows.defined() || options.topk_idx.defined()
                         ? weights_of(options)
                         : detail::for_reading(options.weights);
  return output;
}

}  // namespace shoal::ep::host
