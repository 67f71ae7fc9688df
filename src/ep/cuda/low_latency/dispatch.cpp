// SPDX-License-Identifier: Apache-2.0
#include "ep/cuda/low_latency/low_latency.hpp"
#include "ep/cuda/low_latency/parts.hpp"
#include "pe/memory.hpp"

namespace shoal::ep::cuda {

std::shared_ptr<detail::PendingDispatchState> LowLatency::dispatch(
    const ConstTensorView& x, const ConstTensorView& topk_idx,
    const LowLatencyDispatchOptions& options) {
  GroupState& state = group_.state;
  cudaStream_t on = group_.begin(options.launch);
  group_.throw_failed();
  parts_->bound_blocks();
  parts_->note_masked();
  const std::uint64_t epoch = state.low_latency_dispatch_epoch + 1;
  require(
      options.defer_receive || parts_->dispatches_received + 1 == epoch, Code::invalid_argument,
      "SHOAL-N523: low_latency_dispatch: with defer_receive = false its receive would come before "
      "that of number {}, which has not been received; receive that first",
      parts_->dispatches_received + 1);
  LowLatencyReceived result = make_result(epoch, options);  // allocates before anything is sent
  struct UndoUnlessSent {
    ResultMemory* results;
    ~UndoUnlessSent() {
      if (results != nullptr) results->undo();
    }
  } unsent{&parts_->results};

  auto handle = std::make_shared<CudaLowLatencyHandle>();
  handle->group = state.weak_from_this();
  handle->epoch = epoch;
  auto routing = std::make_shared<detail::RoutingState>();
  routing->shape = state.shape;
  routing->tokens = topk_idx.shape[0];
  handle->routing = std::move(routing);
  handle->block = group_.take(parts_->handles);
  handle->view = handle_view(handle->block.get(), state.shape);
  handle->serial = ++parts_->serial;
  handle->has_weights = options.weights.defined();

  LowLatencyDispatchSend call{};
  call.group = parts_->device();
  call.sizes = parts_->sizes();
  call.x = x.as<std::uint16_t>();
  call.topk_idx = topk_idx.data;
  call.topk_is_64 = topk_idx.dtype == DataType::int64 ? 1 : 0;
  call.weights = group_.elements<float>(options.weights);
  call.tokens = static_cast<std::int32_t>(topk_idx.shape[0]);
  call.global_scale = group_.elements<float>(options.global_scale);
  call.quantize = static_cast<std::uint32_t>(options.quantize);
  call.row = WireRow(options.quantize, state.shape.hidden, call.group.layout.slot_bytes);
  call.flags = options.defer_receive || group_.device.mask_failed != 0 ? 1 : 0;
  call.handle = handle->view;
  call.serial = handle->serial;
  const std::int64_t rows = handle->routing->tokens * state.shape.top_k;
  const auto row_bytes =
      static_cast<std::int64_t>(detail::RowFormat(options.quantize).row_bytes(state.shape.hidden));
  state.recorder.moves_at_most(static_cast<std::uint64_t>(rows),
                               static_cast<std::uint64_t>(rows * row_bytes));
  state.world->progress().set(shoal::detail::Activity::low_latency_dispatch, epoch, "send queued");
  ++state.statistics.low_latency_dispatches;
  const bool joined = !options.defer_receive && parts_->joins(options.launch) &&
                      joins_dispatch(call.tokens, parts_->limits.multiprocessors);
  if (!joined) {
    if (group_.device.mask_failed != 0) wait_arrival(Arrival::dispatch_grants, nullptr, on);
    launch_low_latency_dispatch_send(call, parts_->limits_for(options.launch), on);
    unsent.results = nullptr;
    forward(call, on);
    if (options.defer_receive)
      group_.end(options.launch, on);
    else
      group_.end_first();
    state.low_latency_dispatch_epoch = epoch;
  }

  auto pending = std::make_shared<CudaPendingDispatch>();
  pending->group = state.shared_from_this();
  pending->handle = std::move(handle);
  pending->options = options;
  pending->captured = group_.captures();
  result.handle = shoal::detail::Access::make<LowLatencyHandle>(pending->handle);
  pending->result = std::move(result);
  if (!options.defer_receive) {
    queue_receive(*pending, true, joined ? &call : nullptr);
    unsent.results = nullptr;
    pending->receive_queued = true;
  }
  return pending;
}

LowLatencyReceived LowLatency::make_result(std::uint64_t epoch,
                                           const LowLatencyDispatchOptions& options) {
  const Shape& shape = group_.state.shape;
  const std::int64_t experts = shape.local_experts, rows = shape.low_latency_rows();
  const ResultLayout layout(shape, options.quantize);
  const std::shared_ptr<void> memory = parts_->result(options.quantize);
  auto* const base = static_cast<std::byte*>(memory.get());
  const auto here = [&](TensorView view) {
    view.device = group_.state.device;
    return Tensor(view, memory);
  };
  const auto& half = parts_->result_halves[epoch & 1];
  LowLatencyReceived result;
  result.x = here(detail::rows_view(base + layout.x, options.quantize, shape));
  if (options.quantize != Quantize::none)
    result.scales = here(
        detail::scales_view(base + layout.scales, options.quantize, options.scale_layout, shape));
  result.counts = group_.tensor(half, layout.counts, DataType::int32, {experts});
  result.source_token = group_.tensor(half, layout.source_token, DataType::int32, {experts, rows});
  result.layout = group_.tensor(half, layout.layout, DataType::int64, {experts, shape.ranks});
  return result;
}

bool LowLatency::ready(const detail::PendingDispatchState& pending) {
  if (detail::of_backend<CudaPendingDispatch>(pending, "low_latency_dispatch").receive_queued)
    return true;
  const auto& handle =
      detail::of_backend<CudaLowLatencyHandle>(*pending.handle, "low_latency_dispatch");
  group_.state.world->memory().cuda()->activate();
  group_.throw_failed();
  if (std::chrono::steady_clock::now() > pending.sent_at + group_.state.timeout) return true;
  LowLatencyProbe probe{};
  probe.handle = handle.view;
  probe.serial = handle.serial;
  return parts_->ask(probe);
}

LowLatencyReceived LowLatency::receive(detail::PendingDispatchState& base) {
  auto& pending = detail::of_backend<CudaPendingDispatch>(base, "low_latency_dispatch");
  if (pending.captured && pending.dropped) {  // its capture has failed, so nothing was sent
    ++parts_->dispatches_received;
    return {};
  }
  if (!pending.receive_queued) queue_receive(pending, false, nullptr);
  return std::move(*pending.result);
}

void LowLatency::queue_receive(const detail::PendingDispatchState& pending, bool behind_send,
                               const LowLatencyDispatchSend* joined) {
  GroupState& state = group_.state;
  const Shape& shape = state.shape;
  const auto& handle =
      detail::of_backend<CudaLowLatencyHandle>(*pending.handle, "low_latency_dispatch");
  const LowLatencyDispatchOptions& options = pending.options;
  const Launch launch{options.launch.stream, nullptr, options.launch.done, options.launch.sms};
  cudaStream_t on = group_.begin(launch);
  group_.throw_failed();
  group_.uses(handle.block);
  const LowLatencyReceived& result = *pending.result;

  LowLatencyDispatchReceive call{};
  call.group = parts_->device();
  call.sizes = parts_->sizes();
  call.quantize = static_cast<std::uint32_t>(options.quantize);
  call.has_weights = handle.has_weights ? 1 : 0;
  call.row = WireRow(options.quantize, shape.hidden, call.group.layout.slot_bytes);
  // The caller may have changed it before a deferred receive.
  call.global_scale = behind_send ? group_.elements<float>(options.global_scale)
                                  : &handle.view.header->global_scale;
  call.x = result.x.as<std::byte>();
  call.scales = result.scales ? result.scales->as<std::uint32_t>() : nullptr;
  call.scale_words = detail::ScaleWords(options.quantize, options.scale_layout, shape.hidden,
                                        shape.low_latency_rows());
  call.counts = result.counts.as<std::int32_t>();
  call.source_token = result.source_token.as<std::int32_t>();
  call.layout = result.layout.as<std::int64_t>();
  call.expert_counts =
      options.tokens_per_expert.defined() ? options.tokens_per_expert.as<std::int32_t>() : nullptr;
  call.wait_ns = options.wait_ns.defined() ? options.wait_ns.as<std::int64_t>() : nullptr;
  call.longest_wait = parts_->waits_of_dispatch();
  call.handle = handle.view;
  call.grants = behind_send ? 0 : 1;
  call.chained = behind_send && parts_->chains() ? 1 : 0;
  state.world->progress().set(shoal::detail::Activity::low_latency_dispatch, handle.epoch,
                              "receive queued");
  if (joined != nullptr) {
    LowLatencyDispatch both{*joined, call, 0, 0};
    launch_low_latency_dispatch(both, parts_->limits, on);
    state.low_latency_dispatch_epoch = handle.epoch;
  } else {
    wait_arrival(Arrival::dispatch, call.wait_ns != nullptr ? call.longest_wait : nullptr, on);
    launch_low_latency_dispatch_receive(call, parts_->limits_for(launch), on);
    forward_signals(on);
  }
  ++parts_->dispatches_received;
  group_.end(launch, on);
}

}  // namespace shoal::ep::cuda
