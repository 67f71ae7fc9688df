// SPDX-License-Identifier: Apache-2.0
// rail.cuh: chunks between rail peers as blocks of a launch take, send and release them, and the
// notices of ranks of other nodes.
//
// Chunk s of the group's life to a peer uses slot s % depth of the peer's ring `in`. `arrived` of
// the slot becomes s + 1 with the put of the chunk, `read` at the sender becomes s + 1 when the
// peer has read it. A sender writes chunk s when `read` is at least s + 1 - depth. Each slot has
// its own words, so chunks may arrive and be released in any order.
//
// Memory order: a thread acquires `arrived` or `read` at system scope and passes a block barrier;
// rows of chunks are read through the second-level cache. The thread that posts a put or a signal
// does so after a block barrier (or, in a combine, an atomic with release); the seam releases at
// system scope.
#pragma once

#include "ep/cuda/device/network.cuh"
#include "ep/cuda/device/slots.cuh"
#include "ep/cuda/normal/device/notices.cuh"
#include "ep/cuda/normal/internode/kernels.cuh"

namespace shoal::ep::cuda {
namespace {

struct Rail {
  const DeviceGroup& group;
  const NodeGrid& grid;

  __device__ std::byte* mine() const { return group.block[group.me]; }
  __device__ std::byte* out(std::int32_t node, std::uint64_t number) const {
    return mine() + grid.layout.out + grid.layout.slot(node, number, grid.layout.chunk_bytes);
  }
  __device__ const std::byte* in(std::int32_t node, std::uint64_t number) const {
    return mine() + grid.layout.in + grid.layout.slot(node, number, grid.layout.chunk_bytes);
  }
  __device__ std::uint64_t* word(std::size_t words, std::int32_t node, std::uint64_t number) const {
    return reinterpret_cast<std::uint64_t*>(mine() + words +
                                            grid.layout.slot(node, number, sizeof(std::uint64_t)));
  }
  __device__ bool has_arrived(std::int32_t node, std::uint64_t number) const {
    return ptx::ld_acquire_sys_global(word(grid.layout.arrived, node, number)) > number;
  }
  __device__ bool may_send(std::int32_t node, std::uint64_t number) const {
    return number < grid.layout.depth ||
           ptx::ld_acquire_sys_global(word(grid.layout.read, node, number)) + grid.layout.depth >
               number;
  }

  /// Sends what lies in out(node, number). One thread calls, after the block has written it. The
  /// slot is written again when the peer has read the chunk, so the put is complete by then.
  template <class Network>
  __device__ void send(std::int32_t node, std::uint64_t number, std::size_t bytes,
                       std::uint64_t epoch, Phase phase, std::uint32_t operation) const {
    // Addresses of this rank's block stand for those of the peer, where this node has the slots.
    std::byte* const target =
        mine() + grid.layout.in + grid.layout.slot(grid.mine, number, grid.layout.chunk_bytes);
    if (Network::start_put(grid.world, target, out(node, number), bytes, grid.pes[grid.peer(node)],
                           word(grid.layout.arrived, grid.mine, number), number + 1))
      return;
    report_fault(group, Fault::network, phase, operation, grid.peer(node), epoch, number);
  }
  /// Lets the peer write in(node, number) again. One thread calls.
  template <class Network>
  __device__ void release(std::int32_t node, std::uint64_t number, std::uint64_t epoch, Phase phase,
                          std::uint32_t operation) const {
    if (Network::start_signal(grid.world, word(grid.layout.read, grid.mine, number), number + 1,
                              grid.pes[grid.peer(node)]))
      return;
    report_fault(group, Fault::network, phase, operation, grid.peer(node), epoch, number);
  }

