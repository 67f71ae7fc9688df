// SPDX-License-Identifier: Apache-2.0
#include "moe/layer.hpp"

#include <algorithm>
#include <cstring>
#include <span>

#include "base/check.hpp"
#include "ep/numeric/rows.hpp"
#include "memory/device.hpp"
#include "shoal/collective.hpp"

namespace shoal::moe {

namespace {

namespace numeric = ep::numeric;

ep::GroupOptions group_options(const Options& options, const Shape& shape) {
  ep::GroupOptions group;
  group.hidden = shape.hidden;
  group.top_k = shape.gate.top_k;
  group.experts = shape.gate.experts;
  (options.mode == Mode::normal ? group.max_tokens : group.low_latency_max_tokens) =
      shape.max_tokens();
  return group;
}

std::int64_t group_count(const Shape& shape) {
  return static_cast<std::int64_t>(numeric::group_count(static_cast<std::size_t>(shape.hidden)));
}

}  // namespace

Layer::Layer(const Team& team, const Options& options, const Shape& shape, const Inputs& inputs)
    : team_(team),
      options_(options),
      shape_(shape),
      inputs_(inputs),
      group_(team, group_options(options, shape)),
      expert_load_(static_cast<std::size_t>(shape.experts_of(team.my_pe()))) {}

void Layer::begin(const char* phase) {
  times_.emplace_back(phase, 0);
  start_ = std::chrono::steady_clock::now();
}

void Layer::end() {
  const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - start_;
  times_.back().second = time.count();
}

void Layer::fetch(void* target, const TensorView& source) {
  if (source.bytes() > 0) std::memcpy(target, source.data, source.bytes());
}

template <typename Call>
auto Layer::timed(const char* phase, Call call) {
  begin(phase);
  auto result = call();
  end();
  return result;
}

void Layer::meet() {
  drain();
  barrier(team_);
}

/// Tokens are the same in every run. In normal mode their FP8 form is made once, as a caller's
/// previous layer would; low-latency dispatch makes it itself.
void Layer::place_inputs() {
  const std::int64_t tokens = shape_.tokens_of(team_.my_pe());
  const Tensor x = Tensor::empty(DataType::bfloat16, {tokens, shape_.hidden});
  if (x.bytes() > 0) std::memcpy(x.data, inputs_.x.data(), x.bytes());
  x_ = place(x);
  output_ = place(Tensor::empty(DataType::bfloat16, {tokens, shape_.hidden}));
  if (options_.row_format == RowFormat::bf16 || options_.mode == Mode::low_latency) return;
  const auto hidden = static_cast<std::size_t>(shape_.hidden),
             groups = numeric::group_count(hidden);
  const Tensor codes = Tensor::empty(DataType::float8_e4m3, {tokens, shape_.hidden}),
               scales = Tensor::empty(DataType::float32, {tokens, group_count(shape_)});
  for (std::size_t t = 0; t < static_cast<std::size_t>(tokens); ++t)
    numeric::quantize_row(
        std::span(inputs_.x).subspan(t * hidden, hidden), numeric::ScaleRounding::none,
        {codes.as<std::uint8_t>() + t * hidden, hidden}, {scales.as<float>() + t * groups, groups});
  codes_ = place(codes);
  scales_ = place(scales);
}

Tensor Layer::run(PhaseTimes& times) {
  times_.clear();
  const std::int64_t tokens = shape_.tokens_of(team_.my_pe()), experts = shape_.gate.experts;
  Layer::begin("gate");  // on the host with either backend
  gated_ = ep::gate({inputs_.logits.data(), DataType::float32, {tokens, experts}},
                    {inputs_.bias.data(), DataType::float32, {experts}}, shape_.gate);
  Layer::end();
  if (!x_.defined()) place_inputs();
  topk_idx_ = place(gated_.topk_idx);
  topk_weights_ = place(gated_.topk_weights);
  options_.mode == Mode::normal ? run_normal() : run_low_latency();
  drain();
  times = times_;
  Tensor result = Tensor::empty(DataType::bfloat16, {tokens, shape_.hidden});
  fetch(result.data, output_);
  return result;
}

void Layer::warmup() {
  group_.warmup();
  if (!options_.on_gpu()) return;
  meet();
  PhaseTimes times;
  run(times);  // loads code and allocates memory
}

void Layer::take_counts(const ep::Routing& routing) {
  if (routing.counts) {
    rows_to_ = routing.counts->tokens_per_rank;
    nodes_ = static_cast<std::int64_t>(routing.counts->tokens_per_node.size());
    return;
  }
  rows_to_.resize(static_cast<std::size_t>(shape_.pes));
  fetch(rows_to_.data(), routing.device_counts->tokens_per_rank);
  nodes_ = routing.device_counts->tokens_per_node.shape[0];
}

void Layer::run_normal() {
  const ep::Routing routing = timed("route", [&] { return group_.route(topk_idx_); });
  take_counts(routing);
  meet();
  const ep::Dispatched rows = timed("dispatch", [&] {
    return group_.dispatch(codes_.defined() ? codes_ : x_, routing,
                           {.weights = topk_weights_, .scales = scales_});
  });
  expert_load_ = *rows.tokens_per_expert;
  meet();
  ExpertOutput output = timed("experts", [&] { return apply_experts(rows); });
  output.options.out = output_;
  meet();
  timed("combine", [&] { return group_.combine(output.y, rows.handle, output.options); });
}

void Layer::run_low_latency() {
  take_counts(group_.route(topk_idx_));
  const auto quantize =
      options_.row_format == RowFormat::fp8 ? ep::Quantize::fp8 : ep::Quantize::none;
  meet();
  auto sent = timed("dispatch_send", [&] {
    return group_.low_latency_dispatch(x_, topk_idx_,
                                       {.quantize = quantize, .weights = topk_weights_});
  });
  const ep::LowLatencyReceived rows = timed("dispatch_receive", [&] { return sent.receive(); });
  meet();
  std::vector<std::int32_t> counts(static_cast<std::size_t>(group_.max_local_experts()));
  fetch(counts.data(), rows.counts);
  std::copy_n(counts.begin(), expert_load_.size(), expert_load_.begin());
  const TensorView y = timed("experts", [&] {
    const TensorView target = group_.next_combine_buffer();
    apply_experts(rows, target);
    return target;
  });
  meet();
  auto combine = timed("combine_send", [&] {
    return group_.low_latency_combine(y, topk_idx_, topk_weights_, rows.handle,
                                      {.zero_copy = true, .out = output_});
  });
  timed("combine_receive", [&] { return combine.receive(); });
}

std::int64_t Layer::dispatch_row_bytes() const {
  return options_.row_format == RowFormat::bf16 ? 2 * shape_.hidden
                                                : shape_.hidden + 4 * group_count(shape_);
}

std::unique_ptr<Layer> make_layer(const World& world, const Options& options, const Shape& shape,
                                  const Inputs& inputs) {
#ifdef SHOAL_WITH_CUDA
  if (options.on_gpu()) return make_cuda_layer(world, options, shape, inputs);
#endif
  return make_host_layer(world.team(), options, shape, inputs);
}

void check_backend(const Options& options) {
  if (!options.on_gpu()) return;
  const memory::GpuReport gpus = memory::describe_gpus();
  require(!gpus.gpus.empty(), Code::unsupported,
          "--backend cuda is not possible here: {}. --backend host needs no GPU",
          gpus.unavailable.empty() ? "the CUDA driver reports no GPU" : gpus.unavailable);
}

}  // namespace shoal::moe
