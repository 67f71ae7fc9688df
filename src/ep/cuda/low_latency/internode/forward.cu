// SPDX-License-Identifier: Apache-2.0
// forward.cu: sends what a low-latency send or receive has left in the outboxes of remote ranks.
// One block; a warp has 32 tokens of a remote rank at a time, a lane the put of its row.
//
// Moves, from the outbox to the rank's block: after a dispatch the rows with an expert there, and
// one put each for headers, counts, weights and ready words; after a combine the combine rows, and
// one put for their flags. Rows with little between them share a put, within 32 places. Then
// 8 bytes for each signal that has changed, and the notice.
//
// Requests for a remote rank: 4 puts for 128 rows that lie together, 4 or fewer for tables, up to 5
// signals. Each costs about a microsecond of the proxy's thread. By NIC, what costs is a post, some
// microseconds of its warp: one for 32 rows, one for tables and signals. Warps post side by side.
//
// Waits for nothing but room in the queue of the network: no other rank. Memory order: the launch
// follows the kernel that wrote the outbox. Rows may arrive in any order; a signal is started after
// a barrier of all threads that started puts, and arrives after them. A row stays in the outbox
// until its half is used again, for which the rank has granted the half, and so received the row.
#include "ep/cuda/low_latency/device/launch.cuh"
#include "ep/cuda/low_latency/device/topk_slots.cuh"
#include "ep/cuda/low_latency/formats/logfmt.cuh"
#include "ep/cuda/low_latency/internode/forward.cuh"
#include "ep/numeric/numeric.hpp"

