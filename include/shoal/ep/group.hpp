// SPDX-License-Identifier: Apache-2.0
// shoal/ep/group.hpp: expert-parallel dispatch and combine (requirements E1 to E4, A4, A8, A9, A11,
// A15).
//
// A Group belongs to a team of R PEs over which E experts are spread: expert e lives on member e /
// (E / R). It owns a part of the symmetric heap and moves token rows to the members that hold their
// experts (dispatch) and sums the answers (combine).
//
// Two modes share a group. Normal: each token crosses to each member once, received rows are dense,
// ordered by source member, then by token. Low latency: fixed shapes [local experts, R * max
// tokens, hidden] without any exchange of sizes, and a receive phase that is a call of its own, so
// that nothing is held between send and receive.
//
// Calls are collective over the team: every member makes the same calls in the same order; members
// may be skewed in time. One thread uses a group at a time. Results lie in the world's heap: they
// go, and what is queued on a group's stream ends, before World::close. Results are the same bits
// every time: sums are accumulated in float32 in ascending top-k order and rounded once (once a
// level where a level pre-sums).
//
// A group lives where its world's heap lies (SHOAL_HEAP): on the host, or in GPU memory, where
// tensors are device tensors and calls return when their kernels are queued on a stream (Launch).
// Numbers are the same on both. A dispatch without worst_case_rows or a cached handle waits on the
// host for its sizes. Other calls can be captured in a CUDA graph (E5), but for copy_out, combines
// without `out` or with CombineOptions::weights, low-latency calls before one of their kind or
// warmup, and all calls of groups that pass rows through host memory (docs/guide/gpus.md).
//
// Failure: bad arguments throw Error{invalid_argument} before anything is sent, and the group stays
// usable. Members that pass different options throw Error{mismatch} on all members. A wait that
// lasts longer than the group's timeout throws Error{timeout} naming the member that was waited
// for, the epoch, the phase, what was expected and seen; after that, and after Error{peer_failed},
// every call on the group throws Error{closed} with that message. Low-latency calls with
// mask_failed go on without the failed member instead.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <vector>

#include <shoal/team.hpp>
#include <shoal/tensor.hpp>

namespace shoal::ep {

namespace detail {
struct GroupState;
struct RoutingState;
struct HandleState;
struct LowLatencyHandleState;
struct PendingDispatchState;
struct PendingCombineState;
}  // namespace detail

inline constexpr std::int32_t kMaxTopK = 32;

/// How a call of a group in GPU memory is ordered with other work on the GPU. The host backend
/// ignores it. Streams and events are the caller's and must outlive the call's work; they are void*
/// so that this header needs no CUDA.
struct Launch {
  void* stream =
      nullptr;            ///< cudaStream_t that the call's kernels run on; nullptr: Group::stream()
  void* after = nullptr;  ///< cudaEvent_t that the call's kernels wait for first; optional
  void* done = nullptr;   ///< cudaEvent_t recorded behind the call's kernels; optional
  std::int32_t sms =
      0;  ///< SMs (thread blocks) that the call may hold; 0: SHOAL_EP_SMS, or what measured best
};

struct GroupOptions {
  std::int64_t max_tokens =
      0;  ///< tokens per member and normal operation, at most; 0: no normal mode
  std::int64_t hidden =
      0;  ///< channels of a row; rows of every dtype used must be a multiple of 16 bytes
  std::int32_t top_k = 0;    ///< experts per token, 1 .. 32
  std::int32_t experts = 0;  ///< of all members together; divisible by the team's size
  /// The widest row dtype of normal mode, which sizes the receive area: bfloat16 (default),
  /// float16, float32 or float8_e4m3.
  DataType dtype = DataType::bfloat16;
  /// Scales (4 bytes each) per row at most; 0: one per 128 channels.
  std::int64_t max_scales = 0;
  /// How many normal-mode results, of any size, can be held at once at least. Room for more is
  /// taken where there is some.
  std::int32_t live_results = 2;
  /// Tokens per member and low-latency operation, at most; 0: no low-latency mode.
  std::int64_t low_latency_max_tokens = 0;
  bool preinitialize =
      false;                 ///< touch all memory and meet all members while the group is made (B2)
  bool mask_failed = false;  ///< low latency goes on without members that time out (E3)
  std::chrono::milliseconds timeout{0};  ///< of every wait of this group; 0: SHOAL_TIMEOUT_MS
  std::int32_t threads =
      0;  ///< threads of this PE that move rows on the host backend; 0: SHOAL_EP_THREADS
  /// Whether combine takes a y that lies outside the symmetric heap, which needs room for a copy:
  /// on GPUs real memory (members * max_tokens rows). Without it such a y is
  /// Error{invalid_argument}, unless it lies in a shared buffer.
  bool combine_staging = true;
};

/// Bytes of the symmetric heap that a group of `ranks` members takes on each of them, by part (A8,
/// A15). On the host they are address space whose pages are taken from the system when first used;
/// on GPUs they are memory.
struct SizeHint {
  std::size_t control = 0;      ///< signals and counts
  std::size_t normal = 0;       ///< receive area and staging of normal mode
  std::size_t low_latency = 0;  ///< slots and combine buffers of low-latency mode
  std::size_t total() const noexcept { return control + normal + low_latency; }
};
/// `nodes`: that the ranks lie on, equally many on each. Groups of GPU tensors on several nodes
/// take host memory (SHOAL_STAGING_SIZE): ask with DeviceKind::host for them.
SizeHint size_hint(const GroupOptions& options, std::int32_t ranks,
                   DeviceKind heap = DeviceKind::host, std::int32_t nodes = 1);
/// The low-latency part alone.
std::size_t low_latency_size_hint(std::int64_t max_tokens, std::int64_t hidden, std::int32_t ranks,
                                  std::int32_t experts, std::int32_t top_k = 8,
                                  DeviceKind heap = DeviceKind::host);

/// Where the tokens of this member go: a pure function of the top-k indices (E1). Reusable for any
/// number of dispatches. The fields are for reading: dispatch goes by the state behind them. On
/// GPUs the counts are in device memory, in stream order behind route, and the vectors are empty.
struct Routing {
  Tensor topk_idx;                              ///< int64 [tokens, top_k], a copy; -1: no expert
  std::vector<std::int32_t> tokens_per_rank;    ///< [R], each token counted once per member
  std::vector<std::int32_t> tokens_per_expert;  ///< [E]
  Tensor rank_counts;                           ///< int32 [R]: tokens_per_rank in device memory
  Tensor expert_counts;                         ///< int32 [E]: tokens_per_expert in device memory
  std::shared_ptr<const detail::RoutingState> state;

