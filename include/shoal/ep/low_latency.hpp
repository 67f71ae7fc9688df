// SPDX-License-Identifier: Apache-2.0
// shoal/ep/low_latency.hpp: options and results of low-latency dispatch and combine.
//
// R ranks, E experts, at most T = low_latency_max_tokens tokens per rank. L is the largest number
// of experts on a rank (Group::max_local_experts), E / R if R divides E; a rank with fewer has no
// rows for the last ones. Shapes are fixed, so ranks exchange no sizes. Each operation has two
// phases: the call sends; receive() of the object that it returns waits. Nothing is held between
// the two.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include <shoal/ep/formats.hpp>
#include <shoal/ep/options.hpp>
#include <shoal/tensor.hpp>

namespace shoal::ep {

namespace detail {
struct LowLatencyHandleState;
struct PendingDispatchState;
struct PendingCombineState;
}  // namespace detail

/// Where low-latency combine rounds. Each gives the same bits on every backend.
///
/// per_rank: the rows of one rank's experts are summed and rounded to bfloat16, then the sums of
/// the ranks are added: the least traffic between GPUs. exact: rounded once. automatic: per_rank.
enum class Reduction : std::uint8_t { automatic = 0, per_rank, exact };

/// The layout of one low-latency dispatch. Its combine needs it. Cheap to copy.
class LowLatencyHandle {
 public:
  LowLatencyHandle() = default;  ///< invalid
  [[nodiscard]] bool valid() const noexcept { return state_ != nullptr; }

 private:
  friend struct shoal::detail::Access;
  explicit LowLatencyHandle(std::shared_ptr<const detail::LowLatencyHandleState> state)
      : state_(std::move(state)) {}
  const std::shared_ptr<const detail::LowLatencyHandleState>& state() const noexcept {
    return state_;
  }

  std::shared_ptr<const detail::LowLatencyHandleState> state_;
};

struct LowLatencyDispatchOptions {
  Quantize quantize = Quantize::fp8;
  ScaleLayout scale_layout = ScaleLayout::automatic;
  /// float32 [1], for nvfp4: `global` there, such as 448 * 6 / amax of all rows; without it 1. The
  /// same value on all ranks, positive and finite. Otherwise Error{mismatch} where rows of another
  /// rank arrive, or Error{invalid_argument}; on GPUs `synchronize` throws them.
  ConstTensorView global_scale{};
  /// int32 [L]; optional: the rows received per expert are added to it.
  TensorView tokens_per_expert{};
  /// int64 [R]; optional: the nanoseconds waited for each rank are added to it.
  TensorView wait_ns{};
  /// float32 [tokens, top_k]; optional: the weights of the later combine, which then travel with
  /// the rows. On GPUs combine then needs no exchange of its own; between nodes, and on GPUs where
  /// its receive is deferred, it returns one row per (token, rank) instead of one per (token,
  /// expert), unless it is exact. The weights must be unchanged at combine; on the host other
  /// weights are Error{invalid_argument}.
  ConstTensorView weights{};
  /// false: the receive is queued at once after the send, which on GPUs saves the time between two
  /// kernels; receive() then returns the result. All earlier ones must have been received.
  /// true: receive() queues it; nothing is held in between.
  bool defer_receive = true;
  Launch launch{};
};

/// The rows that a rank received. Rows 0 to counts[e] - 1 of expert e are valid. The memory belongs
/// to the group: the receive after next overwrites it. On GPUs the next one may overwrite x and
/// scales if no tensor of them is held when its dispatch is called; work that reads them must be
/// ordered before that call (Launch).
struct LowLatencyReceived {
  /// float8_e4m3 or, without quantization, bfloat16 [L, R * T, hidden]; with nvfp4 uint8
  /// [L, R * T, hidden / 2], two channels in a byte, the first one in the lower half.
  Tensor x;
  /// With quantization: as ScaleLayout says. shoal/numeric.hpp decodes e4m3 and UE8M0.
  std::optional<Tensor> scales;
  Tensor counts;        ///< int32 [L]
  Tensor source_token;  ///< int32 [L, R * T]: index of the token on its source rank
  /// int64 [L, R]: (first row << 32) | rows, of each expert from each rank.
  Tensor layout;
  LowLatencyHandle handle;
};

/// A low-latency dispatch whose rows have been sent. No core or SM is held until receive. Movable,
/// not copyable.
///
/// An object may be destroyed before receive(), also by assigning another one to it. The group then
/// takes the operation over: a later low-latency call of this rank receives the rows, in the order
/// of the sends, and discards them, since other ranks wait until they are read. The arrays and the
/// stream of the options are no longer used. An error of that receive is logged, or thrown by the
/// later call if it ends the group.
class PendingDispatch {
 public:
  PendingDispatch() = default;  ///< empty: ready() and receive() throw Error{invalid_argument}
  PendingDispatch(PendingDispatch&&) noexcept = default;
  PendingDispatch& operator=(PendingDispatch&&) noexcept = default;
  /// Whether receive() would return without waiting (on a GPU: for more than the last stores of a
  /// row, a microsecond), or the group's timeout has passed.
  [[nodiscard]] bool ready() const;
  /// Waits for the rows of all ranks. Throws Error{invalid_argument} when called again,
  /// Error{timeout} naming the rank that is late (with mask_failed, continues without it), and
  /// Error{mismatch} when ranks passed different options.
  [[nodiscard]] LowLatencyReceived receive();
  /// The result that receive() will return. A program can pass it on before; its rows are valid
  /// after receive(). nullptr after receive(), and in groups in host memory or that stage rows
  /// there, which make a result when it is received.
  [[nodiscard]] const LowLatencyReceived* result() const noexcept;

