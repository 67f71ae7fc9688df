// SPDX-License-Identifier: Apache-2.0
// forward.cu: sends what a low-latency send or receive has left in the outboxes of remote ranks.
// One block; a warp has 32 tokens of a remote rank at a time, a lane posts the put of its row.
//
// Moves, from the outbox to the rank's block: after a dispatch the rows with an expert there, one
// put for each run of neighbouring slots within 32 tokens (one for each row where rows are much
// shorter than slots, which is so in float8), and one put each for headers, counts, weights and
// ready words; after a combine one put for each combine row, with its flag. Then 8 bytes for each
// signal that has changed, and the notice.
//
// Posts for a remote rank: dispatch, at least (tokens / 32) + 2 + 4, at most tokens + 4 + 4;
// combine, the number of its rows + 4. A post costs about a microsecond of the proxy's thread.
//
// Waits for nothing but room in the queue of the network: no other rank. Memory order: the launch
// follows the kernel that wrote the outbox. Rows may arrive in any order; a signal is started after
// a barrier of all threads that started puts, and arrives after them. A row stays in the outbox
// until its half is used again, for which the rank has granted the half, and so received the row.
#include "ep/cuda/low_latency/forward.cuh"
#include "ep/cuda/low_latency/launch.cuh"
#include "ep/cuda/low_latency/logfmt.cuh"
#include "ep/cuda/low_latency/topk_slots.cuh"
#include "ep/numeric/numeric.hpp"