  std::int64_t tokens() const noexcept { return topk_idx.shape[0]; }
  bool is_token_in_rank(std::int64_t token, std::int32_t rank) const;
};

/// The layout of one dispatch, needed by its combine and by later dispatches of the same routing
/// (cached handle).
class Handle {
 public:
  Handle() = default;
  explicit Handle(std::shared_ptr<const detail::HandleState> state) : state_(std::move(state)) {}
  bool valid() const noexcept { return state_ != nullptr; }
  std::int64_t received_rows() const;  ///< as Dispatched::rows
  const std::shared_ptr<const detail::HandleState>& state() const noexcept { return state_; }

 private:
  std::shared_ptr<const detail::HandleState> state_;
};

/// Completion of an operation on the host; what dispatch_async and combine_async wait for first.
using Future = std::shared_future<void>;

struct DispatchOptions {
  TensorView weights{};  ///< float32 [tokens, top_k]; optional; travels with the rows
  TensorView scales{};   ///< float32 or int32 [tokens, n], any strides; optional side payload (of
                         ///< float8 rows)
  std::int32_t expert_alignment = 1;  ///< tokens_per_expert is rounded up to a multiple of it
  /// Expert-major layout: x has a row for each (token, expert here) in place of each token here.
  /// Rows are grouped by expert, ascending; the block of an expert starts at a multiple of
  /// expert_alignment and lists its tokens by source member, then token. What lies between blocks
  /// is filled in topk_idx, topk_weights and source_token; rows of x and scales stay there as they
  /// were in memory. The same on all members, as is expert_alignment then; a cached handle brings
  /// both along. A result must fit into the room of a flat one with max_tokens from every member,
  /// else Error{exhausted} on all members; with worst_case_rows it may take the room of several
  /// (live_results).
  bool expert_major = false;
  /// > 0: results have exactly so many rows; those that no token fills have topk_idx -1. At most
  /// members * max_tokens; expert_major: members * max_tokens * min(top_k, E / R) + E / R *
  /// (expert_alignment - 1), gaps between blocks included.
  std::int64_t worst_case_rows = 0;
  bool copy_out = false;  ///< results in ordinary memory in place of the heap
  Launch launch{};
};

struct Dispatched {
  Tensor x;       ///< [rows, hidden], dtype of the input
  Tensor scales;  ///< [rows, n]; undefined without input scales. This and the next three have
                  ///< contiguous rows, which on GPUs are strided: what travels beside a row lies
                  ///< together
  /// int64 [rows, top_k]: experts of this member, numbered from 0; -1 where the expert is
  /// elsewhere. ExpertMajor: [rows, 1]: the expert of the row; -1 between blocks.
  Tensor topk_idx;
  Tensor
      topk_weights;  ///< float32, as topk_idx; 0 where that is -1; undefined without input weights
  Tensor source_token;  ///< int32 [rows]: index of the token at its source. ExpertMajor: -1 between
                        ///< blocks
  /// ExpertMajor: int32 [E / R + 1]: where the block of each local expert starts, and the end of
  /// the last one. In device memory on GPUs. Undefined in the flat layout.
  Tensor expert_first_row;
  /// [R]: rows of each source; in the flat layout they come in blocks of these lengths, in order.
  /// Empty on GPUs with worst_case_rows, where no size reaches the host.
  std::vector<std::int64_t> rows_per_source;
  std::vector<std::int64_t>
      tokens_per_expert;  ///< [E / R], rounded up to expert_alignment; empty with worst_case_rows
  /// Rows that hold tokens (x may have more with worst_case_rows), expert_major: and those between
  /// the blocks; -1 on GPUs with worst_case_rows.
  std::int64_t rows = 0;
  Tensor row_count;      ///< int32 [1]: the same in device memory (GPUs)
  Tensor expert_counts;  ///< int32 [E / R]: tokens per local expert, not aligned, in device memory
                         ///< (GPUs)
  Handle handle;
};

struct CombineOptions {
  /// float32 [rows, top_k], expert_major: [rows, 1]; optional: summed back to the source like the
  /// rows; expert_major: each to its lane.
  TensorView weights{};
  std::vector<TensorView>
      bias{};        ///< 0, 1 or 2 tensors [tokens, hidden] of y's dtype, added before the rows
  TensorView out{};  ///< [tokens, hidden]; optional: where to put the result
  Launch launch{};
};

struct Combined {
  Tensor x;             ///< [tokens, hidden] of y's dtype; options.out when given
  Tensor topk_weights;  ///< float32 [tokens, top_k]; undefined without weights
};

/// How low-latency dispatch encodes rows on their way (section 3.5 of the contract; 128 channels
/// share a scale).
enum class Quantize : std::uint8_t { none = 0, fp8, fp8_power_of_two, fp8_ue8m0 };

/// Where low-latency combine rounds. per_rank: the rows of one member's experts are summed and
/// rounded to bfloat16 first, then the sums of the members are added: least traffic between GPUs.
/// exact: rounded once. Both give the same bits on every backend.
enum class Reduction : std::uint8_t { automatic = 0, per_rank, exact };

/// The layout of one low-latency dispatch; needed by its combine.
class LowLatencyHandle {
 public:
  LowLatencyHandle() = default;
  explicit LowLatencyHandle(std::shared_ptr<const detail::LowLatencyHandleState> state)
      : state_(std::move(state)) {}
  bool valid() const noexcept { return state_ != nullptr; }
  const std::shared_ptr<const detail::LowLatencyHandleState>& state() const noexcept {
    return state_;
  }

