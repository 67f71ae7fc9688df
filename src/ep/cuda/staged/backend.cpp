// SPDX-License-Identifier: Apache-2.0
// backend.cpp: expert parallelism on tensors in GPU memory where NVLink does not join all ranks:
// rows pass through host memory and the host backend, which knows nodes.
//
// Copies per operation: every input once to the host, every output once to the GPU; expert outputs
// go directly to where the host backend fetches them. Calls wait, because between nodes a host has
// to progress the network anyway. They keep the order of streams: inputs are read after the work
// on the call's stream, and outputs are on that stream when the call returns.
#include "ep/host/backend.hpp"
#include "base/check.hpp"
#include "ep/cuda/group/group.hpp"
#include "ep/cuda/group/relaxed_capture.hpp"
#include "ep/cuda/normal/normal.hpp"
#include "ep/cuda/staged/call.hpp"
#include "ep/host/group/layout.hpp"
#include "ep/host/normal/expert_output.hpp"
#include "ep/plan/routing.hpp"
#include "pe/memory.hpp"
#include "pe/placement.hpp"

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

namespace shoal::ep::cuda {
namespace {

using detail::HandleState;
using detail::PendingCombineState;
using detail::PendingDispatchState;

class StagedNormal final : public detail::NormalMode {
 public:
  StagedNormal(Staging& staging, detail::NormalMode& host, const host::GroupLayout& layout)
      : NormalMode(detail::BackendKind::staged), staging_(staging), host_(host), layout_(layout) {}

  Routing route(const ConstTensorView& topk_idx, const RouteOptions& options) override;
  detail::AnyDispatched dispatch(const detail::DispatchCall& given) override;
  void unpack(const detail::AnyDispatched& received, const UnpackOptions& to) override;
  void expand(const ExpandOptions& options) override;
  Combined combine(const ConstTensorView& y, const HandleState& handle,
                   const CombineOptions& given) override;

