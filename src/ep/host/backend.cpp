// SPDX-License-Identifier: Apache-2.0
#include "ep/host/backend.hpp"

#include <algorithm>
#include <cstring>

#include "base/check.hpp"
#include "ep/host/low_latency/low_latency.hpp"
#include "ep/host/normal/normal.hpp"

namespace shoal::ep::host {
namespace {

class HostBackend final : public detail::Backend {
 public:
  explicit HostBackend(GroupState& group) : group_(group) {}

  // Only signals and notices need a known start; zeroing payload would touch pages that may never
  // be used.
  void open() override { std::memset(group_.block, 0, group_.host->layout.control_end); }
  std::optional<std::int32_t> failed_member() const override { return host::failed_member(group_); }

  Routing route(const TensorView& topk_idx, const Launch&) override;
  Dispatched dispatch(const detail::DispatchCall& call) override;
  Combined combine(const TensorView& y, const HandleState& handle,
                   const CombineOptions& options) override;

  std::shared_ptr<PendingDispatchState> low_latency_dispatch(
      const TensorView& x, const TensorView& topk_idx,
      const LowLatencyDispatchOptions& options) override;
  bool ready(const PendingDispatchState& pending) override {
    return all_sent(pending.sent_at, group_.host->layout.slots_sent, pending.handle->epoch);
  }
  LowLatencyReceived receive(PendingDispatchState& pending) override {
    return committed(group_, [&] { return low_latency_dispatch_receive(pending); });
  }
  std::shared_ptr<PendingCombineState> low_latency_combine(
      const TensorView& y, const TensorView& topk_idx, const TensorView& weights,
      const std::shared_ptr<const LowLatencyHandleState>& handle,
      const LowLatencyCombineOptions& options) override;
  bool ready(const PendingCombineState& pending) override {
    return all_sent(pending.sent_at, group_.host->layout.answers_ready, pending.epoch);
  }
  Tensor receive(PendingCombineState& pending) override {
    return committed(group_, [&] { return low_latency_combine_receive(pending); });
  }
  TensorView next_combine_buffer() override;

  std::vector<int> masked() const override {
    return {group_.host->masked.begin(), group_.host->masked.end()};
  }
  void set_mask(std::int32_t member, bool masked) override {
    group_.host->masked[member] = masked ? 1 : 0;
    group_.host->out_of_reach[member] = 0;
  }
  void clear_masks() override {
    for (std::int32_t member = 0; member < group_.shape.ranks; ++member) set_mask(member, false);
  }

  void warmup(Group& group) override;

 private:
  /// Whether a receive would return or throw without waiting: everybody has sent, has failed, or
  /// had the time to.
  bool all_sent(std::chrono::steady_clock::time_point sent_at, std::size_t signals,
                std::uint64_t epoch) const {
    if (std::chrono::steady_clock::now() > sent_at + group_.timeout) return true;
    for (std::int32_t rank = 0; rank < group_.shape.ranks; ++rank)
      if (!group_.host->masked[rank] && read_signal(group_, signals, rank) < epoch &&
          !group_.world->has_failed(group_.team.world_pe(rank)))
        return false;
    return true;
  }

