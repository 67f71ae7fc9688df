// SPDX-License-Identifier: Apache-2.0
// shoal/ep/group.hpp: expert-parallel dispatch and combine.
//
// E experts are spread over a team of R ranks, consecutive ones on a rank: E / R each, or one more
// on the first E % R ranks, or as GroupOptions::first_expert says. A Group moves token rows to the
// ranks that hold their experts (dispatch) and sums the expert output at the token's own rank
// (combine).
//
//   shoal::ep::Group group(world.team(), {.max_tokens = 4096, .hidden = 7168, .top_k = 8,
//                                         .experts = 256});
//   const auto routing = group.route(topk_idx);
//   const auto received = group.dispatch(x, routing, {.weights = topk_weights});
//   const auto y = run_experts(received);  // [rows, hidden], weighted
//   const auto output = group.combine(y, received.handle).x;
//
// Modes. Normal: each token crosses to each rank once; received rows are dense, ordered by source
// rank, then token (normal.hpp). Low latency: fixed shapes [L, R * max_tokens, hidden] with the
// largest number L of experts on a rank, without an exchange of sizes, and a receive phase that is
// a call of its own (low_latency.hpp). One group offers both.
//
// Calls are collective over the team: every rank makes the same calls in the same order; ranks may
// be skewed in time. One thread uses a group at a time. Results are bit-reproducible and the same
// on host and GPU: sums are accumulated in float32 in ascending top-k order and rounded once (once
// per level where a level pre-sums).
//
// Rows that the caller passes (x, y, biases, memory for results) start at a multiple of 16 bytes in
// GPU memory. On the host they may start anywhere, but calls copy rows that are not aligned so.
//
// Memory. A group lies where its world's heap lies (SHOAL_HEAP): on the host, or in GPU memory.
// Results lie there as well. They stay readable until their last copy is gone, also after
// Group::close and World::close. World::close first completes the operations queued on the group's
// thread and stream; in a world that has failed, operations that have not begun throw
// Error{closed}. On GPUs tensors are device tensors, and calls return when
// their kernels are queued on a stream (Launch). A dispatch without worst_case_rows or a cached
// handle waits on the host for its sizes. Other calls can be captured in a CUDA graph, any number
// of them and also as the first ones, except: copy_out, combine without memory for its results, and
// every call of a group that passes rows through host memory (docs/guide/gpus.md).
//
// Failure. Bad arguments throw Error{invalid_argument} before anything is sent, and the group stays
// usable; ranks that wait for this one quote its message. Ranks that pass different options throw
// Error{mismatch} on all ranks. A wait longer than the group's timeout throws Error{timeout} naming
// the awaited rank, the epoch, the phase, and the expected and observed values. After that, after
// Error{peer_failed}, and after a mismatch of modes, every call on the group throws Error{closed}
// with that message.
// Low-latency calls with mask_failed continue without the failed rank instead.
#pragma once

#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <vector>

#include <shoal/ep/future.hpp>       // IWYU pragma: export
#include <shoal/ep/low_latency.hpp>  // IWYU pragma: export
#include <shoal/ep/normal.hpp>       // IWYU pragma: export
#include <shoal/ep/options.hpp>      // IWYU pragma: export
#include <shoal/ep/routing.hpp>      // IWYU pragma: export
#include <shoal/team.hpp>
#include <shoal/tensor.hpp>

namespace shoal::ep {

namespace detail {
struct GroupState;
}

/// Counters since the group was made.
///
/// Times are those of the calling thread, waits included. On GPUs a call counts when it is queued
/// or captured and graph replays do not count; rows and waits are those of operations that have
/// ended, replays included, as their kernels count them: those of normal mode with SHOAL_METRICS on
/// or all, those of low-latency mode with all. A group that passes rows through host memory counts
/// as on the host.
struct Statistics {
  std::uint64_t dispatches = 0, combines = 0, low_latency_dispatches = 0, low_latency_combines = 0;
  /// Rows that dispatches sent and received: one for each rank that gets a token; expert-major one
  /// for each expert.
  std::uint64_t rows_sent = 0, rows_received = 0;
  std::chrono::nanoseconds dispatch_time{}, combine_time{}, low_latency_dispatch_time{},
      low_latency_combine_time{};
  /// Time spent waiting for other ranks. On the host, a part of the times above; on GPUs, of the
  /// time of the kernels.
  std::chrono::nanoseconds wait_time{};
};

/// An expert-parallel group. Movable, not copyable; the example above shows its use.
class Group {
 public:
  Group() = default;  ///< closed

