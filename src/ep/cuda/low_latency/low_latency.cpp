// SPDX-License-Identifier: Apache-2.0
#include "ep/cuda/low_latency/low_latency.hpp"

#include <algorithm>
#include <array>
#include <optional>

#include "base/log.hpp"
#include "ep/cuda/low_latency/kernels.cuh"
#include "ep/plan/cursor.hpp"
#include "memory/cuda/stream_pool.hpp"
#include "memory/device.hpp"

namespace shoal::ep::cuda {
namespace {

using detail::align_up;
using detail::ArrayCursor;
using detail::scale_groups;
using detail::Shape;

HandleView handle_view(void* block, const Shape& shape, std::size_t* bytes = nullptr) {
  const auto slots = static_cast<std::size_t>(shape.low_latency_rows());
  ArrayCursor cursor(block);
  HandleView view{};
  view.header = cursor.take<HandleHeader>(1);
  view.pairs = cursor.take<HandlePair>(slots);
  view.rows = cursor.take<std::int32_t>(slots * shape.top_k);
  view.weights = cursor.take<float>(slots * shape.top_k);
  view.topk = cursor.take<std::int32_t>(shape.low_latency_max_tokens * shape.top_k);
  if (bytes != nullptr) *bytes = cursor.bytes();
  return view;
}

PendingView pending_view(void* block, const Shape& shape, std::size_t* bytes = nullptr) {
  ArrayCursor cursor(block);
  PendingView view{};
  view.header = cursor.take<PendingHeader>(1);
  view.weights = cursor.take<float>(shape.low_latency_max_tokens * shape.top_k);
  if (bytes != nullptr) *bytes = cursor.bytes();
  return view;
}

/// The arrays of a result; offsets within its memory.
struct ResultLayout {
  std::size_t x, scales, counts, source_token, layout, total;

  ResultLayout(const Shape& shape, std::size_t element) {
    const std::size_t experts = shape.local_experts, rows = experts * shape.low_latency_rows();
    detail::Cursor cursor;
    x = cursor.take(rows * shape.hidden * element);
    scales = cursor.take(rows * scale_groups(shape.hidden) * sizeof(float));
    counts = cursor.take(experts * sizeof(std::int32_t));
    source_token = cursor.take(rows * sizeof(std::int32_t));
    layout = cursor.take(experts * shape.ranks * sizeof(std::int64_t));
    total = align_up(cursor.at, detail::Cursor::kAlignment);
  }
};

struct CudaLowLatencyHandle : detail::LowLatencyHandleState {
  std::shared_ptr<void> block;
  HandleView view{};
  std::uint64_t serial = 0;
};

struct CudaPendingDispatch : detail::PendingDispatchState {
  std::optional<LowLatencyReceived>
      received_already;  ///< where the receive was queued with the send
};

struct CudaPendingCombine : detail::PendingCombineState {
  std::optional<Tensor> received_already;  ///< likewise
  std::shared_ptr<void> block;
  PendingView view{};
  std::uint64_t serial = 0;
  Tensor out;  ///< allocated before anything is sent: a receive that found no memory would leave
               ///< the members out of step
};

AnswerForm form_of(const LowLatencyCombineOptions& options) {
  if (options.log_fmt) return AnswerForm::log_fmt;
  return options.reduction == Reduction::exact ? AnswerForm::rows : AnswerForm::sums;
}

/// Blocks of memory of one size whose contents stay where they are for the life of the group, two
/// by parity.
using ResultHalves = std::array<std::shared_ptr<void>, 2>;

}  // namespace

struct LowLatency::Parts {
  Parts(CudaGroup& owner, std::size_t handle_bytes, std::size_t pending_bytes)
      : group(owner),
        handles(handle_bytes, owner.resources),
        pendings(pending_bytes, owner.resources),
        probe_memory(take_pinned(sizeof(std::uint64_t))),
        probe_reply(static_cast<volatile std::uint64_t*>(probe_memory.get())) {}

