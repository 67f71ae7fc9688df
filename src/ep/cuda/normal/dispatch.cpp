// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>

#include "base/align.hpp"
#include "base/check.hpp"
#include "ep/cuda/normal/normal.hpp"
#include "ep/group/checks.hpp"

namespace shoal::ep::cuda {

using detail::kNoRoom;
using detail::Region;

std::int64_t Normal::region_rows(const detail::DispatchCall& call) const {
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

void Normal::number_topk_slots(const CudaRouting& routing, cudaStream_t on) const {
  if (routing.topk_slots_numbered_by == &state_ || routing.tokens == 0) return;
  launch_normal_number_topk_slots({.topk_idx = routing.arrays.topk_idx,
                                   .expert_row_indices = routing.arrays.expert_row_indices,
                                   .tokens = static_cast<std::int32_t>(routing.tokens),
                                   .top_k = state_.shape.top_k,
                                   .experts = state_.shape.experts},
                                  on);
  // A captured launch has not run, and a replay of the graph may follow another routing.
  if (!group_.captures()) routing.topk_slots_numbered_by = &state_;
}

/// Shared memory of an expert-major dispatch for the first row of each expert.
std::uint32_t Normal::table_bytes(const detail::DispatchCall& call) const {
  if (call.expert_alignment() == 0) return 0;
  return static_cast<std::uint32_t>(state_.shape.experts) * sizeof(std::int32_t);
}

void Normal::check_dispatch(const detail::DispatchCall& call) const {
  require(
      !call.waits_for_sizes() || !group_.captures(), Code::invalid_argument,
      "SHOAL-N537: dispatch: without DispatchOptions.worst_case_rows the call waits for its sizes, "
      "which a captured stream cannot; set it, or use a cached handle");
  require(
      !call.options.copy_out || !group_.captures(), Code::invalid_argument,
      "SHOAL-N536: dispatch: DispatchOptions.copy_out on a captured stream: the memory of results "
      "must outlive the graph; use the result where it lies");
  require(call.expert_alignment() == 0 || internode_ != nullptr ||
              fits_with_table(staged_row_bytes(call), staged_scale_bytes(call), limits_,
                              table_bytes(call)),
          Code::unsupported,
          "SHOAL-N555: dispatch: an expert-major layout with {} experts and rows of {} bytes: 4 "
          "bytes an expert and two rows must fit into {} bytes of a GPU's shared memory",
          state_.shape.experts, staged_row_bytes(call) + call.scale_bytes(), limits_.shared_bytes);
  require(!detail::has_scale_per_expert(call.options) || encodes_while_sending(call),
          Code::unsupported,
          "SHOAL-N592: dispatch: global_scale has a scale per expert, which takes a GPU with bulk "
          "copies (sm_90 or later) and shared memory for two rows; allowed here: float32 [1]");
  require(
      internode_ == nullptr || region_rows(call) < kMaxDeviceTokens, Code::unsupported,
      "SHOAL-N566: dispatch: a result of {} rows between nodes; at most {} "
      "(DispatchOptions.worst_case_rows, GroupOptions.max_tokens)",
      [&] { return region_rows(call); }, kMaxDeviceTokens - 1);
}

/// Bytes beside a row of x as the kernel loads it.
std::uint32_t Normal::staged_scale_bytes(const detail::DispatchCall& call) {
  const auto bytes = static_cast<std::uint32_t>(call.scale_bytes());
  if (!detail::has_scale_per_expert(call.options)) return bytes;
  return static_cast<std::uint32_t>(call.row_bytes() + align_up(bytes, 16));
}

/// True if the kernel that sends rows encodes them, which needs two in shared memory.
bool Normal::encodes_while_sending(const detail::DispatchCall& call) const {
  return call.encodes() && internode_ == nullptr && limits_.bulk_copies &&
         fits_with_table(static_cast<std::uint32_t>(call.given_row_bytes()),
                         staged_scale_bytes(call), limits_, table_bytes(call));
}

/// Bytes of a row of x as the kernel loads it.
std::uint32_t Normal::staged_row_bytes(const detail::DispatchCall& call) const {
  return static_cast<std::uint32_t>(encodes_while_sending(call) ? call.given_row_bytes()
                                                                : call.row_bytes());
}

/// Queues a kernel that encodes the rows of the dispatch `params`, and passes its result there.
void Normal::encode_rows(const detail::DispatchCall& call, NormalDispatch& params,
                         cudaStream_t on) {
  if (!encoded_)
    encoded_.emplace(static_cast<std::size_t>(state_.shape.max_tokens) *
                         detail::most_encoded_bytes(state_.shape.hidden),
                     group_.resources);
  const std::shared_ptr<void> memory = group_.take(*encoded_);
  group_.uses(memory);
  NormalEncodeRows rows{};
  rows.x = params.x;
  rows.row_bytes = params.row_bytes;
  rows.scale_bytes = static_cast<std::uint32_t>(align_up(call.scale_bytes(), 16));
  rows.codes = static_cast<std::byte*>(memory.get());
  rows.scales = rows.codes + static_cast<std::size_t>(params.tokens) * params.row_bytes;
  rows.hidden = static_cast<std::uint32_t>(call.x.shape[1]);
  rows.tokens = params.tokens;
  rows.quantize = params.quantize;
  rows.global_scale = params.global_scale;
  launch_normal_encode_rows(rows, on);
  params.x = rows.codes;
  params.scales = reinterpret_cast<const std::uint32_t*>(rows.scales);
  params.scale_stride = rows.scale_bytes / 4;
  params.scale_step = 1;
}

/// The parameters of the kernel. `region` is nullptr where the arena has no room: the kernel then
/// reports it to all ranks.
NormalDispatch Normal::dispatch_parameters(const detail::DispatchCall& call,
                                           const CudaRouting& routing, const CudaHandle& handle,
                                           const Region* region, std::int64_t rows,
                                           const NormalPlan& plan) {
  const auto& shape = state_.shape;
  NormalDispatch params{};
  params.group = group_.device;
  params.x = static_cast<const std::byte*>(call.x.data);
  params.row_bytes = static_cast<std::uint32_t>(call.row_bytes());
  params.x_row_bytes = staged_row_bytes(call);
  params.quantize = static_cast<std::uint32_t>(call.options.quantize);
  params.encodes = encodes_while_sending(call) ? 1 : 0;
  params.global_scale = group_.elements<float>(call.options.global_scale);
  params.by_expert = detail::has_scale_per_expert(call.options) ? 1 : 0;
  params.tokens = static_cast<std::int32_t>(routing.tokens);
  params.copies_per_token = std::min(shape.top_k, shape.ranks);
  params.copies = routing.arrays.copies;
  params.write_indices = !call.cached;
  params.weights = group_.elements<float>(call.options.weights);
  if (const ConstTensorView& scales = call.options.scales; scales.defined()) {
    params.scales = scales.as<std::uint32_t>();
    params.scale_stride = scales.strides[0];
    params.scale_step = scales.shape[1] == 1 ? 1 : scales.strides[1];
    params.scale_count = static_cast<std::uint32_t>(scales.shape[1]);
  } else if (call.encodes()) {
    params.scale_count = static_cast<std::uint32_t>(call.scale_bytes() / 4);
  }
  params.routing = routing.arrays;
  params.handle = handle.arrays;
  params.cached = call.cached != nullptr;
  params.region = region != nullptr ? group_.device.layout.arena + region->offset : kNoRoom;
  params.region_rows = rows;
  params.expert_alignment = static_cast<std::uint32_t>(call.expert_alignment());
  params.count_alignment = static_cast<std::uint32_t>(call.options.expert_alignment);
  params.all_weights = call.options.all_weights ? 1 : 0;
  params.fill = call.options.worst_case_rows > 0 && region != nullptr;
  params.dtype = static_cast<std::uint32_t>(call.x.dtype);
  params.sizes = call.waits_for_sizes() ? static_cast<SizesMessage*>(sizes_memory_.get()) : nullptr;
  params.sequence = ++sequence_;
  params.table_offset = plan.table_offset;
  params.stage_bytes = plan.stage_bytes;
  params.stages = static_cast<std::uint32_t>(plan.stages);
  params.warps = static_cast<std::uint32_t>(plan.warps);
  return params;
}

detail::AnyDispatched Normal::dispatch(const detail::DispatchCall& call) {
  const Launch& launch = call.options.launch;
  cudaStream_t on = group_.begin(launch);
  group_.throw_failed();
  check_dispatch(call);
  const auto& routing = detail::of_backend<CudaRouting>(*call.routing, "dispatch");
  group_.uses(routing.block);
  auto handle = make_handle(call);
  const std::int64_t rows = region_rows(call);
  const detail::RegionLayout layout(rows, call.row_bytes(), record_of(call).bytes);
  std::optional<std::size_t> offset;
  bool transient = call.options.transient;
  if (call.options.apart && group_.captures()) {
    offset = state_.arena.take_apart(layout.total, group_.graph());
    transient = !offset;
  }
  if (!offset) offset = state_.arena.take(layout.total, group_.graph(), transient);
  const auto region =
      offset ? std::make_shared<Region>(state_.shared_from_this(), *offset) : nullptr;
  const auto require_room = [&] {
    if (region == nullptr) detail::fail_no_room(state_, state_.world_pe(state_.me), rows);
  };
  if (group_.captures()) require_room();
  const NormalPlan plan = plan_dispatch(
      sms(launch), staged_row_bytes(call), staged_scale_bytes(call), limits_, table_bytes(call),
      encodes_while_sending(call) ? static_cast<std::uint32_t>(call.row_bytes()) : 0);
  NormalDispatch params = dispatch_parameters(call, routing, *handle, region.get(), rows, plan);
  if (call.encodes() && !encodes_while_sending(call)) encode_rows(call, params, on);
  ++state_.epoch;
  state_.world->progress().set(shoal::detail::Activity::dispatch, state_.epoch, "queued");
  if (call.expert_alignment() > 0) number_topk_slots(routing, on);
  if (internode_ != nullptr)
    launch_internode_dispatch(
        {params, internode_->grid(), routing.node_arrays, handle->rail_arrays},
        internode_->plan(
            sms(launch), limits_.multiprocessors,
            internode_table_bytes(state_.shape, internode_->nodes(), params.expert_alignment > 0)),
        on);
  else
    launch_normal_dispatch(params, plan, on);
  if (call.options.copy_out) {  // the call ends with the copies
    group_.end_first();
    group_.record(on);
  } else {
    group_.end(launch, on);
  }
  ++state_.statistics.dispatches;

  std::vector<std::int64_t> tokens_per_expert;
  if (call.waits_for_sizes()) await_sizes(*handle, tokens_per_expert);
  if (!region) group_.synchronize();  // throws the refusal that every rank reports
  require_room();
  if (group_.device.record == nullptr)  // else the kernels count them
    for (const std::int64_t from_source : handle->rows_per_source)
      state_.statistics.rows_received += static_cast<std::uint64_t>(from_source);
  detail::AnyDispatched received = describe(call, handle, region, rows, on);
  if (call.options.copy_out) group_.end(launch, on);
  received.transient = transient;
  received.has_tokens_per_expert = call.waits_for_sizes();
  const std::size_t alignment = call.options.expert_alignment;
  for (const std::int64_t tokens : tokens_per_expert)
    received.tokens_per_expert.push_back(static_cast<std::int64_t>(align_up(tokens, alignment)));
  return received;
}

/// Waits for the message that the kernel's first block writes when it has the counts of all ranks.
/// The rows can still be on their way.
void Normal::await_sizes(CudaHandle& handle, std::vector<std::int64_t>& tokens_per_expert) {
  const auto& message = *static_cast<const SizesMessage*>(sizes_memory_.get());
  // A report of bad indices comes from an earlier call. It does not end the wait, and is thrown
  // when this dispatch is queued on all ranks.
  const auto refused = [&] {
    const auto fault = static_cast<Fault>(group_.report->fault);
    return fault != Fault::none && !is_bad_index(fault);
  };
  const auto ready = [&] { return message.sequence == sequence_ || refused(); };
  // The kernel keeps the deadline of the operation. This longer one is for a kernel that never
  // starts; earlier low-latency calls can take several timeouts where they mask ranks
  // (ExtendedDeadline).
  const std::int32_t waits = state_.options.mask_failed ? std::max(2, state_.shape.ranks) : 2;
  const std::chrono::milliseconds limit = waits * state_.timeout + std::chrono::seconds(1);
  const auto deadline = shoal::detail::Clock::now() + limit;
  const auto outcome = state_.world->waits().poll_elsewhere(ready, deadline);
  group_.throw_reported();
  if (outcome == shoal::detail::WaitOutcome::interrupted) {
    state_.failure = fmt::format("SHOAL-N553: dispatch (epoch {}) was interrupted on PE {}",
                                 state_.epoch, state_.team.world_pe(state_.me));
    throw Error(Code::system, state_.failure);
  }
  if (outcome != shoal::detail::WaitOutcome::ready) {
    state_.failure = fmt::format(
        "SHOAL-N554: dispatch (epoch {}): its kernel has not reported its sizes on PE {} (limit: {} "
        "ms); another kernel may hold the GPU, or a PE of the world has failed: {}. Setting: {}.",
        state_.epoch, state_.team.world_pe(state_.me), limit.count(),
        state_.world->health().failure().value_or("none known"), state_.timeout_setting());
    throw Error(outcome == shoal::detail::WaitOutcome::timeout ? Code::timeout : Code::peer_failed,
                state_.failure);
  }
  const auto* const counts = reinterpret_cast<const std::int32_t*>(&message + 1);
  handle.received = handle.result_rows = message.received;
  handle.rows_per_source.assign(counts, counts + state_.shape.ranks);
  tokens_per_expert.assign(counts + state_.shape.ranks,
                           counts + state_.shape.ranks + state_.shape.experts_of(state_.me));
}

Tensor Normal::copied_out(const Tensor& tensor, cudaStream_t on) const {
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

detail::AnyDispatched Normal::describe(const detail::DispatchCall& call,
                                       const std::shared_ptr<CudaHandle>& handle,
                                       const std::shared_ptr<Region>& region, std::int64_t rows,
                                       cudaStream_t on) {
  const auto& shape = state_.shape;
  const detail::SideRecord record = record_of(call);
  const detail::RegionLayout layout(rows, call.row_bytes(), record.bytes);
  const std::int32_t slots = call.topk_slots();
  std::byte* const base = block() + group_.device.layout.arena + region->offset;
  const std::int64_t count = handle->result_rows;
  const auto view = [&](std::size_t offset, DataType dtype,
                        std::initializer_list<std::int64_t> extents, std::size_t stride_bytes) {
    TensorView out(base + offset, dtype, extents);
    out.strides[0] = static_cast<std::int64_t>(stride_bytes / size_of(dtype));
    out.device = state_.device;
    const Tensor tensor(out, region);
    return call.options.copy_out ? copied_out(tensor, on) : tensor;
  };
  detail::AnyDispatched received;
  received.x = view(0, call.row_dtype(), {count, call.row_elements()}, call.row_bytes());
  const std::size_t at = layout.records;
  if (call.has_scales()) {
    // A row of scales takes whole words.
    const auto pitch = static_cast<std::int64_t>(call.scale_bytes() / size_of(call.scale_dtype()));
    received.scales = view(at, call.scale_dtype(), {count, pitch}, record.bytes);
    received.scales.shape[1] = call.scale_elements();
  }
  if (call.options.weights.defined())
    received.topk_weights =
        view(at + record.weights, DataType::float32, {count, slots}, record.bytes);
  if (!call.cached) {
    received.topk_idx = view(at + record.topk_idx, DataType::int64, {count, slots}, record.bytes);
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
  const std::int64_t experts = shape.experts_of(state_.me);
  received.row_count = from_handle(handle->arrays.received + state_.me, 1);
  received.expert_counts = from_handle(handle->arrays.expert_counts, experts);
  if (!call.cached) {
    received.expert_ends = from_handle(handle->arrays.expert_ends, experts);
    if (handle->expert_alignment == 0)
      received.source_ends = from_handle(handle->arrays.source_ends, shape.ranks);
  }
  if (handle->expert_alignment > 0)
    received.expert_first_row = from_handle(handle->arrays.expert_first_row, experts + 1);
  received.handle =
      shoal::detail::Access::make<Handle>(std::shared_ptr<const detail::HandleState>(handle));
  return received;
}

}  // namespace shoal::ep::cuda
