// SPDX-License-Identifier: Apache-2.0
#include "ep/cuda/low_latency/low_latency.hpp"
#include "ep/cuda/low_latency/parts.hpp"
#include "pe/memory.hpp"

namespace shoal::ep::cuda {
namespace {

/// Sets the parameters that follow from the caller's arguments alone.
LowLatencyCombineSend send_of(const ConstTensorView& y, const ConstTensorView& weights,
                              const CudaLowLatencyHandle& handle,
                              const LowLatencyCombineOptions& options) {
  LowLatencyCombineSend call{};
  call.y = y.as<std::uint16_t>();
  call.expert_stride = y.strides[0];
  call.row_stride = y.strides[1];
  call.weights = weights.as<float>();
  call.tokens = static_cast<std::int32_t>(handle.routing->tokens);
  call.form = form_of(options);
  call.exact = options.reduction == Reduction::exact ? 1 : 0;
  call.weights_travelled = handle.has_weights ? 1 : 0;
  call.unsummed =
      is_sums(call.form) && detail::sends_unsummed(handle.has_weights, options.defer_receive, false)
          ? 1
          : 0;
  call.keeps_weights = options.defer_receive && !options.unsummed ? 1 : 0;
  call.handle = handle.view;
  return call;
}

/// True if the receive reads what the send leaves when it has ended: for statistics, how long it
/// waited for weights.
bool reads_of_send(const CudaLowLatencyHandle& handle, const LowLatencyCombineOptions& options) {
  return is_sums(form_of(options)) && options.wait_ns.defined() && !handle.has_weights;
}

}  // namespace

std::shared_ptr<detail::PendingCombineState> LowLatency::combine(
    const ConstTensorView& y, const ConstTensorView&, const ConstTensorView& weights,
    const std::shared_ptr<const detail::LowLatencyHandleState>& base,
    const LowLatencyCombineOptions& options) {
  GroupState& state = group_.state;
  const auto& handle = detail::of_backend<CudaLowLatencyHandle>(*base, "low_latency_combine");
  cudaStream_t on = group_.begin(options.launch);
  group_.throw_failed();
  require(
      options.defer_receive || parts_->combines_received == state.low_latency_combine_epoch,
      Code::invalid_argument,
      "SHOAL-N523: low_latency_combine: with defer_receive = false its receive would come before "
      "that of number {}, which has not been received; receive that first",
      parts_->combines_received + 1);
  parts_->bound_blocks();
  require(
      options.out.defined() || !group_.captures(), Code::invalid_argument,
      "SHOAL-N536: low_latency_combine: a captured stream needs LowLatencyCombineOptions.out: the "
      "result's memory must outlive the graph");
  group_.uses(handle.block);

  auto pending = std::make_shared<CudaPendingCombine>();
  pending->group = state.shared_from_this();
  pending->handle = base;
  pending->options = options;
  pending->block = group_.take(parts_->pendings);
  pending->view = pending_view(pending->block.get(), state.shape);
  pending->serial = ++parts_->serial;
  pending->captured = group_.captures();
  pending->epoch = state.low_latency_combine_epoch + 1;
  pending->out = options.out.defined() ? Tensor(options.out, nullptr)
                                       : parts_->combined(handle.routing->tokens, options.unsummed);

  LowLatencyCombineSend call = send_of(y, weights, handle, options);
  call.group = parts_->device();
  call.sizes = parts_->sizes();
  call.flags = options.defer_receive || group_.device.mask_failed != 0 ? 1 : 0;
  call.longest_wait =
      options.wait_ns.defined() ? parts_->waits_of_combine(pending->epoch) : nullptr;
  call.pending = pending->view;
  call.serial = pending->serial;
  const auto rows = static_cast<std::uint64_t>(handle.routing->tokens * state.shape.top_k);
  state.recorder.moves_at_most(rows, rows * static_cast<std::uint64_t>(state.shape.hidden * 2));
  state.world->progress().set(shoal::detail::Activity::low_latency_combine, pending->epoch,
                              "send queued");
  ++state.statistics.low_latency_combines;
  const bool joined = !options.defer_receive && parts_->joins(options.launch) &&
                      call.form == CombineRowForm::sums && !reads_of_send(handle, options) &&
                      joins_combine(state.shape.ranks, call.tokens, parts_->limits.multiprocessors);
  if (!joined) {
    if (group_.device.mask_failed != 0) wait_arrival(Arrival::combine_grants, nullptr, on);
    prepare_sums(call, options.defer_receive, on);
    launch_low_latency_combine_send(call, parts_->limits_for(options.launch), on);
    forward(call, on);
    if (options.defer_receive)
      group_.end(options.launch, on);
    else
      group_.end_first();
    state.low_latency_combine_epoch = pending->epoch;
  }
  if (!options.defer_receive)
    pending->received_already =
        queue_receive(*pending, call.weights, true, joined ? &call : nullptr);
  return pending;
}

bool LowLatency::ready(const detail::PendingCombineState& base) {
  const auto& pending = detail::of_backend<CudaPendingCombine>(base, "low_latency_combine");
  if (pending.received_already) return true;
  const auto& handle =
      detail::of_backend<CudaLowLatencyHandle>(*pending.handle, "low_latency_combine");
  group_.state.world->memory().cuda()->activate();
  group_.throw_failed();
  if (std::chrono::steady_clock::now() > pending.sent_at + group_.state.timeout) return true;
  LowLatencyProbe probe{};
  probe.handle = handle.view;
  probe.pending = pending.view;
  probe.serial = pending.serial;
  probe.tokens = static_cast<std::int32_t>(handle.routing->tokens);
  probe.form = form_of(pending.options);
  return parts_->ask(probe);
}

Tensor LowLatency::receive(detail::PendingCombineState& base) {
  auto& pending = detail::of_backend<CudaPendingCombine>(base, "low_latency_combine");
  if (pending.captured && pending.dropped) {  // its capture has failed, so nothing was sent
    ++parts_->combines_received;
    return {};
  }
  return pending.received_already ? std::move(*pending.received_already)
                                  : queue_receive(pending, pending.view.weights, false, nullptr);
}

Tensor LowLatency::queue_receive(detail::PendingCombineState& base, const float* weights,
                                 bool behind_send, const LowLatencyCombineSend* joined) {
  GroupState& state = group_.state;
  auto& pending = detail::of_backend<CudaPendingCombine>(base, "low_latency_combine");
  const auto& handle =
      detail::of_backend<CudaLowLatencyHandle>(*pending.handle, "low_latency_combine");
  const LowLatencyCombineOptions& options = pending.options;
  const Launch launch{options.launch.stream, nullptr, options.launch.done, options.launch.sms};
  cudaStream_t on = group_.begin(launch);
  group_.throw_failed();
  group_.uses(handle.block);
  group_.uses(pending.block);
  // The caller's memory may be gone.
  if (pending.dropped) pending.out = parts_->combined(handle.routing->tokens, options.unsummed);
  LowLatencyCombineReceive call{};
  call.group = parts_->device();
  call.sizes = parts_->sizes();
  call.out = pending.out.as<std::uint16_t>();
  call.tokens = static_cast<std::int32_t>(handle.routing->tokens);
  call.form = form_of(options);
  call.exact = options.reduction == Reduction::exact ? 1 : 0;
  call.weights_travelled = handle.has_weights ? 1 : 0;
  call.unsummed = options.unsummed ? 1 : 0;
  call.weights = options.unsummed ? nullptr : weights;
  call.wait_ns = options.wait_ns.defined() ? options.wait_ns.as<std::int64_t>() : nullptr;
  call.longest_wait = parts_->waits_of_combine(pending.epoch);
  call.handle = handle.view;
  call.pending = pending.view;
  call.grants = behind_send ? 0 : 1;
  call.chained = behind_send && !reads_of_send(handle, options) && parts_->chains() ? 1 : 0;
  state.world->progress().set(shoal::detail::Activity::low_latency_combine, pending.epoch,
                              "receive queued");
  if (joined != nullptr) {
    LowLatencyCombine both{*joined, call, 0};
    launch_low_latency_combine(both, parts_->limits, on);
    state.low_latency_combine_epoch = pending.epoch;
  } else {
    wait_arrival(Arrival::combine, call.wait_ns != nullptr ? call.longest_wait : nullptr, on);
    launch_low_latency_combine_receive(call, parts_->limits_for(launch), on);
    forward_signals(on);
  }
  ++parts_->combines_received;
  group_.end(launch, on);
  return std::move(pending.out);
}

}  // namespace shoal::ep::cuda