  /// Takes the next chunk for a peer if it may be sent. One thread calls. `left` becomes true while
  /// chunks are left.
  __device__ bool take_send(std::int32_t node, std::uint32_t chunks, std::uint32_t& chunk,
                            bool& left) const {
    RailState& state = grid.rails[node];
    chunk = *static_cast<volatile std::uint32_t*>(&state.send_next);
    if (chunk >= chunks) return false;
    left = true;
    return may_send(node, state.sent + chunk) &&
           atomicCAS(&state.send_next, chunk, chunk + 1) == chunk;
  }
  /// Takes the next chunk of a peer if it has arrived.
  __device__ bool take_received(std::int32_t node, std::uint32_t chunks, std::uint32_t& chunk,
                                bool& left) const {
    RailState& state = grid.rails[node];
    chunk = *static_cast<volatile std::uint32_t*>(&state.receive_next);
    if (chunk >= chunks) return false;
    left = true;
    return has_arrived(node, state.received + chunk) &&
           atomicCAS(&state.receive_next, chunk, chunk + 1) == chunk;
  }
};

/// Next action of a block.
enum class RailAction : std::uint32_t { end, send, receive, local };
struct RailWork {
  RailAction action;
  std::int32_t node;
  std::uint32_t chunk;  ///< local: number of the piece or tile
};

__device__ std::uint32_t chunks_of(std::uint32_t messages, std::uint32_t room) {
  return (messages + room - 1) / room;
}

/// Ends the waits of a block without work: after a failure of this rank or of a rail peer with
/// chunks left, or when nothing became possible for the group's timeout. One thread calls.
class IdleWait {
 public:
  /// `counted`: its waits are; one block of a launch counts.
  __device__ IdleWait(const Rail& rail, const WaitPlace& place, bool counted)
      : rail_(rail), place_(place), counted_(counted && rail.group.record != nullptr) {}

  /// False when the block gives up. `awaited` is a node with chunks left.
  __device__ bool wait(std::int32_t awaited) {
    const DeviceGroup& group = rail_.group;
    if (polls_ == 0) since_ = ptx::globaltimer();
    awaited_ = awaited;
    __nanosleep(kPollNs);
    if (++polls_ % kPollsPerCheck != 0) return true;
    gave_up_ = true;
    if (aborted(group)) return false;
    const std::int32_t peer = rail_.grid.peer(awaited);
    const bool failed =
        ptx::ld_relaxed_sys_global(signal_at(group, group.me, group.layout.failed, peer)) != 0;
    if (!failed && ptx::globaltimer() - since_ < group.timeout_ns) {
      if (group.record != nullptr) show_wait(group, peer, since_, place_.word());
      gave_up_ = false;
      return true;
    }
    report_fault(group, failed ? Fault::peer_failed : Fault::timeout, place_.phase,
                 place_.operation, peer, place_.epoch, rail_.grid.rails[awaited].received);
    return false;
  }

  /// The block continues with `work`. A wait before it was for the peer of a chunk, or else for the
  /// last node with chunks left.
  __device__ void end(const RailWork& work) const {
    const DeviceGroup& group = rail_.group;
    if (polls_ == 0 || gave_up_ || group.record == nullptr) return;
    if (counted_) {
      const bool chunk = work.action == RailAction::send || work.action == RailAction::receive;
      const std::uint64_t waited = ptx::globaltimer() - since_;
      count_wait(group, rail_.grid.peer(chunk ? work.node : awaited_), waited);
      count_up(&totals_of(group, place_.phase == Phase::dispatch_rail ? RecordedOperation::dispatch
                                                                      : RecordedOperation::combine)
                    .waited,
               waited);
    }
    if (polls_ >= kPollsPerCheck) hide_wait(group, rail_.grid.peer(awaited_), place_.word());
  }

 private:
  static constexpr std::uint32_t kPollsPerCheck = 64;

