// SPDX-License-Identifier: Apache-2.0
#include "checks/ep/gpu_low_latency.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "ep/plan/notices.hpp"
#include "support/made_up.hpp"

namespace shoal::test {
namespace {

/// The tensor as a matrix of its rows, which is the shape that poison requires.
TensorView as_rows(const TensorView& tensor) {
  const std::int64_t columns = tensor.rank > 1 ? tensor.shape[tensor.rank - 1] : 1;
  TensorView view(tensor.data, tensor.dtype,
                  {tensor.size() / std::max<std::int64_t>(columns, 1), columns});
  view.device = tensor.device;
  return view;
}

}  // namespace

TensorView as_stored(const TensorView& scales) {
  const std::int64_t count = scales.shape[0] * scales.strides[0];
  TensorView view(scales.data, DataType::uint8,
                  {count * static_cast<std::int64_t>(size_of(scales.dtype))});
  view.device = scales.device;
  return view;
}

std::string GpuLowLatencyCall::describe() const {
  return fmt::format(
      "quantize {} layout {} combine quantize {} reduction {} sms {}{}{}{}{}{}{}{}{}",
      static_cast<int>(quantize), static_cast<int>(scale_layout),
      static_cast<int>(combine_quantize), static_cast<int>(reduction), launch.sms,
      log_fmt ? " log_fmt" : "", zero_copy ? " zero_copy" : "",
      early_weights ? " early weights" : "", int32_topk ? " int32 topk" : "", out ? " out" : "",
      padded ? " padded" : "", defer_receive ? "" : " immediate", gives_rows ? " unsummed" : "");
}

GpuLowLatencyRound::GpuLowLatencyRound(GpuGroup& owner, const EpCase& c,
                                       const GpuLowLatencyCall& call)
    : owner_(owner),
      case_(c),
      call_(call),
      tokens_(call.padded ? c.max_tokens : c.tokens(owner.me)) {
  x_ = owner.tensors.upload(rows_on_host());
  topk_ = owner.tensors.upload(topk_on_host());
  weights_ = owner.tensors.upload(weights_on_host());
  if (call.quantize == ep::Quantize::nvfp4)
    global_ = owner.tensors.upload(ConstTensorView(&kGlobalScale, DataType::float32, {1}));
  if (!call.out) return;
  out_memory_ = owner.tensors.empty(DataType::bfloat16,
                                    {out_rows() + 1, c.hidden});  // the last row must stay as it is
  if (call.gives_rows)
    out_ = TensorView(out_memory_.data, DataType::bfloat16, {tokens_, c.top_k, c.hidden});
  else
    out_ = TensorView(out_memory_.data, DataType::bfloat16, {tokens_, c.hidden});
  out_.device = out_memory_.device;
}

void GpuLowLatencyRound::run() {
  const ep::LowLatencyReceived got = send().receive();
  check(got);
  write_expert_output();
  check(combine(got).receive());
  poison(got);
}

ep::PendingDispatch GpuLowLatencyRound::send() {
  ep::LowLatencyDispatchOptions options{.quantize = call_.quantize,
                                        .scale_layout = call_.scale_layout,
                                        .defer_receive = call_.defer_receive,
                                        .launch = call_.launch};
  if (call_.early_weights) options.weights = weights_;
  if (global_.defined()) options.global_scale = global_;
  return owner_.group.low_latency_dispatch(x_, topk_, options);
}

void GpuLowLatencyRound::check(const ep::LowLatencyReceived& got) {
  const bool quantized = call_.quantize != ep::Quantize::none;
  expect(got.scales.has_value() == quantized,
         "scales are " + got.scales.value_or(Tensor()).describe());
  expect(got.x.dtype == (!quantized                              ? DataType::bfloat16
                         : call_.quantize == ep::Quantize::nvfp4 ? DataType::uint8
                                                                 : DataType::float8_e4m3),
         "x is " + got.x.describe());
  owner_.settle();
  host_ = {};
  host_.x = owner_.tensors.download(got.x);
  host_.counts = owner_.tensors.download(got.counts);
  host_.source_token = owner_.tensors.download(got.source_token);
  host_.layout = owner_.tensors.download(got.layout);
  if (quantized) {
    const Tensor stored = owner_.tensors.download(as_stored(*got.scales));
    TensorView view = *got.scales;
    view.data = stored.data;
    view.device = {};
    host_.scales = Tensor(view, stored.owner);
  }
  check_low_latency_received(case_, owner_.me, host_, call_.masked);
  if (quantized && call_.masked.empty())
    check_low_latency_scales(case_, owner_.me, host_, call_.quantize);
}

Tensor GpuLowLatencyRound::expert_output_on_host() const {
  Tensor y =
      Tensor::empty(DataType::bfloat16, {case_.local_experts(), host_.x.shape[1], case_.hidden});
  std::memset(y.data, 0xff, y.bytes());
  write_low_latency_expert_output(case_, owner_.me, host_, y, call_.quantize);
  return y;
}

void GpuLowLatencyRound::write_expert_output() {
  if (call_.zero_copy) {
    choose_buffer();
    return write_expert_output_again();
  }
  if (ordinary_y_.defined())
    return write_expert_output_again();  // a captured graph has the address
  ordinary_y_ = owner_.tensors.upload(expert_output_on_host());
  y_ = ordinary_y_;
}

void GpuLowLatencyRound::write_expert_output_again() {
  owner_.tensors.write(y_, expert_output_on_host());
}

ep::PendingCombine GpuLowLatencyRound::combine(const ep::LowLatencyReceived& got) {
  ep::LowLatencyCombineOptions options{
      .log_fmt = call_.log_fmt,
      .quantize = call_.combine_quantize,
      .zero_copy = call_.zero_copy,
      .reduction = call_.gives_rows ? ep::Reduction::exact : call_.reduction,
      .unsummed = call_.gives_rows,
      .defer_receive = call_.defer_receive,
      .launch = call_.launch};
  if (call_.out) options.out = out_;
  ConstTensorView weights;
  if (!call_.gives_rows) weights = weights_;
  return owner_.group.low_latency_combine(y_, topk_, weights, got.handle, options);
}

void GpuLowLatencyRound::check(const Tensor& out) {
  Travels travels;
  if (call_.quantize != ep::Quantize::none) travels.to_experts = quantized_travel(call_.quantize);
  const auto encoding = combine_encoding(call_.log_fmt, call_.combine_quantize);
  if (encoding != ep::detail::CombineEncoding::bfloat16) {
    const bool internode = case_.nodes > 1 || test_nodes(case_.ranks) > 1;
    travels.back = combine_travel(encoding);
    if (!call_.unsummed.empty() ||
        !ep::detail::sends_unsummed(call_.early_weights, call_.defer_receive,
                                    internode && owner_.group.options().mask_failed))
      travels.sums = travels.back;
    travels.unsummed = call_.unsummed;
  }
  auto wanted = call_.gives_rows ? expected_unsummed(case_, owner_.me, call_.masked, travels)
                                 : expected_low_latency(case_, owner_.me, call_.reduction,
                                                        call_.masked, travels);
  wanted.resize(out_rows() * case_.hidden, 0);  // tokens without experts
  expect(out.size() == static_cast<std::int64_t>(wanted.size()), "the result is " + out.describe());
  owner_.settle();
  const Tensor values = owner_.tensors.download(out);
  expect_same("result (" + case_.describe() + ", " + call_.describe() + ")", values.data,
              wanted.data(), wanted.size() * 2, 2);
  if (!call_.out) return;
  expect(out.data == out_memory_.data, "the result is not in LowLatencyCombineOptions.out");
  const Tensor all = owner_.tensors.download(out_memory_);
  for (std::int64_t ch = 0; ch < case_.hidden; ++ch)
    expect(all.as<std::uint16_t>()[out_rows() * case_.hidden + ch] == 0xffff,
           "combine wrote past the end of its result");
}

void GpuLowLatencyRound::poison(const ep::LowLatencyReceived& got) {
  for (const TensorView& tensor : {TensorView(got.x), TensorView(got.counts),
                                   TensorView(got.source_token), TensorView(got.layout)})
    owner_.tensors.poison(as_rows(tensor));
  if (got.scales.has_value()) owner_.tensors.poison(as_rows(as_stored(*got.scales)));
}

void GpuLowLatencyRound::poison_out() {
  owner_.tensors.poison(as_rows(out_));
}

void GpuLowLatencyRound::change(const EpCase& now) {
  case_ = now;
  owner_.tensors.write(x_, rows_on_host());
  owner_.tensors.write(topk_, topk_on_host());
  owner_.tensors.write(weights_, weights_on_host());
}

Tensor GpuLowLatencyRound::rows_on_host() const {
  Tensor rows = Tensor::empty(DataType::bfloat16, {tokens_, case_.hidden});
  if (rows.bytes() > 0) std::memset(rows.data, 0x3f, rows.bytes());
  const auto values = case_.rows(owner_.me);
  std::copy(values.begin(), values.end(), rows.as<std::uint16_t>());
  return rows;
}

Tensor GpuLowLatencyRound::topk_on_host() const {
  Tensor topk =
      Tensor::empty(call_.int32_topk ? DataType::int32 : DataType::int64, {tokens_, case_.top_k});
  auto topk_idx = case_.given_topk(owner_.me);
  topk_idx.resize(tokens_ * case_.top_k, -1);
  if (call_.int32_topk)
    std::copy(topk_idx.begin(), topk_idx.end(), topk.as<std::int32_t>());
  else
    std::copy(topk_idx.begin(), topk_idx.end(), topk.as<std::int64_t>());
  return topk;
}

Tensor GpuLowLatencyRound::weights_on_host() const {
  Tensor weights = Tensor::empty(DataType::float32, {tokens_, case_.top_k});
  auto values = case_.weights(owner_.me);
  values.resize(tokens_ * case_.top_k, 0.5F);
  std::copy(values.begin(), values.end(), weights.as<float>());
  return weights;
}

std::int32_t test_nodes(std::int32_t pes) {
  const char* const text = std::getenv("SHOAL_TEST_NODES");
  const std::int32_t nodes = text == nullptr ? 1 : std::atoi(text);
  if (nodes < 2) return 1;
  return pes % nodes == 0 ? nodes : pes;
}

Settings low_latency_settings(std::int32_t pes, std::size_t mebibytes) {
  const std::int32_t nodes = test_nodes(pes);
  if (nodes == 1) return mebibytes == 0 ? gpu_settings() : gpu_settings(mebibytes);
  // A block for each remote rank.
  const auto blocks = static_cast<std::size_t>(pes);
  Settings settings = gpu_settings(mebibytes == 0 ? 2048 : mebibytes * blocks);
  settings.node_size = pes / nodes;
  settings.staging_size = std::size_t{1} << 30;
  settings.ep_between_nodes = "kernels";
  if (const char* const transport = std::getenv("SHOAL_TEST_TRANSPORT"); transport != nullptr) {
    settings.transport_between = transport;
    settings.ofi_provider = "tcp;ofi_rxm";
  }
  return settings;
}

void run_low_latency_group(const EpCase& c, const std::function<void(GpuGroup&)>& body,
                           const std::function<void(ep::GroupOptions&)>& change) {
  ep::GroupOptions options = options_for(c);
  options.max_tokens = 0;
  if (change) change(options);
  run_threads(c.ranks, low_latency_settings(c.ranks), [&](World& world) {
    GpuGroup group(world, options);
    body(group);
  });
}

PlainInputs::PlainInputs(DeviceTensors& tensors, const EpCase& c,
                         const std::vector<std::int64_t>& experts) {
  const std::int64_t tokens = static_cast<std::int64_t>(experts.size()) / c.top_k;
  const std::vector<std::uint16_t> rows(tokens * c.hidden, bf16_of(1.0F));
  const std::vector<float> ones(experts.size(), 1.0F);
  x = tensors.upload(ConstTensorView(rows.data(), DataType::bfloat16, {tokens, c.hidden}));
  topk = tensors.upload(ConstTensorView(experts.data(), DataType::int64, {tokens, c.top_k}));
  weights = tensors.upload(ConstTensorView(ones.data(), DataType::float32, {tokens, c.top_k}));
}

}  // namespace shoal::test
