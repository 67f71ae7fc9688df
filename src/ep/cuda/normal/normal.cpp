// SPDX-License-Identifier: Apache-2.0
#include "ep/cuda/normal/normal.hpp"

#include <algorithm>
#include <mutex>
#include <set>

#include "base/check.hpp"
#include "ep/group/checks.hpp"
#include "ep/plan/cursor.hpp"
#include "ep/plan/routing.hpp"
#include "memory/device.hpp"
#include "pe/memory.hpp"

namespace shoal::ep::cuda {
namespace {

using detail::ArrayCursor;

RoutingArrays routing_arrays(std::byte* block, std::int64_t tokens, const detail::Shape& shape,
                             std::size_t* bytes) {
  ArrayCursor cursor(block);
  RoutingArrays arrays{};
  arrays.topk_idx = cursor.take<std::int64_t>(tokens * shape.top_k);
  arrays.copies = cursor.take<std::int32_t>(tokens * std::min(shape.top_k, shape.ranks));
  arrays.rank_counts = cursor.take<std::int32_t>(shape.ranks);
  arrays.expert_counts = cursor.take<std::int32_t>(shape.experts);
  arrays.expert_row_indices = cursor.take<std::int32_t>(tokens * shape.top_k);
  arrays.node_counts = cursor.take<std::int32_t>(1);
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
  arrays.expert_ends = cursor.take<std::int32_t>(shape.local_experts);
  arrays.source_ends = cursor.take<std::int32_t>(shape.ranks);
  arrays.expert_rows = cursor.take<std::int32_t>(shape.experts);
  arrays.expert_first_row = cursor.take<std::int32_t>(shape.local_experts + 1);
  if (bytes != nullptr) *bytes = cursor.bytes();
  return arrays;
}

/// Bytes of the arrays between nodes, which lie after the others.
template <typename Take>
std::size_t node_arrays_bytes(Take take, const Internode& internode) {
  ArrayCursor cursor(nullptr);
  (internode.*take)(cursor);
  return cursor.bytes();
}

std::size_t routing_bytes(const detail::Shape& shape, const Internode* internode) {
  std::size_t bytes = 0;
  routing_arrays(nullptr, std::max(shape.max_tokens, shape.low_latency_max_tokens), shape, &bytes);
  return bytes +
         (internode == nullptr ? 0 : node_arrays_bytes(&Internode::routing_arrays, *internode));
}

std::size_t handle_bytes(const detail::Shape& shape, const Internode* internode) {
  std::size_t bytes = 0;
  handle_arrays(nullptr, shape, &bytes);
  return bytes +
         (internode == nullptr ? 0 : node_arrays_bytes(&Internode::handle_arrays, *internode));
}

/// Loads the kernels where no group of this process has loaded them on this GPU.
void preload_once(int device, bool many_slots, int shared_bytes) {
  static std::mutex mutex;
  static std::set<std::pair<int, bool>> loaded;
  const std::lock_guard lock(mutex);
  if (loaded.contains({device, many_slots})) return;
  preload_normal_route(many_slots);
  preload_normal_number_topk_slots();
  preload_normal_encode_rows();
  preload_normal_dispatch(many_slots, shared_bytes);
  preload_normal_combine(many_slots, shared_bytes);
  preload_stage_output(many_slots);
  preload_unpack();
  preload_expand(many_slots);
  check(cudaGetLastError(), "kernels of an ep::Group");
  loaded.insert({device, many_slots});
}

}  // namespace

Normal::Normal(CudaGroup& group, const Internode* internode)
    : NormalMode(detail::BackendKind::cuda),
      state_(group.state),
      group_(group),
      internode_(internode),
      routings_(routing_bytes(group.state.shape, internode), group.resources),
      handles_(handle_bytes(group.state.shape, internode), group.resources),
      shares_(group.state) {
  const std::size_t scales = group.state.shape.max_scales * 4;
  require(
      group.state.shape.max_tokens == 0 || group.state.shape.max_row_bytes + scales <= kMaxRowBytes,
      Code::unsupported,
      "SHOAL-N555: rows of {} bytes and {} bytes of scales; on GPUs at most {} together "
      "(GroupOptions.hidden, dtype)",
      group.state.shape.max_row_bytes, scales, kMaxRowBytes);
  require(group.state.shape.max_tokens < kMaxDeviceTokens, Code::unsupported,
          "SHOAL-N555: GroupOptions.max_tokens is {}; on GPUs at most {}",
          group.state.shape.max_tokens, kMaxDeviceTokens - 1);
}

void Normal::open() {
  const auto& shape = state_.shape;
  sizes_memory_ = take_pinned(sizeof(SizesMessage) +
                              (shape.ranks + shape.local_experts) * sizeof(std::int32_t));
  int shared_bytes = 0;
  check(cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin,
                               state_.device.index),
        "shared memory of a block");
  limits_.bulk_copies = state_.world->memory().cuda()->compute_capability >= 90;
  limits_.shared_bytes = static_cast<std::uint32_t>(shared_bytes) - kStaticSharedBytes;
  limits_.multiprocessors = group_.multiprocessors / group_.ranks_on_gpu;
  limits_.ranks = shape.ranks;
  limits_.overlap_launches = group_.ranks_on_gpu == 1;
  preload_once(state_.device.index, shape.top_k > kOnePerLane, shared_bytes);
  const auto results = static_cast<std::size_t>(shape.live_results) + 2;
  if (shape.max_tokens > 0) {
    routings_.reserve(results);
    handles_.reserve(results);
  }
}