  CudaGroup& group;
  BlockPool handles, pendings;
  ResultHalves results, float8_results, combine_buffers;
  std::shared_ptr<void> longest_wait;  ///< [3][ranks]: dispatch, combines of even and of odd number
  LowLatencyLimits limits{};
  std::uint64_t serial = 0;
  std::uint64_t dispatches_received = 0, combines_received = 0;  ///< receives that are queued
  std::vector<int> masked;  ///< by set_mask, or found in the report and told

  std::shared_ptr<CUstream_st> probe_stream;  ///< waits for no call
  std::shared_ptr<void> probe_memory;
  volatile std::uint64_t* probe_reply;
  std::uint64_t probes = 0;

  const Shape& shape() const { return group.state.shape; }

  LowLatencySizes sizes() const {
    return {static_cast<std::int32_t>(shape().hidden),
            static_cast<std::int32_t>(shape().low_latency_max_tokens)};
  }

  /// The bound of a call's blocks.
  LowLatencyLimits limits_for(const Launch& launch) const {
    LowLatencyLimits bounded = limits;
    if (launch.sms > 0)
      bounded.most_blocks =
          bounded.most_blocks > 0 ? std::min(bounded.most_blocks, launch.sms) : launch.sms;
    return bounded;
  }

  /// Memory that lives as long as the group, because captured graphs know its address. Makes both
  /// halves at once, so that a capture after one call of a kind needs none.
  template <typename Captured>
  void make(ResultHalves& halves, std::size_t bytes, const char* what, Captured&& captured) {
    if (halves[0] != nullptr) return;
    require_no_capture(what, captured());
    for (auto& half : halves) half = allocate(bytes, what);
  }

  static void require_no_capture(const char* what, bool captured) {
    require(
        !captured, Code::invalid_argument,
        "{}: a captured stream cannot allocate memory for its results; make the same call once before (or "
        "Group::warmup)",
        what);
  }

  std::shared_ptr<void> allocate(std::size_t bytes, const char* what) {
    BlockPool pool(bytes, group.resources);
    try {
      return pool.take();
    } catch (const Error& error) {
      fail(Code::exhausted, "{}: {} bytes of GPU memory for its results: {}", what, bytes,
           error.what());
    }
  }

  /// A block of a pool, of which some are kept ahead for calls that are captured and cannot
  /// allocate.
  std::shared_ptr<void> take(BlockPool& pool, cudaStream_t on) const {
    constexpr std::size_t kAhead = 2;
    auto block = pool.take();
    if (!group.capturing(on)) pool.reserve(kAhead);
    return block;
  }

  /// Where the rows of dispatch `epoch` go. Float8 results share the memory of bfloat16 ones where
  /// those exist.
  std::shared_ptr<void> result(std::uint64_t epoch, Quantize quantize, cudaStream_t on) {
    const auto captured = [&] { return group.capturing(on); };
    if (quantize != Quantize::none && results[0] == nullptr) {
      make(float8_results, ResultLayout(shape(), 1).total, "low_latency_dispatch", captured);
      return float8_results[epoch & 1];
    }
    if (float8_results[0] != nullptr && quantize != Quantize::none)
      return float8_results[epoch & 1];
    make(results, ResultLayout(shape(), 2).total, "low_latency_dispatch", captured);
    return results[epoch & 1];
  }

  /// What the first call of a group finds out; its memory and peers are not there before.
  void open(const char* what, cudaStream_t on) {
    if (longest_wait != nullptr) return;
    require_no_capture(what, group.capturing(on));
    const std::size_t bytes = 3 * shape().ranks * sizeof(std::uint64_t);
    auto memory = allocate(bytes, "low-latency mode");
    check(cudaMemsetAsync(memory.get(), 0, bytes, on), "low-latency mode");
    group.record(on);
    longest_wait = std::move(memory);
    // Members that share a GPU leave each other room; of each, a second call may be there that has
    // not begun.
    if (group.ranks_on_gpu > 1)
      limits.most_blocks = std::max(1, limits.multiprocessors / (2 * group.ranks_on_gpu));
  }

