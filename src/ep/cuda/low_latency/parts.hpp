// SPDX-License-Identifier: Apache-2.0
// parts.hpp: what low-latency mode keeps for a group: memory of handles and results, limits, masks,
// the probe. Internal to this folder.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "base/log.hpp"
#include "ep/cuda/layout/result_memory.hpp"
#include "ep/cuda/low_latency/device/kernels.cuh"
#include "ep/cuda/low_latency/internode/internode.cuh"
#include "ep/cuda/low_latency/joined.hpp"
#include "ep/cuda/low_latency/low_latency.hpp"
#include "ep/plan/cursor.hpp"
#include "memory/device.hpp"

namespace shoal::ep::cuda {

using detail::align_up;
using detail::ArrayCursor;
using detail::ResultLayout;
using detail::Shape;

inline HandleView handle_view(void* block, const Shape& shape, std::size_t* bytes = nullptr) {
  const auto slots = static_cast<std::size_t>(shape.low_latency_rows());
  ArrayCursor cursor(block);
  HandleView view{};
  view.header = cursor.take<HandleHeader>(1);
  view.pairs = cursor.take<HandlePair>(slots);
  if (shape.top_k > kOnePerLane)
    view.more_slots = cursor.take<std::uint32_t>(slots * (kMostPerLane - 1));
  view.rows = cursor.take<std::int32_t>(slots * shape.top_k);
  view.weights = cursor.take<float>(slots * shape.top_k);
  view.ranks = cursor.take<std::int32_t>(shape.low_latency_max_tokens * shape.top_k);
  if (bytes != nullptr) *bytes = cursor.bytes();
  return view;
}

inline PendingView pending_view(void* block, const Shape& shape, std::size_t* bytes = nullptr) {
  ArrayCursor cursor(block);
  PendingView view{};
  view.header = cursor.take<PendingHeader>(1);
  view.weights = cursor.take<float>(shape.low_latency_max_tokens * shape.top_k);
  if (bytes != nullptr) *bytes = cursor.bytes();
  return view;
}

struct CudaLowLatencyHandle : detail::LowLatencyHandleState {
  static constexpr auto kBackend = detail::BackendKind::cuda;
  CudaLowLatencyHandle() { backend = kBackend; }

  std::shared_ptr<void> block;
  HandleView view{};
  std::uint64_t serial = 0;
};

struct CudaPendingDispatch : detail::PendingDispatchState {
  static constexpr auto kBackend = detail::BackendKind::cuda;
  CudaPendingDispatch() { backend = kBackend; }

  bool captured = false;        ///< its send is part of a graph
  bool receive_queued = false;  ///< with the send
};

struct CudaPendingCombine : detail::PendingCombineState {
  static constexpr auto kBackend = detail::BackendKind::cuda;
  CudaPendingCombine() { backend = kBackend; }

  bool captured = false;                   ///< likewise
  std::optional<Tensor> received_already;  ///< its result, where the receive was queued as well
  std::shared_ptr<void> block;
  PendingView view{};
  std::uint64_t serial = 0;
  /// Allocated before the send: a receive that found no memory would leave the ranks out of step.
  Tensor out;
};

inline CombineRowForm form_of(const LowLatencyCombineOptions& options) {
  return detail::agreed_form(options.log_fmt, options.quantize,
                             options.reduction == Reduction::exact);
}

/// Blocks of memory of one size, by parity, whose contents stay in place for the life of the group.
using ResultHalves = std::array<std::shared_ptr<void>, 2>;

struct LowLatency::Parts {
  Parts(CudaGroup& owner, std::size_t handle_bytes, std::size_t pending_bytes)
      : group(owner),
        handles(handle_bytes, owner.resources),
        pendings(pending_bytes, owner.resources),
        results(detail::ResultSizes(owner.state.shape),
                [this](std::size_t bytes) { return allocate(bytes, "low_latency_dispatch"); }),
        probe_memory(take_pinned(sizeof(std::uint64_t))),
        probe_reply(static_cast<volatile std::uint64_t*>(probe_memory.get())) {}

  CudaGroup& group;
  ArrayPool handles, pendings;
  ResultMemory results;
  ResultHalves result_halves;  ///< ResultLayout::half_end bytes each
  ResultHalves combine_buffers;
  std::shared_ptr<void> longest_wait;  ///< [3][ranks]: dispatch, even and odd combines
  LowLatencyLimits limits{};
  std::optional<LowLatencyGroups> groups;  ///< where the group has low-latency calls
  InternodeRanks remote{};
  std::uint64_t serial = 0;
  std::uint64_t dispatches_received = 0, combines_received = 0;  ///< receives that are queued
  std::vector<int> masked;  ///< by set_mask, or found in the report and logged

  std::shared_ptr<CUstream_st> probe_stream;  ///< not ordered with calls
  std::shared_ptr<void> probe_memory;
  volatile std::uint64_t* probe_reply;
  std::uint64_t probes = 0;

  const Shape& shape() const { return group.state.shape; }