 private:
  Staging& staging_;
  detail::NormalMode& host_;
  const host::GroupLayout& layout_;  // of the host backend
};

Routing StagedNormal::route(const ConstTensorView& topk_idx, const RouteOptions& options) {
  const StagedCall call(staging_, options.launch);
  const Tensor indices = call.fetch(topk_idx);
  call.fetched();
  RouteOptions on_host;
  const Tensor in_rank = call.place_for(options.is_token_in_rank);
  on_host.is_token_in_rank = in_rank;
  Routing routing = host_.route(indices, on_host);
  const auto copy_to = [&](const TensorView& array, const void* values) {
    if (array.defined()) call.give(array.data, values, array.bytes());
  };
  copy_to(options.is_token_in_rank, in_rank.data);
  // As with all GPU tensors, counts are in device memory.
  const Routing::Counts on_cpu = std::move(*routing.counts);
  routing.counts.reset();
  copy_to(options.tokens_per_rank, on_cpu.tokens_per_rank.data());
  copy_to(options.tokens_per_expert, on_cpu.tokens_per_expert.data());
  copy_to(options.tokens_per_node, on_cpu.tokens_per_node.data());
  routing.topk_idx = call.give(routing.topk_idx);
  const auto counts = [&](const std::vector<std::int32_t>& values) {
    return call.give(ConstTensorView(values.data(), DataType::int32,
                                     {static_cast<std::int64_t>(values.size())}));
  };
  routing.device_counts = {.tokens_per_rank = counts(on_cpu.tokens_per_rank),
                           .tokens_per_node = counts(on_cpu.tokens_per_node),
                           .tokens_per_expert = counts(on_cpu.tokens_per_expert)};
  call.finish();
  return routing;
}

namespace {

/// Gives scales whose rows end with whole words.
Tensor give_scales(const StagedCall& call, const Tensor& scales) {
  if (!scales.defined()) return {};
  TensorView whole = scales;
  whole.shape[1] = whole.strides[0];
  Tensor given = call.give(whole);
  given.shape[1] = scales.shape[1];
  return given;
}

}  // namespace

detail::AnyDispatched StagedNormal::dispatch(const detail::DispatchCall& given) {
  const StagedCall call(staging_, given.options.launch);
  const Tensor x = call.fetch(given.x), weights = call.fetch(given.options.weights),
               scales = call.fetch(given.options.scales),
               global = call.fetch(given.options.global_scale);
  call.fetched();
  if (global.defined()) detail::check_global_scale("dispatch", global);
  detail::AnyDispatchOptions options = given.options;
  options.weights = weights;
  options.scales = scales;
  options.global_scale = global;
  detail::AnyDispatched received = host_.dispatch({x, options, given.routing, given.cached});
  const detail::AnyDispatched on_host = received;  // keeps the memory until the copies have ended
  for (Tensor* const tensor : {&received.x, &received.topk_idx, &received.topk_weights,
                               &received.source_token, &received.expert_first_row})
    *tensor = call.give(*tensor);
  received.scales = give_scales(call, received.scales);
  const auto count = static_cast<std::int32_t>(received.rows);
  received.row_count = call.give(ConstTensorView(&count, DataType::int32, {1}));
  const auto& tokens = state_of(received.handle)->tokens_per_expert;
  received.expert_counts = call.give(
      ConstTensorView(tokens.data(), DataType::int32, {static_cast<std::int64_t>(tokens.size())}));
  const auto give_ends = [&](const auto& counts, std::int64_t alignment) {
    std::vector<std::int32_t> ends;
    std::int64_t end = 0;
    for (const auto number : counts)
      ends.push_back(
          static_cast<std::int32_t>(end += (number + alignment - 1) / alignment * alignment));
    return call.give(
        TensorView(ends.data(), DataType::int32, {static_cast<std::int64_t>(ends.size())}));
  };
  if (!given.cached) {
    received.expert_ends = give_ends(tokens, given.options.expert_alignment);
    if (!given.options.expert_major) received.source_ends = give_ends(received.rows_per_source, 1);
  }
  call.finish();
  if (given.options.worst_case_rows > 0) {  // as with all GPU tensors, no size reaches the caller
    received.rows_per_source.clear();
    received.rows = -1;
  }
  return received;
}

void StagedNormal::unpack(const detail::AnyDispatched& received, const UnpackOptions& to) {
  const StagedCall call(staging_, to.launch);
  launch_unpack(received, detail::unpacked_arrays(staging_.group, received, to), to.clear_unused,
                false, call.stream());
  call.finish();
}

void StagedNormal::expand(const ExpandOptions& options) {
  const StagedCall call(staging_, options.launch);
  launch_expand(expand_parameters(options), staging_.group.world->memory().cuda()->multiprocessors,
                false, call.stream());
  call.finish();
}

Combined StagedNormal::combine(const ConstTensorView& y, const HandleState& handle,
                               const CombineOptions& given) {
  const StagedCall call(staging_, given.launch);
  const bool prepared = given.topk_rows.defined() || given.topk_idx.defined();
  const std::int64_t rows = prepared ? handle.result_rows : y.shape[0];
  const std::size_t bytes = rows * y.shape[1] * size_of(y.dtype);
  require(
      bytes <= layout_.staging_weights - layout_.staging, Code::invalid_argument,
      "SHOAL-N565: combine: y is {}, {} bytes; there is room for {} on their way through the host. "
      "Raise GroupOptions.max_tokens (now {}), and set combine_staging",
      [&] { return y.describe(); }, bytes, layout_.staging_weights - layout_.staging,
      staging_.group.shape.max_tokens);
  TensorView outputs(staging_.group.block + layout_.staging, y.dtype, {rows, y.shape[1]});
  // Copy of `y` that the ranks of this node fetch.
  const Tensor given_rows = prepared ? call.fetch(y) : Tensor();
  if (!prepared) call.fetch(outputs.data, y);
  Tensor weights = call.fetch(given.weights);
  const Tensor topk_idx = call.fetch(given.topk_idx), topk_rows = call.fetch(given.topk_rows);
  std::vector<Tensor> biases;
  for (const ConstTensorView& bias : given.bias) biases.push_back(call.fetch(bias));
  call.fetched();
  CombineOptions options = given;
  options.topk_idx = topk_idx;
  options.topk_rows = topk_rows;
  options.out_weights = {};
  options.weights = weights;
  if (prepared) {
    const host::ExpertOutput output = host::prepare_expert_output(
        given_rows, options, static_cast<std::byte*>(outputs.data), host::Store::cached);
    if (output.y.data != outputs.data) std::memcpy(outputs.data, output.y.data, output.y.bytes());
    options.weights = weights = output.weights;
    options.topk_idx = options.topk_rows = {};
  }
  options.bias.assign(biases.begin(), biases.end());
  const Tensor sums = staging_.group.shape.with_combined_extents(
      handle.routing->tokens, given.unsummed,
      [&](auto extents) { return call.on_host(y.dtype, extents); });
  options.out = sums;
  const Combined on_host = host_.combine(outputs, handle, options);
  Combined combined;
  if (given.out_weights.defined()) {
    combined.topk_weights = Tensor(given.out_weights, nullptr);
    call.give(given.out_weights.data, on_host.topk_weights->data, on_host.topk_weights->bytes());
  } else if (on_host.topk_weights) {
    combined.topk_weights = call.give(*on_host.topk_weights);
  }
  combined.x = given.out.defined() ? Tensor(given.out, nullptr) : call.make(on_host.x);
  call.give(combined.x.data, on_host.x.data, on_host.x.bytes());
  call.finish();
  return combined;
}

struct StagedPendingDispatch final : PendingDispatchState {
  static constexpr auto kBackend = detail::BackendKind::staged;
  StagedPendingDispatch() { backend = kBackend; }