 private:
  std::shared_ptr<const detail::LowLatencyHandleState> state_;
};

struct LowLatencyDispatchOptions {
  Quantize quantize = Quantize::fp8;
  TensorView
      expert_counts{};  ///< int32 [E / R]; optional: rows received per expert are added to it
  TensorView
      wait_ns{};  ///< int64 [R]; optional: nanoseconds waited for each member are added to it
  /// float32 [tokens, top_k]; optional: the weights that combine will be called with. They then
  /// travel with the rows: on GPUs combine needs no exchange of its own, and between nodes it
  /// brings one row per (token, member) in place of one per (token, expert), unless it is exact or
  /// log_fmt. Must be unchanged at combine; on the host other weights are Error{invalid_argument}.
  TensorView weights{};
  /// false: the receive is queued at once behind the send, which on GPUs saves the time between two
  /// kernels; receive() then hands out the result; all earlier ones must have been received. true:
  /// it is queued by receive(), and in between nothing is held (A9).
  bool defer_receive = true;
  Launch launch{};
};

struct LowLatencyReceived {
  Tensor x;  ///< float8_e4m3 or bfloat16 [E / R, R * max_tokens, hidden]; rows 0 .. counts[e] - 1
             ///< of expert e are valid
  /// float32 [E / R, R * max_tokens, hidden / 128] dequantisation scales, or int32 [.., .., hidden
  /// / 512] packed UE8M0 (both rounded up). In memory the row index runs fastest: strides {.., 1, R
  /// * max_tokens}. Undefined for bfloat16.
  Tensor scales;
  Tensor counts;        ///< int32 [E / R]
  Tensor source_token;  ///< int32 [E / R, R * max_tokens]: index of the token at its source
  Tensor layout;  ///< int64 [E / R, R]: (first row << 32) | rows, of each expert from each member
  LowLatencyHandle handle;
};

/// A low-latency dispatch whose rows are sent. receive() waits for the rows of all members; between
/// the two no core is held (A9).
class PendingDispatch {
 public:
  PendingDispatch() = default;
  explicit PendingDispatch(std::shared_ptr<detail::PendingDispatchState> state)
      : state_(std::move(state)) {}
  bool ready() const;  ///< whether receive() would not wait, or the group's timeout is over
  LowLatencyReceived receive();  ///< once; throws Error{invalid_argument} a second time