  /// The group as the kernels of this mode see it.
  DeviceGroup device() const {
    DeviceGroup device = group.device;
    if (!group.low_latency_counts) device.record = nullptr;
    return device;
  }

  LowLatencySizes sizes() const {
    return {static_cast<std::int32_t>(shape().hidden),
            static_cast<std::int32_t>(shape().low_latency_max_tokens)};
  }

  /// The limits of a call.
  LowLatencyLimits limits_for(const Launch& launch) const {
    LowLatencyLimits bounded = limits;
    if (launch.sms > 0)
      bounded.most_blocks =
          bounded.most_blocks > 0 ? std::min(bounded.most_blocks, launch.sms) : launch.sms;
    return bounded;
  }

  /// Memory that lives as long as the group, because captured graphs contain its address.
  std::shared_ptr<void> allocate(std::size_t bytes, const char* what) const {
    try {
      return group.resources->allocate_apart(bytes, group.resources);
    } catch (const Error& error) {
      fail(Code::exhausted, "SHOAL-N560: {}: {} bytes of GPU memory for its results: {}", what,
           bytes, error.what());
    }
  }
  void make(ResultHalves& halves, std::size_t bytes, const char* what) const {
    if (halves[0] != nullptr) return;
    ResultHalves made;
    for (auto& half : made) half = allocate(bytes, what);
    halves = std::move(made);
  }

  /// Memory for the rows of a result. Also allocates what else a result has.
  std::shared_ptr<void> result(Quantize quantize) {
    make(result_halves, ResultLayout(shape(), quantize).half_end, "low_latency_dispatch");
    return results.take(quantize == Quantize::none);
  }

  /// Ranks that share a GPU leave each other room. Each can have a second call that has not begun.
  void bound_blocks() {
    if (group.ranks_on_gpu > 1)
      limits.most_blocks = std::max(1, limits.multiprocessors / (2 * group.ranks_on_gpu));
  }

  /// Memory for the sums of a combine, or its rows.
  Tensor combined(std::int64_t tokens, bool unsummed) const {
    const std::int64_t rows = unsummed ? tokens * shape().top_k : tokens;
    const std::size_t bytes =
        static_cast<std::size_t>(rows * shape().hidden) * sizeof(std::uint16_t);
    try {
      return shape().with_combined_extents(tokens, unsummed, [&](auto extents) {
        return group.tensor(group.allocate(bytes), 0, DataType::bfloat16, extents);
      });
    } catch (const Error& error) {
      fail(Code::exhausted,
           "SHOAL-N560: low_latency_combine: {} bytes of GPU memory for its result (or give "
           "LowLatencyCombineOptions.out): {}",
           bytes, error.what());
    }
  }

  std::uint64_t* waits_of_dispatch() const {
    return static_cast<std::uint64_t*>(longest_wait.get());
  }
  /// True if a receive can start before its send has ended: nothing comes between the two.
  bool chains() const {
    return limits.dependent_launch && group.ranks_on_gpu == 1 && remote.count == 0;
  }
  /// True if the kernels that have a send and its receive in one launch serve this group. Bounds of
  /// blocks are for the two of them.
  bool joins(const Launch& launch) const {
    return chains() && group.device.mask_failed == 0 && !group.low_latency_counts &&
           group.device.top_k <= kOnePerLane && limits_for(launch).most_blocks == 0 &&
           groups->only_one();
  }
  /// Two combines can be in progress, of which the later one can already wait for weights.
  std::uint64_t* waits_of_combine(std::uint64_t epoch) const {
    return waits_of_dispatch() + (1 + (epoch & 1)) * static_cast<std::size_t>(shape().ranks);
  }

  /// Logs the ranks that kernels have masked.
  void note_masked() {
    for (std::size_t rank = 0; group.device.mask_failed != 0 && rank < masked.size(); ++rank) {
      if (masked[rank] != 0 || group.report->masked[rank] == 0) continue;
      masked[rank] = 1;
      const GroupState& state = group.state;
      log::warn(
          "SHOAL-N561: low-latency mode on PE {}: PE {} did not come within {} ms (longer where it "
          "waited for another), or has left this PE out; it is masked from now on",
          state.team.world_pe(state.me), state.team.world_pe(static_cast<Pe>(rank)),
          state.timeout.count());
    }
  }

  void load_kernels() const {
    const bool many_slots = group.device.top_k > kOnePerLane;
    load_low_latency_dispatch_send(many_slots);
    load_low_latency_dispatch_receive(many_slots);
    load_low_latency_combine_send(many_slots);
    load_low_latency_combine_receive(many_slots);
    if (!many_slots) {
      load_low_latency_dispatch();
      load_low_latency_combine();
    }
    load_low_latency_probe(many_slots);
    load_low_latency_forward();
    load_low_latency_wait_arrival();
  }

  /// The reply to `probe`. Its kernel runs alongside everything else on the GPU; the reply is no
  /// where it does not run within a millisecond.
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

}  // namespace shoal::ep::cuda