 private:
  friend struct shoal::detail::Access;
  explicit PendingDispatch(std::shared_ptr<detail::PendingDispatchState> state)
      : state_(std::move(state)) {}

  std::shared_ptr<detail::PendingDispatchState> state_;
};

struct LowLatencyCombineOptions {
  /// Rows travel as LogFMT-10: 10 bits per channel, or 16 in blocks that the format cannot hold.
  /// With Reduction::per_rank a rank's sum, rounded to bfloat16, is encoded: one row per (token,
  /// rank). With exact, each expert output is: one row per (token, expert).
  ///
  /// A rank cannot sum before it sends where the weights did not travel with the dispatch and its
  /// receive is deferred, or the group has mask_failed and spans nodes. It then encodes each expert
  /// output, and the receiver adds and rounds. Results of the two ways differ within the error of
  /// the format; each gives the same bits on every backend.
  bool log_fmt = false;
  /// fp8 or mxfp8: rows travel in e4m3 with scales, as Quantize defines these formats, 1.03 bytes a
  /// channel; hidden is a multiple of 16 (fp8) or 32. The rows are those of log_fmt: the sum of
  /// each rank, or each expert output. The receiver decodes them to float32 and adds them in the
  /// order of bfloat16 rows. A NaN or an infinity makes all channels that share its scale NaN.
  /// Other formats, and log_fmt at the same time, are Error{invalid_argument}.
  ///
  /// Bound of a channel's error, in addition to the roundings to bfloat16: c * amax of each row
  /// that travels, times the magnitude of its weight (of a sum: 1), summed over the rows. amax is
  /// the row's largest magnitude in the channels that share the scale, for fp8 at least 1e-4, for
  /// mxfp8 at least 2^-118; c is 1/28 for fp8 and 1/16 for mxfp8.
  ///
  ///     auto arrived = group.low_latency_dispatch(x, topk_idx).receive();
  ///     auto sent = group.low_latency_combine(y, topk_idx, topk_weights, arrived.handle,
  ///                                           {.quantize = shoal::ep::Quantize::fp8});
  ///     shoal::Tensor sums = sent.receive();
  Quantize quantize = Quantize::none;
  /// y lies in Group::next_combine_buffer, so it need not be copied. Not with log_fmt or quantize.
  bool zero_copy = false;
  Reduction reduction = Reduction::automatic;
  /// true: the receive returns the expert outputs in top-k order, bfloat16 [tokens, top_k, hidden],
  /// for an engine that sums them in another kernel. Row [t, k] is what the expert of slot k wrote
  /// to y, without a weight; with log_fmt or quantize it is the decoded row, rounded to bfloat16.
  /// It is zero where the slot has no expert or the expert's rank is masked. On GPUs two
  /// neighbouring NaNs of 0xffff become other NaNs.
  ///
  /// One row per (token, expert) travels, as with Reduction::exact: per_rank is
  /// Error{invalid_argument}, and other ranks may be exact and sum. Weights are not used; they may
  /// be undefined.
  ///
  ///     auto arrived = group.low_latency_dispatch(x, topk_idx).receive();
  ///     auto sent = group.low_latency_combine(y, topk_idx, {}, arrived.handle,
  ///                                           {.unsummed = true});
  ///     shoal::Tensor rows = sent.receive();  // [tokens, top_k, hidden]
  bool unsummed = false;
  /// bfloat16 [tokens, hidden], with `unsummed` [tokens, top_k, hidden]; optional: the memory of
  /// the result.
  TensorView out{};
  /// int64 [R]; optional: the nanoseconds waited for each rank are added to it.
  TensorView wait_ns{};
  /// false: the receive is queued at once after the send, and receive() returns the result. All
  /// earlier ones must have been received. true: receive() queues it.
  bool defer_receive = true;
  Launch launch{};
};

/// A low-latency combine whose rows have been sent. Movable, not copyable. An object that is
/// destroyed before receive() leaves the operation to the group, as a PendingDispatch does; `out`
/// is then not written.
class PendingCombine {
 public:
  PendingCombine() = default;  ///< empty: ready() and receive() throw Error{invalid_argument}
  PendingCombine(PendingCombine&&) noexcept = default;
  PendingCombine& operator=(PendingCombine&&) noexcept = default;
  /// Whether receive() would return without waiting, or the group's timeout has passed
  /// (PendingDispatch::ready).
  [[nodiscard]] bool ready() const;
  /// Waits for the rows of all ranks and returns their sums, bfloat16 [tokens, hidden], or the rows
  /// (LowLatencyCombineOptions::unsummed), in `out` when that is given. Throws as
  /// PendingDispatch::receive does. With zero_copy, other ranks may still read y after this
  /// returns; next_combine_buffer waits for them before it returns the same memory again.
  Tensor receive();

 private:
  friend struct shoal::detail::Access;
  explicit PendingCombine(std::shared_ptr<detail::PendingCombineState> state)
      : state_(std::move(state)) {}

  std::shared_ptr<detail::PendingCombineState> state_;
};

}  // namespace shoal::ep
