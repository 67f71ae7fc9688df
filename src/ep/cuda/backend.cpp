// SPDX-License-Identifier: Apache-2.0
#include "ep/cuda/backend.hpp"

#include <algorithm>
#include <atomic>
#include <thread>

#include "ep/checks.hpp"
#include "ep/cuda/low_latency/low_latency.hpp"
#include "ep/cuda/normal/normal.cuh"
#include "ep/cuda/shares.hpp"
#include "ep/cuda/warmup.hpp"
#include "ep/plan/cursor.hpp"
#include "memory/cuda/stream_pool.hpp"

namespace shoal::ep::cuda {
namespace {

using detail::ArrayCursor;
using detail::HandleState;
using detail::kNoRoom;
using detail::Region;
using detail::RoutingState;

RoutingArrays routing_arrays(std::byte* block, std::int64_t tokens, const detail::Shape& shape,
                             std::size_t* bytes) {
  ArrayCursor cursor(block);
  RoutingArrays arrays{};
  arrays.topk_idx = cursor.take<std::int64_t>(tokens * shape.top_k);
  arrays.copies = cursor.take<std::int32_t>(tokens * std::min(shape.top_k, shape.ranks));
  arrays.rank_counts = cursor.take<std::int32_t>(shape.ranks);
  arrays.expert_counts = cursor.take<std::int32_t>(shape.experts);
  arrays.ordinals = cursor.take<std::int32_t>(tokens * shape.top_k);
  if (bytes != nullptr) *bytes = cursor.bytes();
  return arrays;
}

HandleArrays handle_arrays(std::byte* block, const detail::Shape& shape, std::size_t* bytes) {
  ArrayCursor cursor(block);
  HandleArrays arrays{};
  arrays.epoch = cursor.take<std::uint64_t>(1);
  arrays.first_row = cursor.take<std::int32_t>(shape.ranks);
  arrays.received = cursor.take<std::int32_t>(shape.ranks);
  arrays.expert_counts = cursor.take<std::int32_t>(shape.local_experts);
  arrays.expert_rows = cursor.take<std::int32_t>(shape.experts);
  arrays.expert_first_row = cursor.take<std::int32_t>(shape.local_experts + 1);
  if (bytes != nullptr) *bytes = cursor.bytes();
  return arrays;
}

/// Bytes from the first to the last element of rows.
std::size_t extent_of(const TensorView& data) {
  return ((data.shape[0] - 1) * data.strides[0] + (data.rank > 1 ? data.shape[1] : 1)) *
         size_of(data.dtype);
}

std::size_t routing_bytes(const detail::Shape& shape) {
  std::size_t bytes = 0;
  routing_arrays(nullptr, std::max(shape.max_tokens, shape.low_latency_max_tokens), shape, &bytes);
  return bytes;
}

std::size_t handle_bytes(const detail::Shape& shape) {
  std::size_t bytes = 0;
  handle_arrays(nullptr, shape, &bytes);
  return bytes;
}

struct CudaRouting : RoutingState {
  static constexpr auto kBackend = detail::BackendKind::cuda;
  CudaRouting() { backend = kBackend; }

  RoutingArrays arrays{};
  /// The group on whose streams RoutingArrays::ordinals have been computed; others compute them
  /// again, as nothing orders their streams.
  mutable std::atomic<const GroupState*> lanes_numbered_by = nullptr;
  std::shared_ptr<void> block;
};

struct CudaHandle : HandleState {
  static constexpr auto kBackend = detail::BackendKind::cuda;
  CudaHandle() { backend = kBackend; }

  HandleArrays arrays{};
  std::shared_ptr<void> block;
  std::vector<std::int64_t> rows_per_source;  // empty: the sizes never reached the host
};

class CudaBackend final : public detail::Backend {
 public:
  explicit CudaBackend(GroupState& state)
      : state_(state),
        group_(state),
        routings_(routing_bytes(state.shape), group_.resources),
        handles_(handle_bytes(state.shape), group_.resources),
        low_latency_(group_),
        shares_(state) {
    const std::size_t scales = state.shape.max_scales * 4;
    require(
        state.shape.max_tokens == 0 || state.shape.max_row_bytes + scales <= kMaxRowBytes,
        Code::unsupported,
        "rows of {} bytes and {} bytes of scales; on GPUs at most {} together (GroupOptions.hidden, dtype)",
        state.shape.max_row_bytes, scales, kMaxRowBytes);
    require(state.shape.max_tokens < kMaxDeviceTokens, Code::unsupported,
            "GroupOptions.max_tokens is {}; on GPUs at most {}", state.shape.max_tokens,
            kMaxDeviceTokens - 1);
  }