  /// Collective over the team. PE i of the team is rank i of the group. Ranks that reach each other
  /// by load and store form a node.
  ///
  /// The memory comes from the world's heap, so PEs of other teams must make a group of the same
  /// size at the same time. Throws Error{invalid_argument} for options outside their limits,
  /// Error{unsupported} when nodes have different numbers of ranks, naming two that differ, and
  /// Error{exhausted} when the heap is too small, stating the size needed and SHOAL_SYMMETRIC_SIZE.
  Group(const Team& team, const GroupOptions& options);
  Group(Group&&) noexcept = default;
  Group& operator=(Group&&) noexcept;
  /// Local: waits for this rank's own calls and kernels, never for another rank. The memory returns
  /// to the heap when the next group of the world is created or closed, once all ranks have
  /// destroyed the group and released its results. After a failure it stays allocated until the
  /// world closes. Never throws.
  ~Group();

  /// Ends the group and returns its memory to the heap. Collective, over the world as the
  /// constructor is. Results that a rank still holds stay readable until their last copy is gone;
  /// the memory then returns as after the destructor. Calls with them, on this group or another,
  /// throw Error{closed} naming the dispatch. Throws Error{timeout} when a rank does not come. With
  /// mask_failed that is a warning, and the memory stays allocated until the world closes. Does
  /// nothing on a closed group.
  void close();

  [[nodiscard]] const Team& team() const;
  [[nodiscard]] const GroupOptions& options() const;
  /// The number of experts on this rank. Results of normal mode have so many.
  [[nodiscard]] std::int32_t local_experts() const;
  /// The largest number of experts on any rank: the first dimension of low-latency results, where
  /// ranks with fewer experts have no rows for the last ones.
  [[nodiscard]] std::int32_t max_local_experts() const;
  /// [ranks + 1]: rank r holds the experts from element r up to element r + 1.
  [[nodiscard]] const std::vector<std::int32_t>& first_expert() const;

  // Normal mode.

  /// Computes where tokens go. Local and pure.
  ///
  /// topk_idx: int64 or int32 [tokens, top_k]; -1 or GroupOptions::none_expert: none. Throws
  /// Error{invalid_argument} for an index outside the experts and for an expert that occurs twice
  /// in a row, naming the token. The arrays of `options` are filled as well.
  [[nodiscard]] Routing route(const ConstTensorView& topk_idx,
                              const RouteOptions& options = {}) const;
  /// Calls route with RouteOptions{.launch = launch}. A template, so that {} are RouteOptions.
  template <typename = void>
  [[nodiscard]] Routing route(const ConstTensorView& topk_idx, const Launch& launch) const {
    return route(topk_idx, RouteOptions{.launch = launch});
  }

  /// Sends each token to the ranks that hold its experts.
  ///
  /// x: [tokens, hidden] of bfloat16, float16, float32 or float8_e4m3; or opaque int8 or uint8 rows
  /// [tokens, n] of at most the bytes of a row of GroupOptions::dtype. Contiguous; rows are a
  /// multiple of 16 bytes. Throws Error{exhausted} on all ranks when one of them has no room left
  /// for the largest result (GroupOptions::live_results).
  [[nodiscard]] Dispatched dispatch(const ConstTensorView& x, const Routing& routing,
                                    const DispatchOptions& options = {});
  /// Repeats the layout of an earlier dispatch for new rows (cached handle): no counts are
  /// exchanged. Weights travel when they are given.
  [[nodiscard]] Dispatched dispatch(const ConstTensorView& x, const Handle& handle,
                                    const DispatchOptions& options = {});