  /// Memory for the sums of a combine.
  Tensor combined(std::int64_t tokens) const {
    const std::size_t bytes =
        static_cast<std::size_t>(tokens * shape().hidden) * sizeof(std::uint16_t);
    try {
      return group.tensor(group.allocate(bytes), 0, DataType::bfloat16, {tokens, shape().hidden});
    } catch (const Error& error) {
      fail(
          Code::exhausted,
          "low_latency_combine: {} bytes of GPU memory for its result (or give LowLatencyCombineOptions.out): {}",
          bytes, error.what());
    }
  }

  std::uint64_t* waits_of_dispatch() const {
    return static_cast<std::uint64_t*>(longest_wait.get());
  }
  /// Of two that are under way the later one may wait for weights already.
  std::uint64_t* waits_of_combine(std::uint64_t epoch) const {
    return waits_of_dispatch() + (1 + (epoch & 1)) * static_cast<std::size_t>(shape().ranks);
  }

  /// Tells of the members that kernels have masked.
  void note_masked() {
    for (std::size_t rank = 0; group.device.mask_failed != 0 && rank < masked.size(); ++rank) {
      if (masked[rank] != 0 || group.report->masked[rank] == 0) continue;
      masked[rank] = 1;
      const GroupState& state = group.state;
      log::warn(
          "low-latency mode on PE {}: PE {} did not come within {} ms (longer where it waited for another), or has "
          "left this PE out; it is masked from now on",
          state.team.world_pe(state.me), state.team.world_pe(static_cast<Pe>(rank)),
          state.timeout.count());
    }
  }

  void load_kernels() const {
    load_low_latency_dispatch_send();
    load_low_latency_dispatch_receive();
    load_low_latency_combine_send(limits);
    load_low_latency_combine_receive();
    load_low_latency_probe();
  }

  /// Whether what `probe` asks for is there. The kernel that looks runs beside whatever the GPU
  /// does; where it does not get to run within a millisecond the answer is no.
  bool ask(LowLatencyProbe probe) {
    probe.group = group.device;
    probe.sizes = sizes();
    probe.reply = probe_reply;
    probe.sequence = ++probes;
    launch_low_latency_probe(probe, probe_stream.get());
    check(cudaGetLastError(), "ready");
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(1);
    while (*probe_reply / 2 != probe.sequence)
      if (std::chrono::steady_clock::now() > deadline) return false;
    return *probe_reply % 2 != 0;
  }
};

LowLatency::LowLatency(CudaGroup& group) : group_(group) {
  const Shape& shape = group.state.shape;
  std::size_t handle_bytes = 0, pending_bytes = 0;
  handle_view(nullptr, shape, &handle_bytes);
  pending_view(nullptr, shape, &pending_bytes);
  parts_ = std::make_unique<Parts>(group, handle_bytes, pending_bytes);
  if (shape.low_latency_max_tokens == 0) return;
  require(shape.low_latency_max_tokens < kMaxSlotTokens, Code::unsupported,
          "GroupOptions.low_latency_max_tokens is {}; on GPUs at most {}",
          shape.low_latency_max_tokens, kMaxSlotTokens - 1);
  require(
      shape.local_experts <= kMaxLocalExperts, Code::unsupported,
      "low-latency mode on GPUs has at most {} experts a member; this group has {} (GroupOptions.experts)",
      kMaxLocalExperts, shape.local_experts);
  require(
      shape.local_experts * shape.low_latency_rows() < kMaxLowLatencyRows, Code::unsupported,
      "low-latency mode on GPUs has fewer than {} rows a member; experts * low_latency_max_tokens is {}",
      kMaxLowLatencyRows, shape.local_experts * shape.low_latency_rows());
  const detail::DeviceLayout layout(shape);
  require(
      2 * shape.low_latency_max_tokens * layout.token_combine_rows *
              (layout.combine_row_bytes / sizeof(uint4)) <
          kMaxCombineRowChunks,
      Code::unsupported,
      "low-latency mode on GPUs has at most 64 GiB of answers; low_latency_max_tokens ({}) tokens with {} answers "
      "of {} bytes, twice, are more",
      shape.low_latency_max_tokens, layout.token_combine_rows, layout.combine_row_bytes);
  require(shape.hidden < std::int64_t{1} << 30, Code::unsupported,
          "GroupOptions.hidden is {}; on GPUs at most 2^30 - 1", shape.hidden);
  const memory::Device& gpu = *group.state.world->cuda();
  int shared_bytes = 0;
  check(cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, gpu.device),
        "shared memory");
  parts_->limits.multiprocessors = gpu.multiprocessors;
  parts_->limits.shared_bytes = static_cast<std::uint32_t>(shared_bytes);
  parts_->limits.dependent_launch = gpu.compute_capability >= 90;
  parts_->masked.assign(shape.ranks, 0);
  parts_->probe_stream = memory::cuda::take_stream(gpu, memory::cuda::StreamPriority::lowest);
  // The driver may wait for all kernels on this GPU when it loads one, those of other PEs that wait
  // for this one included: it does so now, before there are any.
  parts_->load_kernels();
  check(cudaGetLastError(), "kernels of low-latency mode");
}