 private:
  std::shared_ptr<detail::PendingDispatchState> state_;
};

struct LowLatencyCombineOptions {
  bool log_fmt = false;    ///< rows travel as LogFMT-10 (10 bits a channel)
  bool zero_copy = false;  ///< y lies in next_combine_buffer: no staging copy. Not with log_fmt.
  Reduction reduction = Reduction::automatic;  ///< automatic: per_rank
  TensorView out{};                            ///< bfloat16 [tokens, hidden]; optional
  TensorView wait_ns{};                        ///< int64 [R]; optional, as in dispatch
  bool defer_receive = true;                   ///< as in dispatch
  Launch launch{};
};

class PendingCombine {
 public:
  PendingCombine() = default;
  explicit PendingCombine(std::shared_ptr<detail::PendingCombineState> state)
      : state_(std::move(state)) {}
  bool ready() const;
  /// bfloat16 [tokens, hidden]. With zero_copy, y stays in use by other members after this returns:
  /// next_combine_buffer waits for them before it hands the same memory out again.
  Tensor receive();

 private:
  std::shared_ptr<detail::PendingCombineState> state_;
};

/// Counters since the group was made (B7). Times are of the calling thread, waits included. On GPUs
/// calls count when they are queued or captured, replays do not, and groups that pass rows through
/// host memory count as on the host.
struct Statistics {
  std::uint64_t dispatches = 0, combines = 0, low_latency_dispatches = 0, low_latency_combines = 0;
  std::uint64_t rows_sent = 0;      ///< 0 on GPUs, where the host does not read routings
  std::uint64_t rows_received = 0;  ///< on GPUs of dispatches that fill Dispatched::rows_per_source
  std::chrono::nanoseconds dispatch_time{}, combine_time{}, low_latency_dispatch_time{},
      low_latency_combine_time{};
  std::chrono::nanoseconds
      wait_time{};  ///< of these, spent waiting for other members; 0 on GPUs, where kernels wait
};

class Group {
 public:
  Group() = default;  ///< closed
  /// Collective over the team. Members that reach each other by load and store form a node; all
  /// nodes must have equally many (Error{unsupported} naming two that differ). The memory comes
  /// from the world's heap: PEs of other teams make a group of the same size at the same time.
  /// Throws Error{invalid_argument} for options outside their limits, Error{exhausted} when the
  /// heap is too small, stating the size needed and SHOAL_SYMMETRIC_SIZE.
  Group(const Team& team, const GroupOptions& options);
  Group(Group&&) noexcept = default;
  Group& operator=(Group&&) noexcept;
  /// As close, but keeps the memory until the world closes when results are still held or a member
  /// has failed; never throws.
  ~Group();

  /// Returns the group's memory to the heap. Collective, over the world as making a group is.
  /// Throws Error{invalid_argument} on all members when any of them still holds results; closing a
  /// closed group does nothing.
  void close();

  const Team& team() const;
  const GroupOptions& options() const;
  std::int32_t local_experts() const;

  /// topk_idx: int64 or int32 [tokens, top_k]; -1: none. Local and pure. Throws
  /// Error{invalid_argument} for an index outside the experts or one expert twice in a row, naming
  /// the token.
  Routing route(const TensorView& topk_idx, const Launch& launch = {}) const;

