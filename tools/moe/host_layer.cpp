// SPDX-License-Identifier: Apache-2.0
#include <span>

#include "ep/numeric/rows.hpp"
#include "moe/experts.hpp"
#include "moe/layer.hpp"

namespace shoal::moe {

namespace {

namespace numeric = ep::numeric;
using numeric::Bf16;

/// Reads received rows of either format as float32.
class RowReader {
 public:
  RowReader(const TensorView& x, const TensorView& scales)
      : x_(x),
        scales_(scales),
        values_(static_cast<std::size_t>(x.shape[x.rank - 1])),
        row_scales_(numeric::group_count(values_.size())) {}

  /// Row `row` of expert `expert`, which is 0 in normal mode.
  const float* operator()(std::int64_t expert, std::int64_t row) {
    const std::int64_t at = offset(x_, expert, row);
    if (x_.dtype == DataType::bfloat16) {
      for (std::size_t i = 0; i < values_.size(); ++i)
        values_[i] = numeric::to_float((x_.as<Bf16>() + at)[i]);
      return values_.data();
    }
    const float* const scales = scales_.as<float>() + offset(scales_, expert, row);
    const std::int64_t step = scales_.strides[scales_.rank - 1];
    for (std::size_t g = 0; g < row_scales_.size(); ++g)
      row_scales_[g] = scales[static_cast<std::int64_t>(g) * step];
    numeric::dequantize_row({x_.as<std::uint8_t>() + at, values_.size()}, row_scales_,
                            std::span<float>(values_));
    return values_.data();
  }

 private:
  static std::int64_t offset(const TensorView& rows, std::int64_t expert, std::int64_t row) {
    return (rows.rank == 3 ? expert * rows.strides[0] : 0) + row * rows.strides[rows.rank - 2];
  }
  const TensorView x_, scales_;
  std::vector<float> values_, row_scales_;
};

void store_rounded(std::span<const float> values, Bf16* target) {
  for (std::size_t i = 0; i < values.size(); ++i) target[i] = numeric::to_bf16(values[i]);
}

class HostLayer final : public Layer {
 public:
  HostLayer(const Team& team, const Options& options, const Shape& shape, const Inputs& inputs)
      : Layer(team, options, shape, inputs), feed_forward_(shape) {
    for (std::int32_t e = 0; e < shape.experts_of(team.my_pe()); ++e)
      weights_.push_back(load_weights(options, shape, first_expert() + e));
  }

 private:
  ExpertOutput apply_experts(const ep::Dispatched& rows) override;
  void apply_experts(const ep::LowLatencyReceived& rows, const TensorView& y) override;

  FeedForward<float> feed_forward_;
  std::vector<std::vector<float>> weights_;  // of this PE's experts
};

/// The output of a row is the weighted sum over this PE's experts.
HostLayer::ExpertOutput HostLayer::apply_experts(const ep::Dispatched& rows) {
  struct Assignment {
    std::int64_t row;
    float weight;
  };
  const std::int64_t hidden = shape_.hidden, top_k = shape_.gate.top_k;
  std::vector<std::vector<Assignment>> of_expert(weights_.size());
  for (std::int64_t i = 0; i < *rows.rows * top_k; ++i)
    if (const std::int64_t expert = rows.topk_idx->as<std::int64_t>()[i]; expert >= 0)
      of_expert[static_cast<std::size_t>(expert)].push_back(
          {i / top_k, rows.topk_weights->as<float>()[i]});

  RowReader read(rows.x, rows.scales.value_or(Tensor()));
  std::vector<float> sums(static_cast<std::size_t>(*rows.rows * hidden));
  for (std::size_t e = 0; e < weights_.size(); ++e)
    for (const auto [row, weight] : of_expert[e]) {
      const std::vector<float>& y = feed_forward_(weights_[e], read(0, row));
      float* const sum = sums.data() + row * hidden;
      for (std::size_t i = 0; i < y.size(); ++i) sum[i] += weight * y[i];
    }
  // bfloat16 rows are overwritten in place, so combine reads the expert output there without a
  // copy.
  const Tensor y = rows.x.dtype == DataType::bfloat16
                       ? rows.x
                       : Tensor::empty(DataType::bfloat16, {*rows.rows, hidden});
  store_rounded(sums, y.as<Bf16>());
  return {y, {}};
}

void HostLayer::apply_experts(const ep::LowLatencyReceived& rows, const TensorView& y) {
  RowReader read(rows.x, rows.scales.value_or(Tensor()));
  for (std::size_t e = 0; e < weights_.size(); ++e) {
    const auto expert = static_cast<std::int64_t>(e);
    for (std::int64_t row = 0; row < expert_load_[e]; ++row)
      // Rows of y are strided: their distance exceeds their length.
      store_rounded(feed_forward_(weights_[e], read(expert, row)),
                    y.as<Bf16>() + expert * y.strides[0] + row * y.strides[1]);
  }
}

}  // namespace

std::unique_ptr<Layer> make_host_layer(const Team& team, const Options& options, const Shape& shape,
                                       const Inputs& inputs) {
  return std::make_unique<HostLayer>(team, options, shape, inputs);
}

}  // namespace shoal::moe