  detail::BackendKind kind() const override { return detail::BackendKind::cuda; }
  detail::BlockPlan block_plan() const override {
    const detail::DeviceLayout layout(state_.shape);
    return {.bytes = layout.total,
            .arena_bytes = layout.arena_bytes,
            .arena_results = static_cast<std::size_t>(state_.shape.live_results)};
  }
  void open() override;
  std::optional<std::int32_t> failed_rank() const override {
    return std::nullopt;
  }  // its own calls say so
  std::optional<std::int32_t> ask_failed_rank() override { return group_.ask_failed_rank(); }
  Routing route(const TensorView& topk_idx, const Launch& launch) override;
  Dispatched dispatch(const detail::DispatchCall& call) override;
  Combined combine(const TensorView& y, const HandleState& state,
                   const CombineOptions& options) override;

  std::shared_ptr<detail::PendingDispatchState> low_latency_dispatch(
      const TensorView& x, const TensorView& topk_idx,
      const LowLatencyDispatchOptions& options) override {
    group_.throw_failed();
    ++state_.statistics.low_latency_dispatches;
    return low_latency_.dispatch(x, topk_idx, options);
  }
  bool ready(const detail::PendingDispatchState& pending) override {
    return low_latency_.ready(pending);
  }
  LowLatencyReceived receive(detail::PendingDispatchState& pending) override {
    return low_latency_.receive(pending);
  }
  std::shared_ptr<detail::PendingCombineState> low_latency_combine(
      const TensorView& y, const TensorView& topk_idx, const TensorView& weights,
      const std::shared_ptr<const detail::LowLatencyHandleState>& handle,
      const LowLatencyCombineOptions& options) override {
    group_.throw_failed();
    ++state_.statistics.low_latency_combines;
    return low_latency_.combine(y, topk_idx, weights, handle, options);
  }
  bool ready(const detail::PendingCombineState& pending) override {
    return low_latency_.ready(pending);
  }
  Tensor receive(detail::PendingCombineState& pending) override {
    return low_latency_.receive(pending);
  }
  TensorView next_combine_buffer() override { return low_latency_.next_combine_buffer(); }
  std::vector<int> masked() const override { return low_latency_.masked(); }
  void set_mask(std::int32_t member, bool masked) override {
    low_latency_.set_mask(member, masked);
  }
  void clear_masks() override { low_latency_.clear_masks(); }

  void warmup(Group& group) override { warm_up(group, group_, low_latency_); }
  void* stream() const override { return group_.stream; }
  void synchronize() override { group_.synchronize(); }
  void drain() override { group_.drain(); }

 private:
  std::int32_t sms(const Launch& launch) const {
    return launch.sms > 0 ? launch.sms : static_cast<std::int32_t>(state_.world->settings().ep_sms);
  }
  /// Rows of the region that this call needs at most.
  std::int64_t region_rows(const detail::DispatchCall& call) const {
    if (call.options.worst_case_rows > 0) return call.options.worst_case_rows;
    if (call.cached) return call.cached->result_rows;
    if (call.expert_alignment() == 0) return state_.shape.max_received();
    return detail::rows_that_fit(state_.shape.max_expert_major_rows(call.expert_alignment()),
                                 group_.device.layout.largest_result, [&](std::int64_t rows) {
                                   return detail::RegionLayout(static_cast<std::uint64_t>(rows),
                                                               call.row_bytes(),
                                                               record_of(call).bytes)
                                       .total;
                                 });
  }
  static detail::SideRecord record_of(const detail::DispatchCall& call) {
    return {static_cast<std::uint32_t>(call.scale_bytes()),
            static_cast<std::uint32_t>(call.topk_slots())};
  }
  /// Queues what an expert-major dispatch needs of its routing, unless it is there.
  void number_lanes(const CudaRouting& routing, cudaStream_t on) const;
  std::shared_ptr<CudaHandle> make_handle(const detail::DispatchCall& call);
  void await_sizes(CudaHandle& handle, std::vector<std::int64_t>& tokens_per_expert);
  Dispatched describe(const detail::DispatchCall& call, const std::shared_ptr<CudaHandle>& handle,
                      const std::shared_ptr<Region>& region, std::int64_t rows, cudaStream_t on);
  Tensor copied_out(const Tensor& tensor, cudaStream_t on) const;
  std::uint64_t reachable(const TensorView& data, std::size_t staging, cudaStream_t on) const;
  void locate_answers(const TensorView& y, CombineParams& params, cudaStream_t on);