LowLatency::~LowLatency() = default;

void LowLatency::preload() {
  const Shape& shape = group_.state.shape;
  if (shape.low_latency_max_tokens == 0) return;
  parts_->open("warm-up", group_.last_stream);
  constexpr std::size_t kOpenCalls = 4;  // two in flight and two whose results are in use
  parts_->handles.reserve(kOpenCalls + 2);
  parts_->pendings.reserve(kOpenCalls + 2);
  parts_->result(0, Quantize::none, group_.last_stream);
}

std::shared_ptr<detail::PendingDispatchState> LowLatency::dispatch(
    const TensorView& x, const TensorView& topk_idx, const LowLatencyDispatchOptions& options) {
  GroupState& state = group_.state;
  cudaStream_t on = group_.begin(options.launch);
  group_.throw_failed();
  parts_->open("low_latency_dispatch", on);
  parts_->note_masked();
  const std::uint64_t epoch = state.low_latency_dispatch_epoch + 1;
  require(
      options.defer_receive || parts_->dispatches_received + 1 == epoch, Code::invalid_argument,
      "low_latency_dispatch: with defer_receive = false its receive would come before that of number {}, which has "
      "not been received; receive that first",
      parts_->dispatches_received + 1);
  parts_->result(epoch, options.quantize,
                 on);  // memory first: nothing has been sent when there is none

  auto handle = std::make_shared<CudaLowLatencyHandle>();
  handle->group = state.weak_from_this();
  handle->epoch = epoch;
  auto routing = std::make_shared<detail::RoutingState>();
  routing->shape = state.shape;
  routing->tokens = topk_idx.shape[0];
  handle->routing = std::move(routing);
  handle->block = parts_->take(parts_->handles, on);
  handle->view = handle_view(handle->block.get(), state.shape);
  handle->serial = ++parts_->serial;
  handle->has_weights = options.weights.defined();

  LowLatencyDispatchSend call{};
  call.group = group_.device;
  call.sizes = parts_->sizes();
  call.x = x.as<std::uint16_t>();
  call.topk_idx = topk_idx.data;
  call.topk_is_64 = topk_idx.dtype == DataType::int64 ? 1 : 0;
  call.weights = group_.elements<float>(options.weights);
  call.tokens = static_cast<std::int32_t>(topk_idx.shape[0]);
  call.quantize = static_cast<std::uint32_t>(options.quantize);
  call.flags = options.defer_receive || group_.device.mask_failed != 0 ? 1 : 0;
  call.handle = handle->view;
  call.serial = handle->serial;
  state.world->set_progress(shoal::detail::Activity::low_latency_dispatch, epoch, "send queued");
  launch_low_latency_dispatch_send(call, parts_->limits_for(options.launch), on);
  options.defer_receive ? group_.end(options.launch, on) : group_.end_first();
  state.low_latency_dispatch_epoch = epoch;

  auto pending = std::make_shared<CudaPendingDispatch>();
  pending->group = state.shared_from_this();
  pending->handle = std::move(handle);
  pending->options = options;
  if (!options.defer_receive) pending->received_already = queue_receive(*pending, true);
  return pending;
}