  /// Sends each token to its experts, in the layout of grouped products. A token travels once for
  /// each expert (expand: once for each rank). Arguments and errors are those of dispatch.
  [[nodiscard]] ExpertMajorDispatched dispatch_expert_major(const ConstTensorView& x,
                                                            const Routing& routing,
                                                            const ExpertMajorOptions& options = {});
  [[nodiscard]] ExpertMajorDispatched dispatch_expert_major(const ConstTensorView& x,
                                                            const Handle& handle,
                                                            const ExpertMajorOptions& options = {});

  /// Copies what travelled beside the rows of a dispatch of this group to arrays of the caller, in
  /// one kernel on GPUs. Local. Throws Error{invalid_argument} for an array that `received` lacks,
  /// and for another shape, dtype or device.
  void unpack(const Dispatched& received, const UnpackOptions& to);
  void unpack(const ExpertMajorDispatched& received, const UnpackOptions& to);

  /// Copies rank-major rows to expert-major order, in one kernel on GPUs. Local; waits for no rank.
  /// Rows are sent once per rank then, not once per expert as with dispatch_expert_major.
  /// Throws Error{invalid_argument} for wrong shapes, dtypes or devices.
  void expand(const ExpandOptions& options);

  /// Sums the expert output of each token at the token's own rank.
  ///
  /// y: [rows, hidden] of bfloat16, float16 or float32, contiguous: the expert output for the rows
  /// of a dispatch, in their order. y must stay unchanged until the call returns, which is when
  /// every rank has fetched its rows. Where y lies determines whether it is copied:
  /// - in the group's memory (Dispatched::x itself, written in place): fetched from there;
  /// - on GPUs, in memory that SymmetricHeap::share_buffer has mapped on all ranks: fetched from
  ///   there. All ranks make calls of share_buffer, unshare_buffer and combine in the same order. A
  ///   buffer and its allocation stay shared until the combines that use it are complete on all
  ///   ranks, and for captured ones as long as the graph is replayed. While a rank shares more than
  ///   64 allocations, some may count as not shared;
  /// - elsewhere, and on one node wherever CombineOptions::quantize is given: staged first
  ///   (GroupOptions::combine_staging). Weights outside the group's memory are always staged.
  ///
  /// Expert-major: the rows of a token are added in ascending order of their top-k slots; rows
  /// between blocks are not read. A y outside the group's memory has at most R * max_tokens rows of
  /// GroupOptions::dtype, or as many bytes.
  Combined combine(const ConstTensorView& y, const Handle& handle,
                   const CombineOptions& options = {});

  // Asynchronous forms. The calls return at once; the operations run on the group's own thread, one
  // after another. Each begins after `after`, where that is given, and fails with its error. Inputs
  // must stay valid and unchanged until the future is ready. get() of the future throws what the
  // operation threw. A future may be dropped: the operation runs all the same, because other ranks
  // take part in it. Calls that are not asynchronous first wait for the operations queued before.
  //
  //   auto receiving = group.dispatch_async(x, routing);
  //   auto again = group.dispatch_async(x, received.handle);  // in the layout of `received`
  //   const auto first = receiving.get();                     // throws what dispatch throws
  //   const auto output = group.combine_async(first.x, first.handle).get().x;

  /// Runs dispatch on the group's own thread.
  [[nodiscard]] std::future<Dispatched> dispatch_async(const ConstTensorView& x,
                                                       const Routing& routing,
                                                       const DispatchOptions& options = {},
                                                       Future after = {});
  [[nodiscard]] std::future<Dispatched> dispatch_async(const ConstTensorView& x,
                                                       const Handle& handle,
                                                       const DispatchOptions& options = {},
                                                       Future after = {});
  /// Runs dispatch_expert_major on the group's own thread.
  [[nodiscard]] std::future<ExpertMajorDispatched> dispatch_expert_major_async(
      const ConstTensorView& x, const Routing& routing, const ExpertMajorOptions& options = {},
      Future after = {});
  [[nodiscard]] std::future<ExpertMajorDispatched> dispatch_expert_major_async(
      const ConstTensorView& x, const Handle& handle, const ExpertMajorOptions& options = {},
      Future after = {});
  /// Runs combine on the group's own thread.
  [[nodiscard]] std::future<Combined> combine_async(const ConstTensorView& y, const Handle& handle,
                                                    const CombineOptions& options = {},
                                                    Future after = {});