namespace shoal::ep::cuda {
namespace {

constexpr std::uint32_t kThreads = 256;
static_assert(kThreads >= kMaxDeviceRanks);

template <class Network>
__device__ void report_network(const DeviceGroup& group, const Outbox<Network>& outbox, Phase phase,
                               std::uint32_t operation, std::uint64_t epoch) {
  if (!outbox.ok()) report_fault(group, Fault::network, phase, operation, outbox.rank(), epoch, 0);
}

/// Calls f(outbox) for each remote rank, a thread each.
template <class Network, typename F>
__device__ void for_outboxes(const DeviceGroup& group, const RemoteRanks& remote, F&& f) {
  for (auto index = static_cast<std::int32_t>(threadIdx.x); index < remote.count;
       index += static_cast<std::int32_t>(blockDim.x)) {
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

/// Puts the rows of 32 slots. All lanes of a warp call.
template <class Network>
__device__ void put_slots(const LowLatencyForwardDispatch& call, Outbox<Network>& outbox,
                          std::int32_t token, std::uint64_t epoch) {
  const DeviceGroup& group = call.group;
  const std::size_t slot = slot_index(group, call.sizes, epoch, group.me, token);
  bool has_row = false;
  if (token < call.tokens) {
    const SlotPacket packet = load_packet(slot_header(group, outbox.rank(), slot));
    has_row = is_epoch(packet.low, epoch) && packet.has_row();
  }
  const std::uint32_t rows = __ballot_sync(kWarp, has_row), me = lane_id();
  // A put of several slots contains the unused ends of all but the last. What it writes there is
  // read by none: only this rank writes these slots, and always all that is read.
  const bool merges = call.row_bytes * 8 >= group.layout.slot_bytes * 7;
  if (!has_row || (merges && me > 0 && (rows >> (me - 1) & 1) != 0)) return;
  const std::uint32_t after = ~(rows >> me);
  const std::uint32_t run = !merges ? 1 : after == 0 ? 32 : __ffs(after) - 1;
  outbox.put(slot_row(group, outbox.rank(), slot),
             (run - 1) * group.layout.slot_bytes + call.row_bytes);
}

/// Puts headers, counts, weights and ready words. One thread calls.
template <class Network>
__device__ void put_tables(const LowLatencyForwardDispatch& call, Outbox<Network>& outbox,
                           std::uint64_t epoch) {
  const DeviceGroup& group = call.group;
  const std::int32_t rank = outbox.rank();
  const std::size_t first = slot_index(group, call.sizes, epoch, group.me, 0),
                    tokens = static_cast<std::size_t>(call.tokens);
  outbox.put(slot_header(group, rank, first), tokens * group.layout.packets * detail::kPacketBytes);
  outbox.put(slot_counts(group, rank, epoch, group.me),
             static_cast<std::size_t>(group.local_experts) * sizeof(std::uint64_t));
  if (call.has_weights != 0)
    outbox.put(slot_weights(group, rank, first), tokens * group.top_k * sizeof(float));
  if (call.flags != 0) outbox.put(slot_ready(group, rank, first), tokens * sizeof(std::uint64_t));
}

template <class Network>
__device__ void forward_dispatch(const LowLatencyForwardDispatch& call) {
  const DeviceGroup& group = call.group;
  const std::uint64_t epoch = group.memory->dispatches_sent;
  const bool usable = !aborted(group);
  const auto report = [&](const Outbox<Network>& outbox) {
    report_network(group, outbox, Phase::low_latency_dispatch_receive, kDispatchOperation, epoch);
  };
  if (usable) {
    for_windows(call.remote, call.tokens, [&](std::int32_t index, std::int32_t token) {
      Outbox<Network> outbox(group, call.remote, index);
      if (notice_for(call, outbox.rank(), epoch).left_out) return;
      put_slots(call, outbox, token, epoch);
      report(outbox);
    });
    for_outboxes<Network>(group, call.remote, [&](Outbox<Network>& outbox) {
      if (!notice_for(call, outbox.rank(), epoch).left_out) put_tables(call, outbox, epoch);
      report(outbox);
    });
  }
  __syncthreads();
  for_outboxes<Network>(group, call.remote, [&](Outbox<Network>& outbox) {
    outbox.signal_changes();
    if (usable) outbox.signal(dispatch_notice(group, outbox.rank(), epoch, group.me));
    report(outbox);
  });
}

// Combine.

/// Bytes of a LogFMT-10 row in the outbox: its end depends on which blocks are cast.
__device__ std::size_t log_fmt_bytes(const std::uint32_t* row, std::uint32_t hidden) {
  const LogfmtRow sizes(hidden);
  const std::uint32_t block = sizes.block_pieces * kLogfmtPiece;
  std::uint32_t words = sizes.groups;
  for (std::uint32_t first = 0; first < hidden; first += block) {
    const std::uint32_t here = sizes.channels_from(first, block),
                        group = first / numeric::kGroupChannels,
                        groups = static_cast<std::uint32_t>(numeric::group_count(here));
    bool cast = true;
    for (std::uint32_t i = group; i < group + groups; ++i)
      cast = cast && numeric::logfmt_castable(logfmt_group(load_word(row + i)));
    words += cast ? logfmt_words(here) : here / 2;
  }
  return words * sizeof(std::uint32_t);
}

/// Puts the combine row in a place of a token of the remote rank.
template <class Network>
__device__ void put_combine_row(const LowLatencyForwardCombine& call, Outbox<Network>& outbox,
                                std::int32_t token, std::int32_t place, std::uint64_t epoch) {
  const DeviceGroup& group = call.group;
  const std::size_t index = combine_row_index(group, call.sizes, epoch, token, place);
  const std::uint64_t* const flag =
      call.flags != 0 ? combine_flag_at(group, outbox.rank(), index) : nullptr;
  if (flag != nullptr && !is_epoch(ptx::ld_relaxed_sys_global(flag), epoch)) return;  // not sent
  const std::byte* const row = combine_row_at(group, outbox.rank(), index);
  const auto hidden = static_cast<std::uint32_t>(call.sizes.hidden);
  // Not more than the row: another rank's row can be in the same place next time, and what is not
  // read now would be taken for a part of it.
  outbox.put(row,
             call.form == CombineRowForm::log_fmt
                 ? log_fmt_bytes(reinterpret_cast<const std::uint32_t*>(row), hidden)
                 : hidden * sizeof(std::uint16_t),
             flag);
}

/// Puts the rows of a token of the remote rank. A lane calls.
template <class Network>
__device__ void put_combine_rows(const LowLatencyForwardCombine& call, Outbox<Network>& outbox,
                                 std::int32_t token, std::uint64_t epoch) {
  const DeviceGroup& group = call.group;
  const std::int32_t behind = outbox.rank() - group.me - 1;
  const std::int32_t at = token * group.ranks + (behind < 0 ? behind + group.ranks : behind);
  if (at >= call.handle.header->pairs) return;
  const std::uint32_t slots = call.handle.pairs[at].topk_slots;
  if (slots == 0) return;
  if (call.form == CombineRowForm::sums)
    return put_combine_row(call, outbox, token,
                           combine_row_place(group, group.me, 31 - __clz(slots), 0), epoch);
  std::int32_t local = 0;
  for (std::uint32_t left = slots; left != 0; left &= left - 1, ++local)
    put_combine_row(call, outbox, token, combine_row_place(group, group.me, __ffs(left) - 1, local),
                    epoch);
}

template <class Network>
__device__ void forward_weights(const LowLatencyForwardWeights& call) {
  const DeviceGroup& group = call.group;
  const std::uint64_t epoch = group.memory->combines_sent + 1;
  if (aborted(group)) return;
  for (auto w = static_cast<std::int32_t>(threadIdx.x); w < call.tokens * group.top_k;
       w += static_cast<std::int32_t>(blockDim.x)) {
    const std::int32_t expert = known_expert(group, call.handle.topk[w]);
    const std::int32_t rank = expert < 0 ? -1 : expert / group.local_experts;
    for (std::int32_t index = 0; index < call.remote.count; ++index)
      if (call.remote.rank[index] == rank)
        ptx::st_relaxed_sys_global(combine_weights(group, call.sizes, rank, epoch, group.me) + w,
                                   stamped_weight(call.weights[w], epoch));
  }
  __threadfence_system();
  __syncthreads();
  for_outboxes<Network>(group, call.remote, [&](Outbox<Network>& outbox) {
    outbox.put_weights(call.sizes, call.tokens, epoch);
    report_network(group, outbox, Phase::low_latency_combine_weights, kCombineOperation, epoch);
  });
}

template <class Network>
__device__ void forward_combine(const LowLatencyForwardCombine& call) {
  const DeviceGroup& group = call.group;
  const std::uint64_t epoch = group.memory->combines_sent;
  const bool usable = !aborted(group);
  const auto report = [&](const Outbox<Network>& outbox) {
    report_network(group, outbox, Phase::low_latency_combine_receive, kCombineOperation, epoch);
  };
  if (usable && call.weights_of_tokens > 0) {
    for_outboxes<Network>(group, call.remote, [&](Outbox<Network>& outbox) {
      outbox.put_weights(call.sizes, call.weights_of_tokens, epoch);
      report(outbox);
    });
    __syncthreads();
  }
  if (usable)
    for_windows(call.remote, call.sizes.max_tokens, [&](std::int32_t index, std::int32_t token) {
      if (token >= call.sizes.max_tokens) return;
      Outbox<Network> outbox(group, call.remote, index);
      put_combine_rows(call, outbox, token, epoch);
      report(outbox);
    });
  __syncthreads();
  for_outboxes<Network>(group, call.remote, [&](Outbox<Network>& outbox) {
    outbox.signal_changes();
    if (usable) outbox.signal(combine_notice(group, outbox.rank(), epoch, group.me));
    report(outbox);
  });
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
    begin_next(group, outbox.rank(), group.layout.dispatch_read, memory.dirty_dispatch,
               memory.dispatches_sent);
    begin_next(group, outbox.rank(), group.layout.combine_read, memory.dirty_combine,
               memory.combines_sent);
    outbox.signal_changes();
    report_network(group, outbox, Phase::low_latency_dispatch_grant, kDispatchOperation,
                   memory.dispatches_received);
  });
}

namespace low_latency {

template <class Network>
__global__ void __launch_bounds__(kThreads, 1)
    forward_dispatch_kernel(const __grid_constant__ LowLatencyForwardDispatch call) {
  forward_dispatch<Network>(call);
}
template <class Network>
__global__ void __launch_bounds__(kThreads, 1)
    forward_combine_kernel(const __grid_constant__ LowLatencyForwardCombine call) {
  forward_combine<Network>(call);
}
template <class Network>
__global__ void __launch_bounds__(kThreads, 1)
    forward_weights_kernel(const __grid_constant__ LowLatencyForwardWeights call) {
  forward_weights<Network>(call);
}
template <class Network>
__global__ void __launch_bounds__(kThreads, 1)
    forward_signals_kernel(const __grid_constant__ LowLatencyForwardSignals call) {
  forward_signals<Network>(call);
}

}  // namespace low_latency

/// Not set up before the kernel in front has ended.
constexpr LowLatencyLimits kInOrder{0, 0, false};

/// Launches the kernel of the group's path.
template <typename Call>
void launch_on(void (*by_proxy)(Call), void (*by_nic)(Call), const Call& call,
               cudaStream_t stream) {
  launch(call.remote.path == NetworkPath::nic ? by_nic : by_proxy, 1, kThreads, 0, call, kInOrder,
         stream);
}

}  // namespace

void launch_low_latency_forward_dispatch(const LowLatencyForwardDispatch& call,
                                         cudaStream_t stream) {
  launch_on(low_latency::forward_dispatch_kernel<ByProxy>,
            low_latency::forward_dispatch_kernel<ByNic>, call, stream);
}
void launch_low_latency_forward_combine(const LowLatencyForwardCombine& call, cudaStream_t stream) {
  launch_on(low_latency::forward_combine_kernel<ByProxy>,
            low_latency::forward_combine_kernel<ByNic>, call, stream);
}
void launch_low_latency_forward_weights(const LowLatencyForwardWeights& call, cudaStream_t stream) {
  launch_on(low_latency::forward_weights_kernel<ByProxy>,
            low_latency::forward_weights_kernel<ByNic>, call, stream);
}
void launch_low_latency_forward_signals(const LowLatencyForwardSignals& call, cudaStream_t stream) {
  launch_on(low_latency::forward_signals_kernel<ByProxy>,
            low_latency::forward_signals_kernel<ByNic>, call, stream);
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