bool LowLatency::ready(const detail::PendingDispatchState& pending) {
  if (static_cast<const CudaPendingDispatch&>(pending).received_already) return true;
  const auto& handle = static_cast<const CudaLowLatencyHandle&>(*pending.handle);
  group_.state.world->cuda()->activate();
  group_.throw_failed();
  if (std::chrono::steady_clock::now() > pending.sent_at + group_.state.timeout) return true;
  LowLatencyProbe probe{};
  probe.handle = handle.view;
  probe.serial = handle.serial;
  return parts_->ask(probe);
}

LowLatencyReceived LowLatency::receive(detail::PendingDispatchState& base) {
  auto& pending = static_cast<CudaPendingDispatch&>(base);
  return pending.received_already ? std::move(*pending.received_already)
                                  : queue_receive(pending, false);
}

LowLatencyReceived LowLatency::queue_receive(detail::PendingDispatchState& pending,
                                             bool behind_send) {
  GroupState& state = group_.state;
  const Shape& shape = state.shape;
  const auto& handle = static_cast<const CudaLowLatencyHandle&>(*pending.handle);
  const LowLatencyDispatchOptions& options = pending.options;
  const Launch launch{options.launch.stream, nullptr, options.launch.done, options.launch.sms};
  cudaStream_t on = group_.begin(launch);
  group_.throw_failed();
  const bool quantized = options.quantize != Quantize::none;
  const auto memory = parts_->result(handle.epoch, options.quantize, on);
  const ResultLayout layout(shape, quantized ? 1 : 2);
  const std::int64_t experts = shape.local_experts, rows = shape.low_latency_rows();

  LowLatencyReceived received;
  received.x =
      group_.tensor(memory, layout.x, quantized ? DataType::float8_e4m3 : DataType::bfloat16,
                    {experts, rows, shape.hidden});
  received.counts = group_.tensor(memory, layout.counts, DataType::int32, {experts});
  received.source_token =
      group_.tensor(memory, layout.source_token, DataType::int32, {experts, rows});
  received.layout = group_.tensor(memory, layout.layout, DataType::int64, {experts, shape.ranks});
  if (quantized) {
    const bool packed = options.quantize == Quantize::fp8_ue8m0;
    const std::int64_t groups = scale_groups(shape.hidden), n = packed ? (groups + 3) / 4 : groups;
    received.scales = group_.tensor(
        memory, layout.scales, packed ? DataType::int32 : DataType::float32, {experts, rows, n});
    received.scales.strides = {n * rows, 1, rows};
  }
  received.handle = LowLatencyHandle(pending.handle);

  LowLatencyDispatchReceive call{};
  call.group = group_.device;
  call.sizes = parts_->sizes();
  call.quantize = static_cast<std::uint32_t>(options.quantize);
  call.has_weights = handle.has_weights ? 1 : 0;
  call.x = received.x.as<std::byte>();
  call.scales = received.scales.data;
  call.counts = received.counts.as<std::int32_t>();
  call.source_token = received.source_token.as<std::int32_t>();
  call.layout = received.layout.as<std::int64_t>();
  call.expert_counts =
      options.expert_counts.defined() ? options.expert_counts.as<std::int32_t>() : nullptr;
  call.wait_ns = options.wait_ns.defined() ? options.wait_ns.as<std::int64_t>() : nullptr;
  call.longest_wait = parts_->waits_of_dispatch();
  call.handle = handle.view;
  call.grants = behind_send ? 0 : 1;
  call.chained = behind_send && parts_->limits.dependent_launch && group_.ranks_on_gpu == 1 ? 1 : 0;
  state.world->set_progress(shoal::detail::Activity::low_latency_dispatch, handle.epoch,
                            "receive queued");
  launch_low_latency_dispatch_receive(call, parts_->limits_for(launch), on);
  ++parts_->dispatches_received;
  group_.end(launch, on);
  return received;
}