  /// x: bfloat16, float16, float32 or float8_e4m3 [tokens, hidden], or opaque int8 or uint8 rows
  /// [tokens, n] of at most the bytes of a row of GroupOptions.dtype; contiguous, rows a multiple
  /// of 16 bytes. Throws Error{exhausted} on all members when a member has no room left for the
  /// largest result (live_results).
  Dispatched dispatch(const TensorView& x, const Routing& routing,
                      const DispatchOptions& options = {});
  /// The same layout again for new rows: no counts are exchanged. Results have no topk_idx,
  /// source_token and tokens_per_expert; weights where they are given.
  Dispatched dispatch(const TensorView& x, const Handle& handle,
                      const DispatchOptions& options = {});
  /// y: [rows, hidden], bfloat16, float16 or float32, contiguous: the answers to the rows of a
  /// dispatch, in their order. Rows in the group's memory (such as Dispatched::x itself, written in
  /// place) are fetched from there; others are staged first. On GPUs rows in memory of any
  /// allocator that SymmetricHeap::share_buffer has mapped everywhere are fetched from there as
  /// well (D2): each member for itself, where it is best. All members make calls of share_buffer,
  /// unshare_buffer and combine in the same order; a buffer, and its allocation, stay shared until
  /// the combines that use it are complete on all members, a captured one as long as it is
  /// replayed. While a member shares more than 64 allocations, some of them may count as not
  /// shared. Weights outside the group's memory are staged always. y must stay unchanged until the
  /// call returns; it does so when every member has fetched its rows. ExpertMajor: the rows of a
  /// token are added in ascending lane order, those between blocks are not read; a y outside the
  /// group's memory has at most members * max_tokens rows of GroupOptions.dtype, or as many bytes.
  Combined combine(const TensorView& y, const Handle& handle, const CombineOptions& options = {});

  /// The same on the group's own stream: operations run there one after another, each after `after`
  /// when given. Inputs must stay valid and unchanged until the future is ready; errors come out of
  /// it.
  std::future<Dispatched> dispatch_async(const TensorView& x, const Routing& routing,
                                         const DispatchOptions& options = {}, Future after = {});
  std::future<Combined> combine_async(const TensorView& y, const Handle& handle,
                                      const CombineOptions& options = {}, Future after = {});

  /// x: bfloat16 [tokens, hidden]; topk_idx as in route. Sends, and returns without waiting for the
  /// rows of others. Receives are made in the order of the sends, at most two of which are open:
  /// anything else is Error{invalid_argument}. The rows of a result are overwritten by the receive
  /// after next. Members that pass different options get Error{mismatch} from receive.
  PendingDispatch low_latency_dispatch(const TensorView& x, const TensorView& topk_idx,
                                       const LowLatencyDispatchOptions& options = {});
  /// y: bfloat16 [E / R, R * max_tokens, hidden], contiguous unless zero_copy; weights: float32
  /// [tokens, top_k], of the tokens of this member; topk_idx as given to the dispatch.
  PendingCombine low_latency_combine(const TensorView& y, const TensorView& topk_idx,
                                     const TensorView& weights, const LowLatencyHandle& handle,
                                     const LowLatencyCombineOptions& options = {});
  /// Where the experts may write the y of the next low_latency_combine so that it need not be
  /// copied: bfloat16 [E / R, R * max_tokens, hidden], rows strided by at least hidden. Waits until
  /// the other members have fetched what the combine before last left in this memory; throws as
  /// low_latency_combine does when they do not.
  TensorView next_combine_buffer();

  /// Members left out of low-latency operations (1: left out). A member that times out is masked by
  /// those that waited for it, and masks them in turn when it finds out. Unmasking is for all
  /// members together, and only brings a member back that has taken part in every operation
  /// meanwhile: one that missed some stays out of step. Setting needs mask_failed.
  std::vector<int> masked() const;
  void set_mask(std::int32_t rank, bool masked);
  void clear_masks();

  /// Runs operations of the largest size on made-up tokens, so that code is loaded, the pages that
  /// such operations use are touched, and all members have met (B2). Collective.
  void warmup();

  Statistics statistics() const;

  /// cudaStream_t of the group, of high priority, for calls that name none; nullptr on the host. It
  /// is another one's once the group and its tensors are gone.
  void* stream() const;
  /// Waits until the group's work on the GPU is done, and throws what went wrong there:
  /// Error{timeout} with who waited for whom in which phase, Error{invalid_argument} for indices
  /// that route found out of range, Error{mismatch}. Calls that wait for a size throw it as well,
  /// later calls Error{closed}. Does nothing on the host.
  void synchronize();

 private:
  std::shared_ptr<detail::GroupState> state_;
};

}  // namespace shoal::ep