  std::shared_ptr<PendingDispatchState> host;
  Tensor tokens_per_expert, wait_ns;  ///< host copies of those in LowLatencyDispatchOptions
};
struct StagedPendingCombine final : PendingCombineState {
  static constexpr auto kBackend = detail::BackendKind::staged;
  StagedPendingCombine() { backend = kBackend; }

  std::shared_ptr<PendingCombineState> host;
  Tensor sums, wait_ns;
};

/// The stream of a send, for its receive: events belong to the send alone.
Launch stream_of(const Launch& launch) {
  return {.stream = launch.stream, .after = nullptr, .done = nullptr, .sms = 0};
}

/// The arrays of a low-latency dispatch. There are two sets, used in turn, as on every backend.
struct ResultArrays {
  Tensor x;  ///< has room for bfloat16 rows in every form
  Tensor scales, counts, source_token, layout;
};

class StagedLowLatency final : public detail::LowLatencyMode {
 public:
  StagedLowLatency(Staging& staging, detail::LowLatencyMode& host)
      : LowLatencyMode(detail::BackendKind::staged),
        staging_(staging),
        group_(staging.group),
        host_(host) {}

  std::shared_ptr<PendingDispatchState> dispatch(const ConstTensorView& x,
                                                 const ConstTensorView& topk_idx,
                                                 const LowLatencyDispatchOptions& given) override;
  bool ready(const PendingDispatchState& pending) override {
    return host_.ready(
        *detail::of_backend<StagedPendingDispatch>(pending, "low_latency_dispatch").host);
  }
  LowLatencyReceived receive(PendingDispatchState& state) override;
  std::shared_ptr<PendingCombineState> combine(
      const ConstTensorView& y, const ConstTensorView& topk_idx, const ConstTensorView& weights,
      const std::shared_ptr<const detail::LowLatencyHandleState>& handle,
      const LowLatencyCombineOptions& given) override;
  bool ready(const PendingCombineState& pending) override {
    return host_.ready(
        *detail::of_backend<StagedPendingCombine>(pending, "low_latency_combine").host);
  }
  Tensor receive(PendingCombineState& state) override;
  TensorView next_combine_buffer() override;

  std::vector<int> masked() override { return host_.masked(); }
  void set_mask(std::int32_t rank, bool masked) override { host_.set_mask(rank, masked); }
  void clear_masks() override { host_.clear_masks(); }