std::shared_ptr<detail::PendingCombineState> LowLatency::combine(
    const TensorView& y, const TensorView&, const TensorView& weights,
    const std::shared_ptr<const detail::LowLatencyHandleState>& base,
    const LowLatencyCombineOptions& options) {
  GroupState& state = group_.state;
  const auto& handle = static_cast<const CudaLowLatencyHandle&>(*base);
  const AnswerForm form = form_of(options);
  cudaStream_t on = group_.begin(options.launch);
  group_.throw_failed();
  require(
      options.defer_receive || parts_->combines_received == state.low_latency_combine_epoch,
      Code::invalid_argument,
      "low_latency_combine: with defer_receive = false its receive would come before that of number {}, which has "
      "not been received; receive that first",
      parts_->combines_received + 1);
  parts_->open("low_latency_combine", on);
  require(
      options.out.defined() || !group_.capturing(on), Code::invalid_argument,
      "low_latency_combine: a captured stream needs LowLatencyCombineOptions.out: the result's memory must outlive "
      "the graph");
  if (form == AnswerForm::log_fmt) {
    const std::size_t needed =
        log_fmt_shared_bytes(group_.device, static_cast<std::int32_t>(state.shape.hidden));
    require(
        needed + kLogfmtStaticBytes <= parts_->limits.shared_bytes, Code::unsupported,
        "low_latency_combine: log_fmt puts rows together in {} bytes of shared memory, of which this GPU has {}; "
        "GroupOptions.hidden is {}",
        needed, parts_->limits.shared_bytes - kLogfmtStaticBytes, state.shape.hidden);
  }

  auto pending = std::make_shared<CudaPendingCombine>();
  pending->group = state.shared_from_this();
  pending->handle = base;
  pending->options = options;
  pending->block = parts_->take(parts_->pendings, on);
  pending->view = pending_view(pending->block.get(), state.shape);
  pending->serial = ++parts_->serial;
  pending->epoch = state.low_latency_combine_epoch + 1;
  pending->out = options.out.defined() ? Tensor(options.out, nullptr)
                                       : parts_->combined(handle.routing->tokens);

  LowLatencyCombineSend call{};
  call.group = group_.device;
  call.sizes = parts_->sizes();
  call.y = y.as<std::uint16_t>();
  call.expert_stride = y.strides[0];
  call.row_stride = y.strides[1];
  call.weights = weights.as<float>();
  call.tokens = static_cast<std::int32_t>(handle.routing->tokens);
  call.form = form;
  call.exact = options.reduction == Reduction::exact ? 1 : 0;
  call.weights_travelled = handle.has_weights ? 1 : 0;
  call.flags =
      options.defer_receive || group_.device.mask_failed != 0 || form == AnswerForm::log_fmt ? 1
                                                                                             : 0;
  call.longest_wait =
      options.wait_ns.defined() ? parts_->waits_of_combine(pending->epoch) : nullptr;
  call.handle = handle.view;
  call.pending = pending->view;
  call.serial = pending->serial;
  state.world->set_progress(shoal::detail::Activity::low_latency_combine, pending->epoch,
                            "send queued");
  launch_low_latency_combine_send(call, parts_->limits_for(options.launch), on);
  options.defer_receive ? group_.end(options.launch, on) : group_.end_first();
  state.low_latency_combine_epoch = pending->epoch;
  if (!options.defer_receive) pending->received_already = queue_receive(*pending, true);
  return pending;
}