  GroupState& state_;
  CudaGroup group_;
  BlockPool routings_, handles_;
  mutable LowLatency low_latency_;
  ShareTable shares_;
  Limits limits_;
  std::shared_ptr<void> sizes_memory_;
  std::uint64_t sequence_ = 0;
};

void CudaBackend::open() {
  group_.open();
  const auto& shape = state_.shape;
  sizes_memory_ = take_pinned(sizeof(SizesMessage) +
                              (shape.ranks + shape.local_experts) * sizeof(std::int32_t));
  int shared_bytes = 0;
  check(cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin,
                               state_.device.index),
        "shared memory of a block");
  preload_route();
  limits_.bulk_copies = state_.world->cuda()->compute_capability >= 90;
  limits_.shared_bytes = static_cast<std::uint32_t>(shared_bytes) - kStaticSharedBytes;
  limits_.multiprocessors = group_.multiprocessors / group_.members_on_gpu;
  limits_.overlap_launches = group_.members_on_gpu == 1;
  preload_dispatch(shared_bytes);
  preload_combine(shared_bytes);
  check(cudaGetLastError(), "kernels of an ep::Group");
  const auto results = static_cast<std::size_t>(shape.live_results) + 2;
  if (shape.max_tokens > 0) {
    routings_.reserve(results);
    handles_.reserve(results);
  }
}

Routing CudaBackend::route(const TensorView& topk_idx, const Launch& launch) {
  const auto& shape = state_.shape;
  cudaStream_t on = group_.begin(launch);
  group_.throw_failed();
  auto state = std::make_shared<CudaRouting>();
  state->shape = shape;
  state->tokens = topk_idx.shape[0];
  state->block = routings_.take();
  state->arrays =
      routing_arrays(static_cast<std::byte*>(state->block.get()), state->tokens, shape, nullptr);

  RouteParams params{};
  params.group = group_.device;
  params.topk_idx = topk_idx.data;
  params.is_int64 = topk_idx.dtype == DataType::int64;
  params.tokens = static_cast<std::int32_t>(state->tokens);
  params.copies_per_token = std::min(shape.top_k, shape.ranks);
  params.out = state->arrays;
  launch_route(params, on);
  group_.end(launch, on);

  const auto view = [&](const void* array, DataType dtype,
                        std::initializer_list<std::int64_t> extents) {
    return group_.tensor(
        state->block,
        static_cast<const std::byte*>(array) - static_cast<std::byte*>(state->block.get()), dtype,
        extents);
  };
  Routing routing;
  routing.topk_idx = state->topk_idx =
      view(state->arrays.topk_idx, DataType::int64, {state->tokens, shape.top_k});
  routing.rank_counts = view(state->arrays.rank_counts, DataType::int32, {shape.ranks});
  routing.expert_counts = view(state->arrays.expert_counts, DataType::int32, {shape.experts});
  routing.state = std::move(state);
  return routing;
}

// Dispatch.

std::shared_ptr<CudaHandle> CudaBackend::make_handle(const detail::DispatchCall& call) {
  if (call.cached) {
    auto handle = std::make_shared<CudaHandle>(detail::of_backend<CudaHandle>(*call.cached, "dispatch"));
    if (call.options.worst_case_rows > 0) handle->result_rows = call.options.worst_case_rows;
    return handle;
  }
  auto handle = std::make_shared<CudaHandle>();
  handle->routing = call.routing;
  handle->group = state_.weak_from_this();
  handle->block = handles_.take();
  handle->arrays =
      handle_arrays(static_cast<std::byte*>(handle->block.get()), state_.shape, nullptr);
  handle->received = -1;
  handle->result_rows = call.options.worst_case_rows;
  handle->expert_alignment = call.expert_alignment();
  return handle;
}

void CudaBackend::number_lanes(const CudaRouting& routing, cudaStream_t on) const {
  if (routing.lanes_numbered_by == &state_ || routing.tokens == 0) return;
  launch_number_lanes({.topk_idx = routing.arrays.topk_idx,
                       .ordinals = routing.arrays.ordinals,
                       .tokens = static_cast<std::int32_t>(routing.tokens),
                       .top_k = state_.shape.top_k,
                       .experts = state_.shape.experts},
                      on);
  // A captured launch has not run, and a replay of the graph may come with another routing.
  if (!group_.capturing(on)) routing.lanes_numbered_by = &state_;
}

Dispatched CudaBackend::dispatch(const detail::DispatchCall& call) {
  const auto& shape = state_.shape;
  const Launch& launch = call.options.launch;
  cudaStream_t on = group_.begin(launch);
  group_.throw_failed();
  const bool waits = call.options.worst_case_rows == 0 && !call.cached;
  require(
      !waits || !group_.capturing(on), Code::invalid_argument,
      "dispatch: without DispatchOptions.worst_case_rows the call waits for its sizes, which a captured stream "
      "cannot; set it, or use a cached handle");
  require(
      !call.options.copy_out || !group_.capturing(on), Code::invalid_argument,
      "dispatch: DispatchOptions.copy_out on a captured stream: the memory of results must outlive the graph; use "
      "the result where it lies");
  const auto& routing = detail::of_backend<CudaRouting>(*call.routing, "dispatch");
  const bool expert_major = call.expert_alignment() > 0;
  const std::uint32_t table_bytes =
      expert_major ? static_cast<std::uint32_t>(shape.experts) * sizeof(std::int32_t) : 0;
  require(
      !expert_major ||
          fits_with_table(static_cast<std::uint32_t>(call.row_bytes()),
                          static_cast<std::uint32_t>(call.scale_bytes()), limits_, table_bytes),
      Code::unsupported,
      "dispatch: DispatchOptions.expert_major with {} experts and rows of {} bytes: 4 bytes an expert and two rows must "
      "fit into {} bytes of a GPU's shared memory",
      shape.experts, call.row_bytes() + call.scale_bytes(), limits_.shared_bytes);
  auto handle = make_handle(call);
  const std::int64_t rows = region_rows(call);
  const detail::SideRecord record = record_of(call);
  const detail::RegionLayout layout(rows, call.row_bytes(), record.bytes);
  const auto offset = state_.arena.take(layout.total);
  const auto region =
      offset ? std::make_shared<Region>(state_.shared_from_this(), *offset) : nullptr;
  const auto require_room = [&] {
    if (region == nullptr)
      detail::fail_no_room(state_, state_.team.world_pe(state_.me), rows);
  };
  if (group_.capturing(on)) require_room();

  DispatchParams params{};
  params.group = group_.device;
  params.x = static_cast<const std::byte*>(call.x.data);
  params.row_bytes = static_cast<std::uint32_t>(call.row_bytes());
  params.tokens = static_cast<std::int32_t>(routing.tokens);
  params.copies_per_token = std::min(shape.top_k, shape.ranks);
  params.copies = routing.arrays.copies;
  params.write_indices = !call.cached;
  params.weights = group_.elements<float>(call.options.weights);
  if (const TensorView& scales = call.options.scales; scales.defined()) {
    params.scales = scales.as<std::uint32_t>();
    params.scale_stride = scales.strides[0];
    params.scale_step = scales.shape[1] == 1 ? 1 : scales.strides[1];
    params.scale_count = static_cast<std::uint32_t>(scales.shape[1]);
  }
  params.routing = routing.arrays;
  params.handle = handle->arrays;
  params.cached = call.cached != nullptr;
  params.region = region ? group_.device.layout.arena + region->offset : kNoRoom;
  params.region_rows = rows;
  params.expert_alignment = static_cast<std::uint32_t>(call.expert_alignment());
  params.fill = call.options.worst_case_rows > 0 && region;
  params.dtype = static_cast<std::uint32_t>(call.x.dtype);
  params.sizes = waits ? static_cast<SizesMessage*>(sizes_memory_.get()) : nullptr;
  params.sequence = ++sequence_;
  const Plan plan = plan_dispatch(
      sms(launch), params.row_bytes, static_cast<std::uint32_t>(call.scale_bytes()), limits_,
      tuning_of(state_.world->settings().ep_tuning, "dispatch"), table_bytes);
  params.table_offset = plan.table_offset;
  params.stage_bytes = plan.stage_bytes;
  params.stages = static_cast<std::uint32_t>(plan.stages);
  params.warps = static_cast<std::uint32_t>(plan.warps);
  ++state_.epoch;
  state_.world->set_progress(shoal::detail::Activity::dispatch, state_.epoch, "queued");
  if (expert_major) number_lanes(routing, on);
  launch_dispatch(params, plan, on);
  if (call.options.copy_out) {  // copies are part of the call
    group_.end_first();
    group_.record(on);
  } else {
    group_.end(launch, on);
  }
  ++state_.statistics.dispatches;

  std::vector<std::int64_t> tokens_per_expert;
  if (waits) await_sizes(*handle, tokens_per_expert);
  if (!region) group_.synchronize();  // all members are told alike
  require_room();
  for (const std::int64_t from_source : handle->rows_per_source)
    state_.statistics.rows_received += static_cast<std::uint64_t>(from_source);
  Dispatched received = describe(call, handle, region, rows, on);
  if (call.options.copy_out) group_.end(launch, on);
  const std::int64_t alignment = call.options.expert_alignment;
  for (const std::int64_t tokens : tokens_per_expert)
    received.tokens_per_expert.push_back((tokens + alignment - 1) / alignment * alignment);
  return received;
}

/// Polls the message that the kernel's first block writes once it has everybody's counts; the rows
/// themselves may still be on their way.
void CudaBackend::await_sizes(CudaHandle& handle, std::vector<std::int64_t>& tokens_per_expert) {
  const auto& message = *static_cast<const SizesMessage*>(sizes_memory_.get());
  // A report of bad indices is of an earlier call; what it says is thrown once this dispatch is
  // under way as well.
  const auto refused = [&] {
    const auto fault = static_cast<Fault>(group_.report->fault);
    return fault != Fault::none && fault != Fault::bad_index && fault != Fault::two_experts;
  };
  const auto ready = [&] { return message.sequence == sequence_ || refused(); };
  // The kernel keeps the deadline of the operation itself; this one is for a kernel that never
  // starts. Low-latency calls before it may wait longer where they leave out members
  // (ScopedTimeout).
  const std::int32_t waits = state_.options.mask_failed ? std::max(2, state_.shape.ranks) : 2;
  const auto deadline =
      shoal::detail::Clock::now() + waits * state_.timeout + std::chrono::seconds(1);
  const auto outcome = state_.world->poll(ready, deadline);
  group_.throw_reported();
  if (outcome != shoal::detail::WaitOutcome::ready) {
    state_.failure = fmt::format(
        "dispatch (epoch {}): its kernel has not reported its sizes on PE {}; another kernel may hold the GPU, or a "
        "PE of the world has failed: {}",
        state_.epoch, state_.team.world_pe(state_.me),
        state_.world->failure().value_or("none known"));
    throw Error(outcome == shoal::detail::WaitOutcome::timeout ? Code::timeout : Code::peer_failed,
                state_.failure);
  }
  const auto* const counts = reinterpret_cast<const std::int32_t*>(&message + 1);
  handle.received = handle.result_rows = message.received;
  handle.rows_per_source.assign(counts, counts + state_.shape.ranks);
  tokens_per_expert.assign(counts + state_.shape.ranks,
                           counts + state_.shape.ranks + state_.shape.local_experts);
}

Tensor CudaBackend::copied_out(const Tensor& tensor, cudaStream_t on) const {
  if (!tensor.defined()) return tensor;
  const std::size_t element = size_of(tensor.dtype);
  const std::int64_t columns = tensor.rank == 1 ? 1 : tensor.shape[1];
  auto memory = group_.allocate(tensor.bytes());
  Tensor copy = tensor.rank == 1
                    ? group_.tensor(memory, 0, tensor.dtype, {tensor.shape[0]})
                    : group_.tensor(memory, 0, tensor.dtype, {tensor.shape[0], columns});
  if (tensor.bytes() > 0)
    check(cudaMemcpy2DAsync(copy.data, columns * element, tensor.data, tensor.strides[0] * element,
                            columns * element, tensor.shape[0], cudaMemcpyDeviceToDevice, on),
          "copy of a result");
  return copy;
}

Dispatched CudaBackend::describe(const detail::DispatchCall& call,
                                 const std::shared_ptr<CudaHandle>& handle,
                                 const std::shared_ptr<Region>& region, std::int64_t rows,
                                 cudaStream_t on) {
  const auto& shape = state_.shape;
  const detail::SideRecord record = record_of(call);
  const detail::RegionLayout layout(rows, call.row_bytes(), record.bytes);
  const std::int32_t lanes = call.topk_slots();
  std::byte* const base = state_.block + group_.device.layout.arena + region->offset;
  const std::int64_t count = handle->result_rows;
  const auto view = [&](std::size_t offset, DataType dtype,
                        std::initializer_list<std::int64_t> extents, std::size_t stride_bytes) {
    TensorView out(base + offset, dtype, extents);
    out.strides[0] = static_cast<std::int64_t>(stride_bytes / size_of(dtype));
    out.device = state_.device;
    const Tensor tensor(out, region);
    return call.options.copy_out ? copied_out(tensor, on) : tensor;
  };
  Dispatched received;
  received.x = view(0, call.x.dtype, {count, call.x.shape[1]}, call.row_bytes());
  const std::size_t at = layout.records;
  if (const TensorView& scales = call.options.scales; scales.defined())
    received.scales = view(at, scales.dtype, {count, scales.shape[1]}, record.bytes);
  if (call.options.weights.defined())
    received.topk_weights =
        view(at + record.weights, DataType::float32, {count, lanes}, record.bytes);
  if (!call.cached) {
    received.topk_idx = view(at + record.topk_idx, DataType::int64, {count, lanes}, record.bytes);
    received.source_token = view(at + record.source_token, DataType::int32, {count}, record.bytes);
  }
  received.rows_per_source = handle->rows_per_source;
  received.rows = handle->received;
  const auto from_handle = [&](const std::int32_t* array, std::int64_t extent) {
    return group_.tensor(
        handle->block,
        reinterpret_cast<const std::byte*>(array) - static_cast<std::byte*>(handle->block.get()),
        DataType::int32, {extent});
  };
  received.row_count = from_handle(handle->arrays.received + state_.me, 1);
  received.expert_counts = from_handle(handle->arrays.expert_counts, shape.local_experts);
  if (handle->expert_alignment > 0)
    received.expert_first_row =
        from_handle(handle->arrays.expert_first_row, shape.local_experts + 1);
  received.handle = Handle(handle);
  return received;
}

// Combine.

/// Where members find `data`, from the start of the block: where it is in the symmetric heap, or in
/// the staging area.
std::uint64_t CudaBackend::reachable(const TensorView& data, std::size_t staging,
                                     cudaStream_t on) const {
  if (data.bytes() == 0) return staging;
  if (state_.world->heap().contains(data.data, extent_of(data)))
    return static_cast<std::uint64_t>(static_cast<const std::byte*>(data.data) - state_.block);
  require(
      state_.shape.combine_staging, Code::invalid_argument,
      "combine: y or its weights lie outside the symmetric heap, y in no buffer that this PE shares "
      "(SymmetricHeap::share_buffer), and this group was made without room for a copy "
      "(GroupOptions.combine_staging)");
  const std::size_t row_bytes = data.shape[1] * size_of(data.dtype);
  const auto& layout = group_.device.layout;
  const std::size_t room = staging == layout.staging ? layout.staging_weights - layout.staging
                                                     : layout.normal_end - layout.staging_weights;
  require(
      data.shape[0] * row_bytes <= room, Code::invalid_argument,
      "combine: {} outside the symmetric heap has {} bytes, and there is room for a copy of {}; write the answers to "
      "Dispatched::x, or raise GroupOptions.max_tokens (now {})",
      data.describe(), data.shape[0] * row_bytes, room, state_.shape.max_tokens);
  check(cudaMemcpy2DAsync(state_.block + staging, row_bytes, data.data,
                          data.strides[0] * size_of(data.dtype), row_bytes, data.shape[0],
                          cudaMemcpyDeviceToDevice, on),
        "staging of the answers");
  group_.record(on);
  return staging;
}

/// As reachable, or in a buffer that this PE shares.
void CudaBackend::locate_answers(const TensorView& y, CombineParams& params, cudaStream_t on) {
  shares_.refresh();  // for what other members share
  params.shares = shares_.entries();
  if (y.bytes() > 0 && !state_.world->heap().contains(y.data, extent_of(y))) {
    const auto place = shares_.find(y.data, extent_of(y));
    params.share = place.id;
    params.y = place.offset;
  }
  if (params.share == 0) params.y = reachable(y, group_.device.layout.staging, on);
}

Combined CudaBackend::combine(const TensorView& y, const HandleState& state,
                              const CombineOptions& options) {
  const auto& shape = state_.shape;
  const auto& handle = detail::of_backend<CudaHandle>(state, "combine");
  const auto& routing = detail::of_backend<CudaRouting>(*handle.routing, "combine");
  cudaStream_t on = group_.begin(options.launch);
  group_.throw_failed();
  const bool captured = group_.capturing(on);
  require(
      !captured || (options.out.defined() && !options.weights.defined()), Code::invalid_argument,
      "combine: a captured stream needs CombineOptions.out, and cannot combine weights: the memory of results must "
      "outlive the graph");

  CombineParams params{};
  params.group = group_.device;
  locate_answers(y, params, on);
  params.y_weights = kNoRoom;
  if (options.weights.defined()) {
    params.y_weights = reachable(options.weights, group_.device.layout.staging_weights, on);
    const bool staged = params.y_weights == group_.device.layout.staging_weights;
    params.weight_stride = static_cast<std::uint32_t>(
        (staged ? handle.topk_slots(shape.top_k) : options.weights.strides[0]) * sizeof(float));
  }
  params.y_rows = handle.result_rows;
  params.row_bytes = static_cast<std::uint32_t>(shape.hidden * size_of(y.dtype));
  params.tokens = static_cast<std::int32_t>(routing.tokens);
  params.expert_major = handle.expert_alignment > 0;
  params.copies_per_token =
      params.expert_major != 0 ? shape.top_k : std::min(shape.top_k, shape.ranks);
  params.copies = routing.arrays.copies;
  params.topk_idx = routing.arrays.topk_idx;
  params.ordinals = routing.arrays.ordinals;
  params.handle = handle.arrays;
  for (std::size_t b = 0; b < options.bias.size(); ++b)
    params.bias[b] = static_cast<const std::byte*>(options.bias[b].data);
  Combined combined;
  if (options.out.defined())
    combined.x = Tensor(options.out, nullptr);
  else
    combined.x = group_.tensor(group_.allocate(routing.tokens * params.row_bytes), 0, y.dtype,
                               {routing.tokens, shape.hidden});
  params.out = combined.x.as<std::byte>();
  if (options.weights.defined()) {
    combined.topk_weights =
        group_.tensor(group_.allocate(routing.tokens * shape.top_k * sizeof(float)), 0,
                      DataType::float32, {routing.tokens, shape.top_k});
    params.out_weights = combined.topk_weights.as<float>();
  }
  params.dtype = static_cast<std::uint32_t>(y.dtype);
  const Plan plan =
      plan_combine(sms(options.launch), params.row_bytes, params.tokens, params.copies_per_token,
                   limits_, tuning_of(state_.world->settings().ep_tuning, "combine"));
  params.chunk_bytes = plan.stage_bytes;
  params.stages = static_cast<std::uint32_t>(plan.stages);
  params.warps = static_cast<std::uint32_t>(plan.warps);
  params.segment_chunks = plan.segment_chunks;
  ++state_.epoch;
  state_.world->set_progress(shoal::detail::Activity::combine, state_.epoch, "queued");
  launch_combine(params, plan, on);
  group_.end(options.launch, on);
  ++state_.statistics.combines;
  return combined;
}

}  // namespace

std::unique_ptr<detail::Backend> make_backend(detail::GroupState& state) {
  return std::make_unique<CudaBackend>(state);
}

}  // namespace shoal::ep::cuda