  // Low latency.

  /// Sends the rows and returns without waiting for those of other ranks.
  ///
  /// x: bfloat16 [tokens, hidden]; topk_idx as in route. Receives are made in the order of the
  /// sends, and at most two sends are open: anything else is Error{invalid_argument}. The receive
  /// after next overwrites the rows of a result, on GPUs the next one if they have been released
  /// (LowLatencyReceived).
  [[nodiscard]] PendingDispatch low_latency_dispatch(const ConstTensorView& x,
                                                     const ConstTensorView& topk_idx,
                                                     const LowLatencyDispatchOptions& options = {});
  /// Sends the expert output back and returns without waiting for that of other ranks.
  ///
  /// y: bfloat16 [max_local_experts(), R * max_tokens, hidden], contiguous unless zero_copy.
  /// topk_idx: as given to the dispatch. weights: float32 [tokens, top_k], of this rank's tokens;
  /// optional where the rows are not summed (LowLatencyCombineOptions::unsummed).
  [[nodiscard]] PendingCombine low_latency_combine(const ConstTensorView& y,
                                                   const ConstTensorView& topk_idx,
                                                   const ConstTensorView& weights,
                                                   const LowLatencyHandle& handle,
                                                   const LowLatencyCombineOptions& options = {});
  /// Memory for the y of the next low_latency_combine, which then need not be copied
  /// (LowLatencyCombineOptions::zero_copy): bfloat16 [max_local_experts(), R * max_tokens, hidden],
  /// rows strided by at least hidden.
  ///
  /// Waits until the other ranks have fetched what the combine before last left in this memory, and
  /// throws as low_latency_combine does when they do not.
  [[nodiscard]] TensorView next_combine_buffer();

  /// The masked ranks: element i is 1 when low-latency operations leave rank i out, else 0.
  ///
  /// With GroupOptions::mask_failed, ranks that waited for a rank that timed out mask it; it masks
  /// them in turn when it finds out.
  [[nodiscard]] std::vector<int> masked() const;
  /// Masks or unmasks a rank. All ranks unmask together. Only a rank that took part in every
  /// operation meanwhile can be brought back; one that missed some stays out of step. Throws
  /// Error{invalid_argument} without mask_failed, for this rank, and out of range.
  void set_mask(std::int32_t rank, bool masked);
  /// Unmasks all ranks. The conditions are those of set_mask.
  void clear_masks();

  // Both modes.

  /// Runs operations of the largest size on generated tokens: loads code and contacts all ranks. On
  /// the host it also takes all memory of low-latency mode, of one result of normal mode and of
  /// staging (Linux 5.14; before, what these operations use). Collective.
  void warmup();

  [[nodiscard]] Statistics statistics() const;

  /// The group's stream of high priority, for calls that name none; nullptr on the host.
  /// Another group may use it once this one and its tensors are gone.
  [[nodiscard]] Stream stream() const;
  /// Orders later calls of the group after the work queued on `stream` when they
  /// begin: for results that were read there and are released. Any thread, also during calls of
  /// another; the stream must live until the next call. Does nothing on the host and on a closed
  /// group.
  void order_after(Stream stream) const noexcept;
  /// Waits until the group's work on the GPU is done, and throws what failed there, also in replays
  /// of graphs that have ended; it does not wait for replays. Error{timeout}
  /// naming who waited for whom in which phase, Error{invalid_argument} for indices that route or
  /// combine found out of range, Error{mismatch}. Calls that wait for a size throw the same; later
  /// calls throw Error{closed}. An interrupt (shoal/interrupt.hpp) ends only the wait. Does nothing
  /// on the host.
  void synchronize();

 private:
  friend struct shoal::detail::Access;
  const std::shared_ptr<detail::GroupState>& state() const noexcept { return state_; }

  std::shared_ptr<detail::GroupState> state_;
};

}  // namespace shoal::ep