  GroupState& group_;
};

Routing HostBackend::route(const TensorView& topk_idx, const Launch&) {
  const auto& shape = group_.shape;
  const std::int64_t most = std::max(shape.max_tokens, shape.low_latency_max_tokens);
  auto state = detail::make_routing(detail::checked_topk(topk_idx, shape, most, "route"), shape);
  Routing routing;
  routing.topk_idx = state->topk_idx;
  routing.tokens_per_rank = state->tokens_per_rank;
  routing.tokens_per_expert = state->tokens_per_expert;
  routing.state = std::move(state);
  return routing;
}

Dispatched HostBackend::dispatch(const detail::DispatchCall& call) {
  return committed(group_, [&] {
    const DispatchPlan plan = notify(group_.shared_from_this(), call);
    dispatch_send(group_, call, plan);
    ++group_.statistics.dispatches;
    return dispatch_receive(group_, call, plan);
  });
}

Combined HostBackend::combine(const TensorView& y, const HandleState& handle,
                              const CombineOptions& options) {
  check_staging(group_, y, options);
  return committed(group_, [&] {
    const NoticeBoard board = combine_send(group_, y, handle, options);
    ++group_.statistics.combines;
    return combine_receive(group_, y, handle, options, board);
  });
}

std::shared_ptr<PendingDispatchState> HostBackend::low_latency_dispatch(
    const TensorView& x, const TensorView& topk_idx, const LowLatencyDispatchOptions& options) {
  auto pending = std::make_shared<PendingDispatchState>();
  pending->group = group_.shared_from_this();
  pending->options = options;
  auto routing = detail::make_routing(
      detail::checked_topk(topk_idx, group_.shape, group_.shape.low_latency_max_tokens,
                           "low_latency_dispatch"),
      group_.shape);
  pending->handle = committed(
      group_, [&] { return low_latency_dispatch_send(group_, x, std::move(routing), options); });
  ++group_.statistics.low_latency_dispatches;
  return pending;
}

std::shared_ptr<PendingCombineState> HostBackend::low_latency_combine(
    const TensorView& y, const TensorView&, const TensorView& weights,
    const std::shared_ptr<const LowLatencyHandleState>& handle,
    const LowLatencyCombineOptions& options) {
  auto pending = std::make_shared<PendingCombineState>();
  pending->group = group_.shared_from_this();
  pending->handle = handle;
  pending->options = options;
  pending->weights.assign(weights.as<float>(), weights.as<float>() + weights.size());
  require(!handle->has_weights || pending->weights.empty() ||
              std::memcmp(pending->weights.data(), handle->weights.data(), weights.bytes()) == 0,
          Code::invalid_argument,
          "low_latency_combine: weights differ from those that were given to the dispatch");
  pending->epoch =
      committed(group_, [&] { return low_latency_combine_send(group_, y, *handle, options); });
  ++group_.statistics.low_latency_combines;
  return pending;
}

TensorView HostBackend::next_combine_buffer() {
  const auto& shape = group_.shape;
  const detail::GroupLayout& layout = group_.host->layout;
  const std::uint64_t epoch = group_.low_latency_combine_epoch + 1;
  wait_for_answer_buffer(group_, epoch);
  TensorView view(group_.block + layout.answer(epoch, 0, 0, shape), DataType::bfloat16,
                  {shape.local_experts, shape.low_latency_rows(), shape.hidden});
  const auto stride = static_cast<std::int64_t>(layout.answer_stride / 2);
  view.strides = {shape.low_latency_rows() * stride, stride, 1};
  return view;
}

// Warm-up: real operations of the largest size on made-up tokens, so that code, pages and peers are
// those that. later calls use.

Tensor zeros(DataType dtype, std::initializer_list<std::int64_t> shape) {
  Tensor tensor = Tensor::empty(dtype, shape);
  if (tensor.bytes() > 0) std::memset(tensor.data, 0, tensor.bytes());
  return tensor;
}

void warm_normal(Group& group, const GroupOptions& options) {
  const Routing routing =
      group.route(detail::even_topk(options.max_tokens, options.top_k, options.experts));
  const Tensor x = zeros(options.dtype, {options.max_tokens, options.hidden});
  Dispatched received = group.dispatch(x, routing);
  if (options.dtype == DataType::float8_e4m3)
    group.combine(zeros(DataType::bfloat16, {received.x.shape[0], options.hidden}),
                  received.handle);
  else
    group.combine(received.x, received.handle);
}

void warm_low_latency(Group& group, const GroupOptions& options) {
  const Tensor topk =
      detail::even_topk(options.low_latency_max_tokens, options.top_k, options.experts);
  const Tensor x = zeros(DataType::bfloat16, {options.low_latency_max_tokens, options.hidden});
  const Tensor weights = zeros(DataType::float32, {options.low_latency_max_tokens, options.top_k});
  for (const Quantize quantize :
       {Quantize::none, Quantize::fp8}) {  // both forms, and both halves of the buffers
    if (quantize == Quantize::fp8 && options.hidden % 16 != 0) continue;
    const LowLatencyReceived received =
        group.low_latency_dispatch(x, topk, {.quantize = quantize}).receive();
    const TensorView y = group.next_combine_buffer();
    group.low_latency_combine(y, topk, weights, received.handle, {.zero_copy = true}).receive();
  }
}

void HostBackend::warmup(Group& group) {
  const GroupOptions options = group_.options;
  if (options.max_tokens > 0) warm_normal(group, options);
  if (options.low_latency_max_tokens > 0) warm_low_latency(group, options);
}

}  // namespace

std::unique_ptr<detail::Backend> make_backend(detail::GroupState& state) {
  return std::make_unique<HostBackend>(state);
}

}  // namespace shoal::ep::host