 private:
  Staging& staging_;
  detail::GroupState& group_;
  detail::LowLatencyMode& host_;
  ResultArrays results_[2];    // by parity of the dispatch's epoch
  Tensor combine_buffers_[2];  // of next_combine_buffer, used in turn
};

std::shared_ptr<PendingDispatchState> StagedLowLatency::dispatch(
    const ConstTensorView& x, const ConstTensorView& topk_idx,
    const LowLatencyDispatchOptions& given) {
  const StagedCall call(staging_, given.launch);
  auto pending = std::make_shared<StagedPendingDispatch>();
  pending->group = group_.shared_from_this();
  pending->options = given;
  const Tensor rows = call.fetch(x), indices = call.fetch(topk_idx),
               weights = call.fetch(given.weights), global = call.fetch(given.global_scale);
  pending->tokens_per_expert = call.place_for(given.tokens_per_expert);
  pending->wait_ns = call.place_for(given.wait_ns);
  call.fetched();
  if (global.defined()) detail::check_global_scale("low_latency_dispatch", global);
  LowLatencyDispatchOptions options = given;
  options.weights = weights;
  options.global_scale = global;
  options.tokens_per_expert = pending->tokens_per_expert;
  options.wait_ns = pending->wait_ns;
  pending->host = host_.dispatch(rows, indices, options);
  pending->handle = pending->host->handle;
  if (given.launch.done != nullptr) call.finish();
  return pending;
}

/// Copies the scales of the first `count` rows of an expert; of tiles, those that hold them.
void give_scales(const StagedCall& call, const TensorView& target, const TensorView& source,
                 const detail::ScaleWords& scales, std::int32_t expert, std::int32_t count) {
  constexpr std::size_t kWord = sizeof(std::uint32_t);
  const std::size_t first = scales.index(static_cast<std::uint32_t>(expert), 0, 0) * kWord;
  std::byte* const to = target.as<std::byte>() + first;
  const std::byte* const from = source.as<std::byte>() + first;
  if (scales.layout == ScaleLayout::columns) {
    const std::size_t pitch = scales.word_stride * kWord;
    return call.give_rows(to, pitch, from, pitch, count * kWord, scales.words);
  }
  const std::size_t rows =
      scales.layout == ScaleLayout::tiles ? align_up(count, detail::kTileRows) : count;
  call.give(to, from, rows * scales.words * kWord);
}

LowLatencyReceived StagedLowLatency::receive(PendingDispatchState& state) {
  auto& pending = detail::of_backend<StagedPendingDispatch>(state, "low_latency_dispatch");
  const StagedCall call(staging_, stream_of(pending.options.launch));
  call.fetch(pending.tokens_per_expert.data, pending.options.tokens_per_expert);
  call.fetch(pending.wait_ns.data, pending.options.wait_ns);
  call.fetched();
  const LowLatencyReceived on_host = host_.receive(*pending.host);
  const detail::Shape& shape = group_.shape;
  const Quantize quantize = pending.options.quantize;
  const std::size_t rows = shape.low_latency_rows(),
                    row_bytes = detail::RowFormat(quantize).row_bytes(shape.hidden);
  ResultArrays& arrays = results_[state_of(on_host.handle)->epoch & 1];
  LowLatencyReceived received;
  received.handle = on_host.handle;
  received.x = call.keep(arrays.x, on_host.x,
                         shape.local_experts * rows * shape.hidden * size_of(DataType::bfloat16));
  if (on_host.scales)
    received.scales = call.keep(arrays.scales, *on_host.scales, detail::most_scale_bytes(shape));
  received.counts = call.give_kept(arrays.counts, on_host.counts);
  received.source_token = call.give_kept(arrays.source_token, on_host.source_token);
  received.layout = call.give_kept(arrays.layout, on_host.layout);
  const auto& counts = state_of(on_host.handle)->counts;
  for (std::int32_t expert = 0; expert < shape.local_experts; ++expert) {
    const std::size_t at = expert * rows * row_bytes;
    call.give(received.x.as<std::byte>() + at, on_host.x.as<std::byte>() + at,
              counts[expert] * row_bytes);
    if (on_host.scales)
      give_scales(call, *received.scales, *on_host.scales,
                  detail::ScaleWords(quantize, pending.options.scale_layout, shape.hidden,
                                     shape.low_latency_rows()),
                  expert, counts[expert]);
  }
  for (const auto& [to, from] :
       {std::pair{&pending.options.tokens_per_expert, &pending.tokens_per_expert},
        std::pair{&pending.options.wait_ns, &pending.wait_ns}})
    if (to->defined()) call.give(to->data, from->data, from->bytes());
  call.finish();
  return received;
}

TensorView StagedLowLatency::next_combine_buffer() {
  host_.next_combine_buffer();  // throws where the buffer is still in use
  Tensor& buffer = combine_buffers_[(group_.low_latency_combine_epoch + 1) & 1];
  if (!buffer.defined()) {
    const auto& shape = group_.shape;
    const StagedCall call(staging_, {});
    buffer = call.make(TensorView(nullptr, DataType::bfloat16,
                                  {shape.local_experts, shape.low_latency_rows(), shape.hidden}));
    call.finish();
  }
  return buffer;
}

std::shared_ptr<PendingCombineState> StagedLowLatency::combine(
    const ConstTensorView& y, const ConstTensorView& topk_idx, const ConstTensorView& weights,
    const std::shared_ptr<const detail::LowLatencyHandleState>& handle,
    const LowLatencyCombineOptions& given) {
  const StagedCall call(staging_, given.launch);
  const auto& shape = group_.shape;
  auto pending = std::make_shared<StagedPendingCombine>();
  pending->group = group_.shared_from_this();
  pending->options = given;
  pending->handle = handle;
  const Tensor host_weights = call.fetch(weights);
  pending->wait_ns = call.place_for(given.wait_ns);
  // Expert outputs go directly to where other ranks fetch them. Those that may be encoded on the
  // way there go to other memory first.
  Tensor plain;
  TensorView outputs;
  const bool encodes = given.log_fmt || given.quantize != Quantize::none;
  if (encodes)
    outputs = plain = call.on_host(DataType::bfloat16,
                                   {shape.local_experts, shape.low_latency_rows(), shape.hidden});
  else
    outputs = host_.next_combine_buffer();
  for (std::int64_t expert = 0; expert < shape.local_experts; ++expert) {
    ConstTensorView from(y.as<std::byte>() + expert * y.strides[0] * 2, DataType::bfloat16,
                         {handle->counts[expert], shape.hidden});
    from.strides[0] = y.strides[1];
    call.fetch_rows(
        {outputs.as<std::byte>() + expert * outputs.strides[0] * 2,
         static_cast<std::size_t>(outputs.strides[1]) * 2},
        {detail::for_reading(from).as<std::byte>(), static_cast<std::size_t>(from.strides[0]) * 2},
        shape.hidden * 2, from.shape[0]);
  }
  call.fetched();
  LowLatencyCombineOptions options = given;
  options.zero_copy = !encodes;
  const Tensor sums = shape.with_combined_extents(
      handle->routing->tokens, given.unsummed,
      [&](auto extents) { return call.on_host(DataType::bfloat16, extents); });
  options.out = pending->sums = sums;
  options.wait_ns = pending->wait_ns;
  pending->host = host_.combine(outputs, topk_idx, host_weights, handle, options);
  pending->epoch = pending->host->epoch;
  if (given.launch.done != nullptr) call.finish();
  return pending;
}

Tensor StagedLowLatency::receive(PendingCombineState& state) {
  auto& pending = detail::of_backend<StagedPendingCombine>(state, "low_latency_combine");
  const StagedCall call(staging_, stream_of(pending.options.launch));
  call.fetch(pending.wait_ns.data, pending.options.wait_ns);
  call.fetched();
  const Tensor on_host = host_.receive(*pending.host);
  const TensorView& given = pending.options.out;
  Tensor out = given.defined() ? Tensor(given, nullptr) : call.make(on_host);
  call.give(out.data, on_host.data, on_host.bytes());
  if (pending.options.wait_ns.defined())
    call.give(pending.options.wait_ns.data, pending.wait_ns.data, pending.wait_ns.bytes());
  call.finish();
  return out;
}

/// The cores of a PE that has a GPU are idle while its rows pass through the host.
std::int32_t host_threads(const detail::GroupState& group) {
  constexpr std::int64_t kMost = 8;  // saturates memory bandwidth
  const std::int64_t here = group.world->placement().pes_on_host();
  return static_cast<std::int32_t>(
      std::clamp<std::int64_t>(std::thread::hardware_concurrency() / here, 1, kMost));
}

class StagedBackend final : public detail::Backend {
 public:
  explicit StagedBackend(Staging& staging)
      : staging_(staging),
        group_(staging.group),
        host_(host::make_backend(group_, host_threads(group_))) {
    normal_ = &normal_calls_;
    low_latency_ = &low_latency_calls_;
  }

