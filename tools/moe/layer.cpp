// SPDX-License-Identifier: Apache-2.0
#include "moe/layer.hpp"

#include <chrono>
#include <span>

#include "base/check.hpp"
#include "ep/numeric/rows.hpp"
#include "memory/device.hpp"
#include "shoal/collective.hpp"
#ifdef SHOAL_WITH_CUDA
#include "moe/cuda/blas.hpp"
#include "moe/cuda/layer.hpp"
#endif

namespace shoal::moe {

namespace {

using ep::numeric::Bf16;
namespace numeric = ep::numeric;

/// Runs `call` and records its duration.
template <typename Call>
auto timed(PhaseTimes& times, const char* phase, Call call) {
  const auto start = std::chrono::steady_clock::now();
  auto result = call();
  times.emplace_back(
      phase,
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
  return result;
}

ep::GroupOptions group_options(const Options& options, const Shape& shape) {
  ep::GroupOptions group;
  group.hidden = shape.hidden;
  group.top_k = shape.gate.top_k;
  group.experts = shape.gate.experts;
  (options.mode == Mode::normal ? group.max_tokens : group.low_latency_max_tokens) =
      shape.max_tokens();
  return group;
}

/// Reads rows of either format as float32.
class RowReader {
 public:
  RowReader(const Tensor& x, std::size_t hidden)
      : x_(x), values_(hidden), scales_(numeric::group_count(hidden)) {}

  /// Row `row`, counted over all but the last dimension. For float8 rows, `scale_of(g)` is the
  /// dequantisation scale of channel group g.
  template <typename ScaleOf>
  const float* operator()(std::size_t row, ScaleOf scale_of) {
    if (x_.dtype == DataType::bfloat16) {
      const Bf16* source = x_.as<Bf16>() + row * values_.size();
      for (std::size_t i = 0; i < values_.size(); ++i) values_[i] = numeric::to_float(source[i]);
    } else {
      for (std::size_t g = 0; g < scales_.size(); ++g) scales_[g] = scale_of(g);
      numeric::dequantize_row({x_.as<std::uint8_t>() + row * values_.size(), values_.size()},
                              scales_, std::span<float>(values_));
    }
    return values_.data();
  }

 private:
  const Tensor& x_;
  std::vector<float> values_, scales_;
};

void store_rounded(std::span<const float> values, Bf16* target) {
  for (std::size_t i = 0; i < values.size(); ++i) target[i] = numeric::to_bf16(values[i]);
}

class HostLayer final : public Layer {
 public:
  HostLayer(const Team& team, const Options& options, const Shape& shape, const Inputs& inputs);
  Tensor run(PhaseTimes& times) override;

 private:
  struct Row {
    std::size_t row;
    float weight;
  };

  Tensor run_normal(PhaseTimes& times);
  Tensor run_low_latency(PhaseTimes& times);
  void quantize_tokens(Tensor& codes, Tensor& scales) const;
  /// Returns the expert output for the rows of a normal-mode dispatch: per row, the weighted sum
  /// over this PE's experts. Overwrites the rows where possible.
  Tensor apply_experts(const ep::Dispatched& rows);
  void apply_experts(const ep::LowLatencyReceived& rows, const TensorView& y);
  TensorView tokens_view() const {
    return {inputs_.x.data(), DataType::bfloat16, {tokens(), shape_.hidden}};
  }

  FeedForward<float> feed_forward_;
  std::vector<ExpertWeights> experts_;
};

HostLayer::HostLayer(const Team& team, const Options& options, const Shape& shape,
                     const Inputs& inputs)
    : Layer(team, options, shape, inputs), feed_forward_(shape) {
  WeightSource weights(options, shape);
  for (std::int32_t e = 0; e < shape.local_experts(); ++e)
    experts_.push_back(weights.load(first_expert() + e));
}

Tensor HostLayer::run(PhaseTimes& times) {
  times.clear();
  run_gate(times);
  return options_.mode == Mode::normal ? run_normal(times) : run_low_latency(times);
}

void HostLayer::quantize_tokens(Tensor& codes, Tensor& scales) const {
  const auto hidden = static_cast<std::size_t>(shape_.hidden),
             groups = numeric::group_count(hidden);
  codes = Tensor::empty(DataType::float8_e4m3, {tokens(), shape_.hidden});
  scales = Tensor::empty(DataType::float32, {tokens(), static_cast<std::int64_t>(groups)});
  for (std::size_t t = 0; t < static_cast<std::size_t>(tokens()); ++t)
    numeric::quantize_row(
        std::span(inputs_.x).subspan(t * hidden, hidden), numeric::ScaleRounding::none,
        {codes.as<std::uint8_t>() + t * hidden, hidden}, {scales.as<float>() + t * groups, groups});
}

Tensor HostLayer::run_normal(PhaseTimes& times) {
  const ep::Routing routing = timed(times, "route", [&] { return group_.route(gated_.topk_idx); });
  rows_to_ = routing.tokens_per_rank;
  nodes_ = static_cast<std::int64_t>(routing.tokens_per_node.size());
  barrier(team_);
  ep::Dispatched rows = timed(times, "dispatch", [&] {
    if (options_.row_format == RowFormat::bf16)
      return group_.dispatch(tokens_view(), routing, {.weights = gated_.topk_weights});
    Tensor codes, scales;
    quantize_tokens(codes, scales);
    return group_.dispatch(codes, routing, {.weights = gated_.topk_weights, .scales = scales});
  });
  const Tensor y = timed(times, "experts", [&] { return apply_experts(rows); });
  barrier(team_);
  return timed(times, "combine", [&] { return group_.combine(y, rows.handle); }).x;
}

Tensor HostLayer::apply_experts(const ep::Dispatched& rows) {
  const auto hidden = static_cast<std::size_t>(shape_.hidden),
             top_k = static_cast<std::size_t>(shape_.gate.top_k);
  const auto count = static_cast<std::size_t>(rows.rows);
  std::vector<std::vector<Row>> rows_of(experts_.size());
  for (std::size_t i = 0; i < count * top_k; ++i)
    if (const std::int64_t expert = rows.topk_idx.as<std::int64_t>()[i]; expert >= 0)
      rows_of[static_cast<std::size_t>(expert)].push_back(
          {i / top_k, rows.topk_weights.as<float>()[i]});

  const auto groups = numeric::group_count(hidden);
  RowReader read(rows.x, hidden);
  std::vector<float> sums(count * hidden);
  for (std::size_t e = 0; e < experts_.size(); ++e) {
    expert_load_[e] = static_cast<std::int64_t>(rows_of[e].size());
    for (const auto [row, weight] : rows_of[e]) {
      const auto scale_of = [&, row](std::size_t g) {
        return rows.scales.as<float>()[row * groups + g];
      };
      const std::vector<float>& y = feed_forward_(experts_[e], read(row, scale_of));
      for (std::size_t i = 0; i < hidden; ++i) sums[row * hidden + i] += weight * y[i];
    }
  }
  // bfloat16 rows are overwritten in place, so combine reads the expert output there without a
  // copy.
  Tensor y = rows.x.dtype == DataType::bfloat16
                 ? rows.x
                 : Tensor::empty(DataType::bfloat16, {rows.rows, shape_.hidden});
  store_rounded(sums, y.as<Bf16>());
  return y;
}

Tensor HostLayer::run_low_latency(PhaseTimes& times) {
  const ep::Routing routing = group_.route(gated_.topk_idx);
  rows_to_ = routing.tokens_per_rank;
  nodes_ = static_cast<std::int64_t>(routing.tokens_per_node.size());
  const auto quantize =
      options_.row_format == RowFormat::fp8 ? ep::Quantize::fp8 : ep::Quantize::none;
  barrier(team_);
  auto sent = timed(times, "dispatch_send", [&] {
    return group_.low_latency_dispatch(tokens_view(), gated_.topk_idx, {.quantize = quantize});
  });
  const ep::LowLatencyReceived rows =
      timed(times, "dispatch_receive", [&] { return sent.receive(); });
  const auto y = timed(times, "experts", [&] {
    const TensorView target = group_.next_combine_buffer();
    apply_experts(rows, target);
    return target;
  });
  barrier(team_);
  auto combine = timed(times, "combine_send", [&] {
    return group_.low_latency_combine(y, gated_.topk_idx, gated_.topk_weights, rows.handle,
                                      {.zero_copy = true});
  });
  return timed(times, "combine_receive", [&] { return combine.receive(); });
}

void HostLayer::apply_experts(const ep::LowLatencyReceived& rows, const TensorView& y) {
  const auto hidden = static_cast<std::size_t>(shape_.hidden);
  const auto capacity = static_cast<std::size_t>(rows.x.shape[1]);
  RowReader read(rows.x, hidden);
  for (std::size_t e = 0; e < experts_.size(); ++e) {
    const auto count = static_cast<std::size_t>(rows.counts.as<std::int32_t>()[e]);
    expert_load_[e] = static_cast<std::int64_t>(count);
    for (std::size_t row = 0; row < count; ++row) {
      const auto scale_of = [&](std::size_t g) {
        const auto& strides = rows.scales.strides;
        return rows.scales.as<float>()[static_cast<std::int64_t>(e) * strides[0] +
                                       static_cast<std::int64_t>(row) * strides[1] +
                                       static_cast<std::int64_t>(g) * strides[2]];
      };
      // Rows of y are strided: their distance exceeds their length.
      Bf16* target = y.as<Bf16>() + static_cast<std::int64_t>(e) * y.strides[0] +
                     static_cast<std::int64_t>(row) * y.strides[1];
      store_rounded(feed_forward_(experts_[e], read(e * capacity + row, scale_of)), target);
    }
  }
}

}  // namespace

Layer::Layer(const Team& team, const Options& options, const Shape& shape, const Inputs& inputs)
    : team_(team),
      options_(options),
      shape_(shape),
      inputs_(inputs),
      group_(team, group_options(options, shape)),
      expert_load_(static_cast<std::size_t>(shape.local_experts())) {}

std::int64_t Layer::dispatch_row_bytes() const {
  if (options_.row_format == RowFormat::bf16) return 2 * shape_.hidden;
  return shape_.hidden + 4 * static_cast<std::int64_t>(
                                 numeric::group_count(static_cast<std::size_t>(shape_.hidden)));
}

void Layer::run_gate(PhaseTimes& times) {
  gated_ = timed(times, "gate", [&] {
    const TensorView logits(inputs_.logits.data(), DataType::float32,
                            {tokens(), shape_.gate.experts});
    return ep::gate(logits, {inputs_.bias.data(), DataType::float32, {shape_.gate.experts}},
                    shape_.gate);
  });
}

std::unique_ptr<Layer> make_layer(const World& world, const Options& options, const Shape& shape,
                                  const Inputs& inputs) {
#ifdef SHOAL_WITH_CUDA
  if (options.on_gpu()) return make_cuda_layer(world, options, shape, inputs);
#endif
  return std::make_unique<HostLayer>(world.team(), options, shape, inputs);
}

void check_backend(const Options& options) {
  if (!options.on_gpu()) return;
#ifdef SHOAL_WITH_CUDA
  if (!options.cublaslt.empty())
    CublasLt::load(options.cublaslt);  // reports an invalid --cublaslt first
#endif
  const memory::GpuReport gpus = memory::describe_gpus();
  require(!gpus.gpus.empty(), Code::unsupported,
          "--backend cuda is not possible here: {}. --backend host needs no GPU",
          gpus.unavailable.empty() ? "the CUDA driver reports no GPU" : gpus.unavailable);
#ifdef SHOAL_WITH_CUDA
  CublasLt::load(options.cublaslt);
#endif
}

}  // namespace shoal::moe