bool LowLatency::ready(const detail::PendingCombineState& base) {
  const auto& pending = static_cast<const CudaPendingCombine&>(base);
  if (pending.received_already) return true;
  const auto& handle = static_cast<const CudaLowLatencyHandle&>(*pending.handle);
  group_.state.world->cuda()->activate();
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
  auto& pending = static_cast<CudaPendingCombine&>(base);
  return pending.received_already ? std::move(*pending.received_already)
                                  : queue_receive(pending, false);
}

Tensor LowLatency::queue_receive(detail::PendingCombineState& base, bool behind_send) {
  GroupState& state = group_.state;
  auto& pending = static_cast<CudaPendingCombine&>(base);
  const auto& handle = static_cast<const CudaLowLatencyHandle&>(*pending.handle);
  const LowLatencyCombineOptions& options = pending.options;
  const Launch launch{options.launch.stream, nullptr, options.launch.done, options.launch.sms};
  cudaStream_t on = group_.begin(launch);
  group_.throw_failed();
  LowLatencyCombineReceive call{};
  call.group = group_.device;
  call.sizes = parts_->sizes();
  call.out = pending.out.as<std::uint16_t>();
  call.tokens = static_cast<std::int32_t>(handle.routing->tokens);
  call.form = form_of(options);
  call.exact = options.reduction == Reduction::exact ? 1 : 0;
  call.weights_travelled = handle.has_weights ? 1 : 0;
  call.wait_ns = options.wait_ns.defined() ? options.wait_ns.as<std::int64_t>() : nullptr;
  call.longest_wait = parts_->waits_of_combine(pending.epoch);
  call.handle = handle.view;
  call.pending = pending.view;
  call.grants = behind_send ? 0 : 1;
  // Other forms read what the send keeps for them, statistics how long it waited for weights.
  const bool reads_of_send =
      call.form != AnswerForm::sums || (call.wait_ns != nullptr && !handle.has_weights);
  call.chained =
      behind_send && !reads_of_send && parts_->limits.dependent_launch && group_.ranks_on_gpu == 1
          ? 1
          : 0;
  state.world->set_progress(shoal::detail::Activity::low_latency_combine, pending.epoch,
                            "receive queued");
  launch_low_latency_combine_receive(call, parts_->limits_for(launch), on);
  ++parts_->combines_received;
  group_.end(launch, on);
  return std::move(pending.out);
}

/// Two buffers in turn: the kernel of the combine before last has read this one when its stream
/// gets here.
TensorView LowLatency::next_combine_buffer() {
  const Shape& shape = group_.state.shape;
  group_.state.world->cuda()->activate();
  group_.throw_failed();
  const std::size_t bytes = static_cast<std::size_t>(shape.local_experts) *
                            shape.low_latency_rows() * shape.hidden * sizeof(std::uint16_t);
  parts_->make(parts_->combine_buffers, bytes, "next_combine_buffer",
               [&] { return group_.last_call_captures(); });
  return group_.tensor(parts_->combine_buffers[(group_.state.low_latency_combine_epoch + 1) & 1], 0,
                       DataType::bfloat16,
                       {shape.local_experts, shape.low_latency_rows(), shape.hidden});
}

// Masks.

std::vector<int> LowLatency::masked() {
  parts_->note_masked();
  std::vector<int> all = parts_->masked;
  all.resize(group_.state.shape.ranks, 0);
  return all;
}

/// Behind what is queued on the group's stream, and before any later call.
void LowLatency::set_mask(std::int32_t rank, bool masked) {
  cudaStream_t on = group_.begin({});
  parts_->masked[rank] = masked ? 1 : 0;
  // Any value but 0 masks.
  check(cudaMemsetAsync(&group_.device.memory->masked[rank], masked ? 1 : 0, sizeof(std::uint32_t),
                        on),
        "set_mask");
  check(cudaStreamSynchronize(on), "set_mask");
  group_.report->masked[rank] = masked ? 1 : 0;
}

void LowLatency::clear_masks() {
  for (std::int32_t rank = 0; rank < group_.state.shape.ranks; ++rank)
    if (masked()[rank] != 0) set_mask(rank, false);
}

}  // namespace shoal::ep::cuda