namespace shoal::ep::cuda {
namespace {

constexpr std::uint32_t kThreads = 256;

/// After a failure of the network towards a rank. The other ranks learn of it from the signals that
/// follow.
template <class Network>
__device__ void report_network(const DeviceGroup& group, const Outbox<Network>& outbox, Phase phase,
                               std::uint32_t operation, std::uint64_t epoch) {
  if (outbox.ok()) return;
  report_fault(group, Fault::network, phase, operation, outbox.rank(), epoch, 0);
  for (std::int32_t other = 0; other < group.ranks; ++other)
    raise_signal(group, group.layout.failed, other, detail::failed_word(outbox.rank(), false));
}

/// The send before this launch ends with it: all that was sent has been started. All threads call.
__device__ void end_send(const DeviceGroup& group, KernelKind kind, std::uint64_t epoch) {
  if (group.record == nullptr) return;
  __syncthreads();
  if (threadIdx.x != 0) return;
  note_end(group, kind, epoch);
  launch_record(group, kind, epoch).forwarded = epoch;
}

/// Calls f(outbox) for each remote rank, by a warp each.
template <class Network, typename F>
__device__ void for_outboxes(const DeviceGroup& group, const InternodeRanks& remote, F&& f) {
  for (auto index = static_cast<std::int32_t>(threadIdx.x / 32); index < remote.count;
       index += static_cast<std::int32_t>(blockDim.x / 32)) {
    Outbox<Network> outbox(group, remote, index);
    f(outbox);
  }
}

// Dispatch.

__device__ DispatchNoticeWord notice_for(const LowLatencyForwardDispatch& call, std::int32_t rank,
                                         std::uint64_t epoch) {
  return DispatchNoticeWord::of(
      ptx::ld_relaxed_sys_global(dispatch_notice(call.group, rank, epoch, call.group.me)));
}

/// Puts the rows of a warp's lanes, each `bytes` bytes at `stride` * lane from `first` on; 0: none.
/// Rows with little between them share a put: what it writes there is read by none, because only
/// this rank writes these places, and always all that is read. All lanes of a warp call.
template <class Network>
__device__ void put_rows(Outbox<Network>& outbox, const std::byte* first, std::size_t stride,
                         std::uint32_t bytes) {
  const std::uint32_t me = lane_id(), rows = __ballot_sync(kWarp, bytes != 0);
  const std::uint32_t later = me == 31 ? 0 : rows >> (me + 1);
  const bool joins =
      bytes != 0 && later != 0 && __ffs(later) * stride - bytes <= Network::kGapBytes;
  const std::uint32_t joined = __ballot_sync(kWarp, joins);  // to the next row
  const std::uint32_t earlier = rows & ((1u << me) - 1);
  const bool starts = bytes != 0 && (earlier == 0 || (joined >> (31 - __clz(earlier)) & 1) == 0);
  const std::uint32_t ends = rows & ~joined & ~((1u << me) - 1);
  const std::uint32_t last = starts ? __ffs(ends) - 1 : me;
  const std::uint32_t last_bytes = __shfl_sync(kWarp, bytes, static_cast<int>(last));
  outbox.send_each({first + me * stride, starts ? (last - me) * stride + last_bytes : 0});
}

/// Puts the rows of 32 slots. All lanes of a warp call.
template <class Network>
__device__ void put_slots(const LowLatencyForwardDispatch& call, Outbox<Network>& outbox,
                          std::int32_t token, std::uint64_t epoch) {
  const DeviceGroup& group = call.group;
  const std::int32_t rank = outbox.rank(), first = token - static_cast<std::int32_t>(lane_id());
  bool has_row = false;
  if (token < call.tokens) {
    const SlotPacket packet = load_packet(
        slot_header(group, rank, slot_index(group, call.sizes, epoch, group.me, token)));
    has_row = is_epoch(packet.low, epoch) && packet.has_row();
  }
  const std::size_t slot = slot_index(group, call.sizes, epoch, group.me, first);
  put_rows(outbox, slot_row(group, rank, slot, first, call.row),
           group.layout.slot_bytes - call.row.saving, has_row ? call.row.bytes : 0);
}

/// Headers, counts, weights and ready words, by the first four lanes.
__device__ Piece table_of_lane(const LowLatencyForwardDispatch& call, std::int32_t rank,
                               std::uint64_t epoch) {
  const DeviceGroup& group = call.group;
  const std::size_t first = slot_index(group, call.sizes, epoch, group.me, 0),
                    tokens = static_cast<std::size_t>(call.tokens);
  switch (lane_id()) {
    case 0:
      return {slot_header(group, rank, first),
              tokens * group.layout.packets * detail::kPacketBytes};
    case 1:
      return {slot_counts(group, rank, epoch, group.me),
              static_cast<std::size_t>(group.local_experts) * sizeof(std::uint64_t)};
    case 2:
      return {slot_weights(group, rank, first),
              call.has_weights != 0 ? tokens * group.top_k * sizeof(float) : 0};
    case 3:
      return {slot_ready(group, rank, first), call.flags != 0 ? tokens * sizeof(std::uint64_t) : 0};
    default:
      return {};
  }
}

template <class Network>
__device__ void forward_dispatch(const LowLatencyForwardDispatch& call) {
  const DeviceGroup& group = call.group;
  const std::uint64_t epoch = group.memory->dispatches_sent;
  const bool usable = !aborted(group);
  const auto report = [&](const Outbox<Network>& outbox) {
    report_network(group, outbox, Phase::low_latency_dispatch_grant, kDispatchOperation, epoch);
  };
  if (usable)
    for_windows(call.remote, call.tokens, [&](std::int32_t index, std::int32_t token) {
      Outbox<Network> outbox(group, call.remote, index);
      if (notice_for(call, outbox.rank(), epoch).masked) return;
      put_slots(call, outbox, token, epoch);
      report(outbox);
    });
  __syncthreads();
  for_outboxes<Network>(group, call.remote, [&](Outbox<Network>& outbox) {
    const std::int32_t rank = outbox.rank();
    Piece table;
    if (usable && !notice_for(call, rank, epoch).masked) table = table_of_lane(call, rank, epoch);
    outbox.send_changes(table, usable ? dispatch_notice(group, rank, epoch, group.me) : nullptr);
    report(outbox);
  });
  end_send(group, KernelKind::low_latency_dispatch_send, epoch);
}

// Combine.

/// Bytes of a LogFMT-10 row in the outbox: up to the last words of a piece that stays bfloat16.
/// Empties the places of words before them that were not written.
__device__ std::size_t log_fmt_bytes(std::uint32_t* row, std::int32_t hidden) {
  const LogfmtRow<false> sizes(hidden);
  const auto is_cast = [&](std::uint32_t piece) {
    return (ptx::ld_relaxed_sys_global(row + sizes.group(piece * kPieceGroups)) & kLogfmtCast) != 0;
  };
  std::uint32_t* const extension = row + sizes.group(sizes.groups);
  const auto start = [&](std::uint32_t piece) {
    return min(piece * 32, sizes.units) * kLogfmtExtension;
  };
  std::uint32_t raw = 0;  // pieces up to the last that stays bfloat16
  for (std::uint32_t piece = 0; piece < sizes.pieces; ++piece)
    if (!is_cast(piece)) raw = piece + 1;
  for (std::uint32_t piece = 0; piece < raw; ++piece)
    for (std::uint32_t word = start(piece); is_cast(piece) && word < start(piece + 1); ++word)
      extension[word] = kSentinel;
  return (sizes.group(sizes.groups) + start(raw)) * sizeof(std::uint32_t);
}

/// Bytes of the combine row in a place of an outbox as they travel; 0: it was not sent.
__device__ std::uint32_t combine_row_bytes(const LowLatencyForwardCombine& call, std::int32_t rank,
                                           std::size_t index, std::uint64_t epoch) {
  const DeviceGroup& group = call.group;
  if (call.flags != 0 &&
      !is_epoch(ptx::ld_relaxed_sys_global(combine_flag_at(group, rank, index)), epoch))
    return 0;
  if (encoding_of(call.form) == CombineEncoding::log_fmt)
    return static_cast<std::uint32_t>(log_fmt_bytes(
        reinterpret_cast<std::uint32_t*>(combine_row_at(group, rank, index)), call.sizes.hidden));
  return (last_word_of(call.form, call.sizes.hidden) + 1) * sizeof(std::uint32_t);
}

/// The top-k slots of a token of the remote rank whose experts are here. Words after the first are
/// empty in groups whose handles have one.
using PairSlots = NumberSet<kMostPerLane>;
__device__ PairSlots topk_slots_of(const LowLatencyForwardCombine& call, std::int32_t rank,
                                   std::int32_t token) {
  const DeviceGroup& group = call.group;
  const std::int32_t behind = rank - group.me - 1;
  const std::int32_t at = token * group.ranks + (behind < 0 ? behind + group.ranks : behind);
  if (token >= call.sizes.max_tokens || at >= call.handle.header->pairs) return {};
  const std::uint32_t first = call.handle.pairs[at].topk_slots;
  if (call.handle.more_slots == nullptr) return {{first}};
  return slots_of_pair<kMostPerLane>(call.handle, static_cast<std::size_t>(at), first);
}

/// Puts the rows in 32 of this rank's own places. All lanes of a warp call.
template <class Network>
__device__ void put_own_rows(const LowLatencyForwardCombine& call, Outbox<Network>& outbox,
                             std::int32_t place, std::uint64_t epoch) {
  const DeviceGroup& group = call.group;
  const std::int32_t rank = outbox.rank(), local = place / call.sizes.max_tokens;
  const PairSlots slots = topk_slots_of(call, rank, place % call.sizes.max_tokens);
  const bool has_row =
      local <
      min(static_cast<std::int32_t>(slots.count()),
          is_sums(call.form) ? 1 : static_cast<std::int32_t>(group.layout.rank_combine_rows));
  const std::size_t all = combine_row_index(group, call.sizes, epoch, 0, group.me, 0, 0);
  const std::size_t first = all + static_cast<std::size_t>(place) - lane_id();
  put_rows(outbox, combine_row_at(group, rank, first), group.layout.combine_row_bytes,
           has_row ? combine_row_bytes(call, rank, first + lane_id(), epoch) : 0);
}

/// Puts the rows of each lane's token in places that ranks share. Not more than the row: another
/// rank's row can be in the same place next time, and what is not read now would be taken for a
/// part of it. All lanes of a warp call.
template <class Network>
__device__ void put_shared_rows(const LowLatencyForwardCombine& call, Outbox<Network>& outbox,
                                std::int32_t token, std::uint64_t epoch) {
  const DeviceGroup& group = call.group;
  const auto own = static_cast<std::int32_t>(group.layout.rank_combine_rows);
  PairSlots left = topk_slots_of(call, outbox.rank(), token);
  for (std::int32_t local = 0; __any_sync(kWarp, left.any());
       left = left.without_first(), ++local) {
    if (local < own) continue;
    Piece row;
    const std::uint64_t* flag = nullptr;
    if (left.any()) {
      const std::size_t index =
          combine_row_index(group, call.sizes, epoch, token, group.me, left.first(), local);
      row = {combine_row_at(group, outbox.rank(), index),
             combine_row_bytes(call, outbox.rank(), index, epoch)};
      if (call.flags != 0 && row.bytes != 0) flag = combine_flag_at(group, outbox.rank(), index);
    }
    outbox.send_each(row, flag);
  }
}

template <class Network>
__device__ void forward_weights(const LowLatencyForwardWeights& call) {
  const DeviceGroup& group = call.group;
  const std::uint64_t epoch = group.memory->combines_sent + 1;
  if (threadIdx.x == 0) note_front(group, KernelKind::low_latency_combine_send, epoch);
  if (aborted(group)) return;
  for (auto w = static_cast<std::int32_t>(threadIdx.x); w < call.tokens * group.top_k;
       w += static_cast<std::int32_t>(blockDim.x)) {
    const std::int32_t rank = known_rank(group, call.handle.ranks[w]);
    for (std::int32_t index = 0; index < call.remote.count; ++index)
      if (call.remote.rank[index] == rank)
        ptx::st_relaxed_sys_global(combine_weights(group, call.sizes, rank, epoch, group.me) + w,
                                   stamped_weight(call.weights[w], epoch));
  }
  __threadfence_system();
  __syncthreads();
  for_outboxes<Network>(group, call.remote, [&](Outbox<Network>& outbox) {
    outbox.send_weights(call.sizes, call.tokens, epoch);
    report_network(group, outbox, Phase::low_latency_combine_weights, kCombineOperation, epoch);
  });
}

/// Puts the rows of this combine.
template <class Network, typename Report>
__device__ void put_all_rows(const LowLatencyForwardCombine& call, std::uint64_t epoch,
                             const Report& report) {
  const DeviceGroup& group = call.group;
  const auto own = static_cast<std::int32_t>(group.layout.rank_combine_rows);
  for_windows(call.remote, call.sizes.max_tokens * own,
              [&](std::int32_t index, std::int32_t place) {
                Outbox<Network> outbox(group, call.remote, index);
                put_own_rows(call, outbox, place, epoch);
                report(outbox);
              });
  if (!is_sums(call.form) && group.layout.token_combine_rows != 0)
    for_windows(call.remote, call.sizes.max_tokens, [&](std::int32_t index, std::int32_t token) {
      Outbox<Network> outbox(group, call.remote, index);
      put_shared_rows(call, outbox, token, epoch);
      report(outbox);
    });
}

/// The flags of the rows in own places, by the first lane. A rank reads them after the notice, so
/// they may arrive before their rows.
__device__ Piece own_flags_of_lane(const LowLatencyForwardCombine& call, std::int32_t rank,
                                   std::uint64_t epoch) {
  const DeviceGroup& group = call.group;
  if (call.flags == 0 || lane_id() != 0) return {};
  return {
      combine_flag_at(group, rank, combine_row_index(group, call.sizes, epoch, 0, group.me, 0, 0)),
      static_cast<std::size_t>(call.sizes.max_tokens) * group.layout.rank_combine_rows *
          sizeof(std::uint64_t)};
}

template <class Network>
__device__ void forward_combine(const LowLatencyForwardCombine& call) {
  const DeviceGroup& group = call.group;
  const std::uint64_t epoch = group.memory->combines_sent;
  const bool usable = !aborted(group);
  const auto report = [&](const Outbox<Network>& outbox) {
    report_network(group, outbox, Phase::low_latency_combine_grant, kCombineOperation, epoch);
  };
  if (usable && call.weights_of_tokens > 0) {
    for_outboxes<Network>(group, call.remote, [&](Outbox<Network>& outbox) {
      outbox.send_weights(call.sizes, call.weights_of_tokens, epoch);
      report(outbox);
    });
    __syncthreads();
  }
  if (usable) put_all_rows<Network>(call, epoch, report);
  __syncthreads();
  for_outboxes<Network>(group, call.remote, [&](Outbox<Network>& outbox) {
    const std::int32_t rank = outbox.rank();
    outbox.send_changes(usable ? own_flags_of_lane(call, rank, epoch) : Piece(),
                        usable ? combine_notice(group, rank, epoch, group.me) : nullptr);
    report(outbox);
  });
  end_send(group, KernelKind::low_latency_combine_send, epoch);
}

// Signals.

/// After an operation on which ranks did not agree, the next send waits until all ranks have begun
/// theirs (clean, in grants.cuh). It would wait for its own forward at the other ranks, so they
/// learn here that everything that was sent so far has arrived.
__device__ void begin_next(const DeviceGroup& group, std::int32_t rank, std::size_t signals,
                           const std::uint64_t* dirty, std::uint64_t sent) {
  std::uint64_t* const begun = signal_at(group, rank, signals, group.me) + 1;
  if ((dirty[0] != 0 || dirty[1] != 0) && *begun <= sent) *begun = sent + 1;
}

template <class Network>
__device__ void forward_signals(const LowLatencyForwardSignals& call) {
  const DeviceGroup& group = call.group;
  const GroupMemory& memory = *group.memory;
  for_outboxes<Network>(group, call.remote, [&](Outbox<Network>& outbox) {
    if (lane_id() == 0) {
      begin_next(group, outbox.rank(), group.layout.dispatch_read, memory.dirty_dispatch,
                 memory.dispatches_sent);
      begin_next(group, outbox.rank(), group.layout.combine_read, memory.dirty_combine,
                 memory.combines_sent);
    }
    __syncwarp();
    outbox.send_changes({}, nullptr);
    report_network(group, outbox, Phase::low_latency_dispatch_grant, kDispatchOperation,
                   memory.dispatches_received);
  });
}

namespace low_latency {

template <class Network>
__global__ void __launch_bounds__(kThreads, 1)
    forward_dispatch_kernel(const __grid_constant__ LowLatencyForwardDispatch call) {
  begin_kernel();
  forward_dispatch<Network>(call);
}
template <class Network>
__global__ void __launch_bounds__(kThreads, 1)
    forward_combine_kernel(const __grid_constant__ LowLatencyForwardCombine call) {
  begin_kernel();
  forward_combine<Network>(call);
}
template <class Network>
__global__ void __launch_bounds__(kThreads, 1)
    forward_weights_kernel(const __grid_constant__ LowLatencyForwardWeights call) {
  begin_kernel();
  forward_weights<Network>(call);
}
template <class Network>
__global__ void __launch_bounds__(kThreads, 1)
    forward_signals_kernel(const __grid_constant__ LowLatencyForwardSignals call) {
  begin_kernel();
  forward_signals<Network>(call);
}

}  // namespace low_latency

/// Launches the kernel of the group's path.
template <typename Call>
void launch_on(void (*by_proxy)(Call), void (*by_nic)(Call), const Call& call,
               const LowLatencyLimits& limits, cudaStream_t stream) {
  launch(call.remote.path == NetworkPath::nic ? by_nic : by_proxy, 1, kThreads, 0, call, limits,
         stream);
}

}  // namespace

void launch_low_latency_forward_dispatch(const LowLatencyForwardDispatch& call,
                                         const LowLatencyLimits& limits, cudaStream_t stream) {
  launch_on(low_latency::forward_dispatch_kernel<ByProxy>,
            low_latency::forward_dispatch_kernel<ByNic>, call, limits, stream);
}
void launch_low_latency_forward_combine(const LowLatencyForwardCombine& call,
                                        const LowLatencyLimits& limits, cudaStream_t stream) {
  launch_on(low_latency::forward_combine_kernel<ByProxy>,
            low_latency::forward_combine_kernel<ByNic>, call, limits, stream);
}
void launch_low_latency_forward_weights(const LowLatencyForwardWeights& call,
                                        const LowLatencyLimits& limits, cudaStream_t stream) {
  launch_on(low_latency::forward_weights_kernel<ByProxy>,
            low_latency::forward_weights_kernel<ByNic>, call, limits, stream);
}
void launch_low_latency_forward_signals(const LowLatencyForwardSignals& call,
                                        const LowLatencyLimits& limits, cudaStream_t stream) {
  launch_on(low_latency::forward_signals_kernel<ByProxy>,
            low_latency::forward_signals_kernel<ByNic>, call, limits, stream);
}

void load_low_latency_forward() {
  load_kernel(low_latency::forward_dispatch_kernel<ByProxy>);
  load_kernel(low_latency::forward_dispatch_kernel<ByNic>);
  load_kernel(low_latency::forward_combine_kernel<ByProxy>);
  load_kernel(low_latency::forward_combine_kernel<ByNic>);
  load_kernel(low_latency::forward_weights_kernel<ByProxy>);
  load_kernel(low_latency::forward_weights_kernel<ByNic>);
  load_kernel(low_latency::forward_signals_kernel<ByProxy>);
  load_kernel(low_latency::forward_signals_kernel<ByNic>);
}

}  // namespace shoal::ep::cuda