  const Rail& rail_;
  const WaitPlace place_;
  const bool counted_;
  std::uint32_t polls_ = 0;
  std::int32_t awaited_ = 0;
  bool gave_up_ = false;
  std::uint64_t since_ = 0;
};

// Notices.

/// publish_notice between nodes: ranks of this node get the notice by stores, the others by a put
/// from a copy in this rank's block. `rail_tokens(node)` becomes DeviceNotice::staged for the ranks
/// of a node. Says what this rank has sent in low-latency mode. The whole block calls; its first
/// warps put.
template <class Network, bool kAllExperts, class RailTokens>
__device__ void publish_to_nodes(const Rail& rail, std::uint64_t epoch, Phase phase,
                                 detail::DeviceNotice& notice, const std::int32_t* rank_counts,
                                 const std::int32_t* expert_counts, RailTokens&& rail_tokens) {
  const DeviceGroup& group = rail.group;
  const NodeGrid& grid = rail.grid;
  constexpr std::int32_t kWords = sizeof(detail::DeviceNotice) / 4;
  constexpr std::int32_t kStagedWord = offsetof(detail::DeviceNotice, staged) / 4;
  const auto* const words = reinterpret_cast<const std::int32_t*>(&notice);
  const std::int32_t expert_words = kAllExperts ? group.experts : group.local_experts;
  const std::int32_t length = kWords + (rank_counts != nullptr ? group.ranks + expert_words : 0);
  const auto copy_for = [&](std::int32_t to) {
    return rail.mine() + grid.layout.notices +
           ((epoch & 1) * static_cast<std::uint64_t>(group.ranks) + to) * grid.layout.notice_bytes;
  };
  const DeviceGroup* const low_latency = group.memory->other_mode;
  if (low_latency != nullptr && threadIdx.x == 0) {
    notice.dispatches_sent = low_latency->memory->dispatches_sent;
    notice.combines_sent = low_latency->memory->combines_sent;
  }
  __syncthreads();
  for (std::int32_t i = threadIdx.x; i < length * group.ranks; i += blockDim.x) {
    const std::int32_t to = i / length, w = i % length;
    std::int32_t value = 0;
    if (w == kStagedWord)
      value = rail_tokens(to / grid.size);
    else if (w < kWords)
      value = words[w];
    else if (w < kWords + group.ranks)
      value = rank_counts[w - kWords];
    else
      value = count_for<kAllExperts>(group, to, expert_counts, w - kWords - group.ranks);
    std::byte* const at = grid.here(to) ? notice_at(group, to, epoch, group.me) : copy_for(to);
    reinterpret_cast<std::int32_t*>(at)[w] = value;
  }
  __syncthreads();
  for (std::int32_t r = threadIdx.x; r < grid.size; r += blockDim.x)
    raise_signal(group, group.layout.entered, grid.first_here() + r, epoch);
  if (lane_id() != 0) return;
  for (std::int32_t i = static_cast<std::int32_t>(threadIdx.x / 32); i < group.ranks;
       i += static_cast<std::int32_t>(blockDim.x / 32)) {
    const std::int32_t to = (group.me + 1 + i) % group.ranks;  // ranks start with different targets
    if (grid.here(to)) continue;
    if (!Network::put(grid.world, notice_at(group, group.me, epoch, group.me), copy_for(to),
                      static_cast<std::size_t>(length) * 4, grid.pes[to],
                      signal_at(group, group.me, group.layout.entered, group.me), epoch))
      report_fault(group, Fault::network, phase, notice.operation, to, epoch, epoch);
  }
}

/// finish_operation between nodes. `finished` counts blocks of the ranks of this node only: rows
/// and expert outputs of other nodes pass through a rank of this one. `settle()` resets the rails,
/// in the block that ends last.
template <class Network, class Settle>
__device__ void finish_on_node(const Rail& rail, std::uint64_t epoch, bool good, Phase phase,
                               std::uint32_t operation, Settle&& settle) {
  __shared__ bool last;
  const DeviceGroup& group = rail.group;
  const NodeGrid& grid = rail.grid;
  Counters& counters = group.memory->counters[static_cast<std::uint32_t>(KernelKind::normal)];
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    last = atomicAdd(&counters.done, 1u) == gridDim.x - 1;
    __threadfence();
  }
  for (std::int32_t r = threadIdx.x; r < grid.size; r += blockDim.x) {
    const std::int32_t to = grid.first_here() + r;
    if (good || to == group.me)
      ptx::red_release_sys_add(signal_at(group, to, group.layout.finished, group.me), 1);
  }
  __syncthreads();
  if (!last) return;
  const bool counts = group.record != nullptr && good;
  if (counts && threadIdx.x == 0)
    launch_record(group, KernelKind::normal, epoch).sent = ptx::globaltimer();
  for (std::int32_t r = threadIdx.x; r < grid.size; r += blockDim.x) {
    const std::int32_t rank = grid.first_here() + r;
    if (!good && rank != group.me) continue;
    const std::uint32_t blocks =
        rank == group.me ? gridDim.x : notice_of(group, epoch, rank).blocks;
    const std::uint64_t wanted = group.memory->finished[rank] + blocks;
    if (!aborted(group))
      wait_signal(group, group.layout.finished, rank, wanted, {phase, operation, epoch}, counts);
    group.memory->finished[rank] = wanted;
  }
  __syncthreads();
  if (aborted(group)) {
    const auto fault = static_cast<Fault>(group.report->fault);
    const std::uint64_t word = detail::failed_word(group.report->rank, fault == Fault::peer_failed);
    for (std::int32_t rank = threadIdx.x; rank < group.ranks; rank += blockDim.x)
      if (grid.here(rank))
        raise_signal(group, group.layout.failed, rank, word);
      else
        Network::start_signal(grid.world, signal_at(group, group.me, group.layout.failed, group.me),
                              word, grid.pes[rank]);
    return;
  }
  settle();
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (counts) note_end(group, KernelKind::normal, epoch);
  group.memory->epoch = epoch;
  counters = {};
}

/// Ends an operation's chunks of the rail to one node. One thread calls, in the last block.
__device__ void settle_rail(const NodeGrid& grid, std::int32_t node, std::uint32_t sent,
                            std::uint32_t received) {
  RailState& state = grid.rails[node];
  state.sent += sent;
  state.received += received;
  state.send_next = state.receive_next = 0;
}

// Rows.

/// Copies a row to the first `copies` targets, 16 bytes a lane: target_of(c), asked by all lanes.
template <class TargetOf>
__device__ void copy_row_to(const std::byte* from, std::uint32_t bytes, std::uint32_t copies,
                            TargetOf&& target_of) {
  constexpr std::uint32_t kBatch = 8;  // loads in flight
  const auto* const vectors = reinterpret_cast<const uint4*>(from);
  const std::uint32_t count = bytes / 16;
  for (std::uint32_t first = lane_id(); first < count + lane_id(); first += 32 * kBatch) {
    uint4 batch[kBatch];
#pragma unroll
    for (std::uint32_t j = 0; j < kBatch; ++j)
      if (first + 32 * j < count) batch[j] = __ldcg(vectors + first + 32 * j);
    for (std::uint32_t c = 0; c < copies; ++c) {
      auto* const to = reinterpret_cast<uint4*>(target_of(c));
      if (to == nullptr) continue;
#pragma unroll
      for (std::uint32_t j = 0; j < kBatch; ++j)
        if (first + 32 * j < count) to[first + 32 * j] = batch[j];
    }
  }
}

/// The values of `numbers`, moved to the first numbers; `otherwise` in the rest.
template <int kPerLane>
__device__ void compact(std::int32_t (&values)[kPerLane], const NumberSet<kPerLane>& numbers,
                        std::int32_t otherwise) {
  std::int32_t moved[kPerLane];
  NumberSet<kPerLane> left = numbers;
  std::uint32_t dropped = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    for (; dropped < number_of_lane(i); ++dropped) left = left.without_first();
    const bool exists = left.any();
    moved[i] = value_of(values, exists ? static_cast<std::uint32_t>(left.first()) : 0);
    if (!exists) moved[i] = otherwise;
  }
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) values[i] = moved[i];
}

}  // namespace
}  // namespace shoal::ep::cuda