namespace {

/// RoutingState::read_experts of a CudaRouting.
void read_experts(const detail::RoutingState& routing, std::int64_t token, std::int64_t* experts) {
  const auto& of_cuda = static_cast<const CudaRouting&>(routing);
  const std::shared_ptr<GroupState> group = of_cuda.group.lock();
  require(group != nullptr && !group->closed, Code::closed,
          "SHOAL-N510: is_token_in_rank: the group of this routing is closed");
  group->backend->synchronize();
  const std::int32_t top_k = routing.shape.top_k;
  const auto failure = of_cuda.calls->on_own_stream([&](cudaStream_t on) -> std::optional<Error> {
    check(cudaMemcpyAsync(experts, of_cuda.arrays.topk_idx + token * top_k,
                          static_cast<std::size_t>(top_k) * sizeof(std::int64_t),
                          cudaMemcpyDeviceToHost, on),
          "is_token_in_rank");
    check(cudaStreamSynchronize(on), "is_token_in_rank");
    return std::nullopt;
  });
  if (failure) throw Error(*failure);
}

}  // namespace

Routing Normal::route(const ConstTensorView& topk_idx, const RouteOptions& options) {
  const auto& shape = state_.shape;
  const Launch& launch = options.launch;
  cudaStream_t on = group_.begin(launch);
  group_.throw_failed();
  auto state = std::make_shared<CudaRouting>();
  state->shape = shape;
  state->tokens = topk_idx.shape[0];
  state->block = group_.take(routings_);
  state->group = state_.weak_from_this();
  state->calls = &group_;
  state->read_experts = read_experts;
  state->arrays =
      routing_arrays(static_cast<std::byte*>(state->block.get()), state->tokens, shape, nullptr);

  NormalRoute params{};
  params.group = group_.device;
  params.topk_idx = topk_idx.data;
  params.is_int64 = topk_idx.dtype == DataType::int64;
  params.tokens = static_cast<std::int32_t>(state->tokens);
  params.copies_per_token = std::min(shape.top_k, shape.ranks);
  params.out = state->arrays;
  if (internode_ != nullptr) params.out.node_counts = nullptr;
  params.is_token_in_rank = options.is_token_in_rank.as<std::uint8_t>();
  params.rank_counts = options.tokens_per_rank.as<std::int32_t>();
  params.expert_counts = options.tokens_per_expert.as<std::int32_t>();
  params.node_counts = options.tokens_per_node.as<std::int32_t>();
  launch_normal_route(params, limits_.overlap_launches, on);
  if (internode_ != nullptr) {
    ArrayCursor cursor(static_cast<std::byte*>(state->block.get()) + routing_bytes(shape, nullptr));
    state->node_arrays = internode_->routing_arrays(cursor);
    internode_->route(params, state->node_arrays, on);
  }
  group_.end(launch, on);

  const auto view = [&](const void* array, DataType dtype,
                        std::initializer_list<std::int64_t> extents) {
    return group_.tensor(
        state->block,
        static_cast<const std::byte*>(array) - static_cast<std::byte*>(state->block.get()), dtype,
        extents);
  };
  auto routing = shoal::detail::Access::make<Routing>(state);
  routing.topk_idx = state->topk_idx =
      view(state->arrays.topk_idx, DataType::int64, {state->tokens, shape.top_k});
  routing.device_counts = {
      .tokens_per_rank = view(state->arrays.rank_counts, DataType::int32, {shape.ranks}),
      .tokens_per_node =
          internode_ == nullptr
              ? view(state->arrays.node_counts, DataType::int32, {1})
              : view(state->node_arrays.counts, DataType::int32, {state_.nodes.count}),
      .tokens_per_expert = view(state->arrays.expert_counts, DataType::int32, {shape.experts})};
  return routing;
}

void Normal::unpack(const detail::AnyDispatched& received, const UnpackOptions& to) {
  cudaStream_t on = group_.begin(to.launch);
  group_.uses(detail::of_backend<CudaHandle>(*state_of(received.handle), "unpack").block);
  launch_unpack(received, detail::unpacked_arrays(state_, received, to), to.clear_unused,
                limits_.overlap_launches, on);
  group_.end(to.launch, on);
}

void Normal::expand(const ExpandOptions& options) {
  cudaStream_t on = group_.begin(options.launch);
  launch_expand(expand_parameters(options), limits_.multiprocessors, limits_.overlap_launches, on);
  group_.end(options.launch, on);
}

std::shared_ptr<CudaHandle> Normal::make_handle(const detail::DispatchCall& call) {
  if (call.cached) {
    auto handle =
        std::make_shared<CudaHandle>(detail::of_backend<CudaHandle>(*call.cached, "dispatch"));
    if (call.options.worst_case_rows > 0) handle->result_rows = call.options.worst_case_rows;
    group_.uses(handle->block);
    return handle;
  }
  auto handle = std::make_shared<CudaHandle>();
  handle->routing = call.routing;
  handle->group = state_.weak_from_this();
  handle->epoch = state_.epoch + 1;  // of the dispatch that is about to be queued
  handle->block = group_.take(handles_);
  handle->arrays =
      handle_arrays(static_cast<std::byte*>(handle->block.get()), state_.shape, nullptr);
  if (internode_ != nullptr) {
    ArrayCursor cursor(static_cast<std::byte*>(handle->block.get()) +
                       handle_bytes(state_.shape, nullptr));
    handle->rail_arrays = internode_->handle_arrays(cursor);
  }
  handle->received = -1;
  handle->result_rows = call.options.worst_case_rows;
  handle->expert_alignment = call.expert_alignment();
  return handle;
}

}  // namespace shoal::ep::cuda