  detail::BlockPlan block_plan() const override {
    detail::BlockPlan plan = host_->block_plan();
    plan.staging = true;
    return plan;
  }
  std::vector<observe::MemoryRegion> regions() const override { return host_->regions(); }
  void open() override {
    host_->open();
    staging_.block.emplace(group_.block, layout_.total);
  }
  std::optional<std::int32_t> failed_rank() const override { return host_->failed_rank(); }
  std::int32_t cause_of(std::int32_t failed) const override { return host_->cause_of(failed); }
  void warmup(Group& group) override;
  void synchronize() override {
    group_.world->memory().cuda()->activate();
    check(poll_while_not_ready([this] { return cudaStreamQuery(staging_.stream); },
                               "synchronize of an ep::Group"),
          "the group's stream");
  }
  void drain() override {
    const RelaxedCapture relaxed(*group_.world->memory().cuda());
    check(cudaStreamSynchronize(staging_.stream), "the group's stream");
    if (staging_.block) staging_.block->unpin();  // the memory can be released next
  }

 private:
  Tensor on_device(DataType dtype, std::initializer_list<std::int64_t> extents, const Tensor* from);

  Staging& staging_;
  detail::GroupState& group_;
  const std::unique_ptr<detail::Backend> host_;
  const host::GroupLayout layout_{group_.shape, group_.world->settings()};  // of the host backend
  StagedNormal normal_calls_{staging_, host_->normal(), layout_};
  StagedLowLatency low_latency_calls_{staging_, host_->low_latency()};
};

Tensor StagedBackend::on_device(DataType dtype, std::initializer_list<std::int64_t> extents,
                                const Tensor* from) {
  const StagedCall call(staging_, {});
  Tensor out = call.make(TensorView(nullptr, dtype, extents));
  if (from != nullptr)
    call.give(out.data, from->data, from->bytes());
  else if (out.bytes() > 0)
    check(cudaMemsetAsync(out.data, 0, out.bytes(), call.stream()), "warm-up");
  call.finish();
  return out;
}

void StagedBackend::warmup(Group& group) {
  const GroupOptions& options = group_.options;
  const auto topk = [&](std::int64_t tokens) {
    const Tensor even = detail::even_topk(tokens, options.top_k, options.experts);
    return on_device(DataType::int64, {tokens, options.top_k}, &even);
  };
  if (const std::int64_t tokens = options.max_tokens; tokens > 0) {
    const Tensor x = on_device(options.dtype, {tokens, options.hidden}, nullptr);
    const Dispatched received = group.dispatch(x, group.route(topk(tokens)));
    const DataType output_dtype =
        options.dtype == DataType::float8_e4m3 ? DataType::bfloat16 : options.dtype;
    if (options.combine_staging)
      group.combine(on_device(output_dtype, {received.x.shape[0], options.hidden}, nullptr),
                    received.handle);
  }
  if (const std::int64_t tokens = options.low_latency_max_tokens; tokens > 0) {
    const Tensor x = on_device(DataType::bfloat16, {tokens, options.hidden}, nullptr);
    const Tensor weights = on_device(DataType::float32, {tokens, options.top_k}, nullptr),
                 indices = topk(tokens);
    for (int half = 0; half < 2; ++half) {
      const LowLatencyReceived received =
          group.low_latency_dispatch(x, indices, {.quantize = Quantize::none}).receive();
      group
          .low_latency_combine(group.next_combine_buffer(), indices, weights, received.handle,
                               {.zero_copy = true})
          .receive();
    }
  }
}

}  // namespace

std::unique_ptr<detail::Backend> make_staged_backend(Staging& staging) {
  return std::make_unique<StagedBackend>(staging);
}

}  // namespace shoal::ep::cuda
