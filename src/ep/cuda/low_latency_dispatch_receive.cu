// low_latency_dispatch_receive: from the slots of all sources to the rows of each local expert, ordered by source, then
// token.
//
// Each row of a result is read from this GPU's own memory once and written once. Blocks share the work by (expert,
// part of its rows); every block waits for the flags it needs and finds the tokens of its expert by itself, so that no
// block waits for another. One block more lists the tokens with an expert here, for the combine.
//
// Waits: headers of the slots of all sources, then the ready word of each row that is copied (acquire at system scope).
// Acknowledges the half (slots_read) when all of it has been read.
#include "ep/cuda/low_latency_device.cuh"

namespace shoal::ep::cuda {
namespace {

constexpr std::uint32_t kThreads = 512, kWarps = kThreads / 32;
/// Slots are looked at in segments, so that shared memory bounds neither tokens nor experts. A segment has as many
/// parts of 32 slots as a warp has lanes.
constexpr std::uint32_t kSegment = 1024, kPerThread = kSegment / kThreads;
static_assert(kSegment / 32 == 32);
constexpr std::uint32_t kPieceChunks = 256;  // 16-byte chunks of a row that a warp copies at a time

struct Shared {
  std::uint32_t counts[32];
  std::uint32_t list[kSegment];
  std::int32_t per_source[kMaxDeviceRanks];
  bool masked[kMaxDeviceRanks];
};

class Receiver {
 public:
  __device__ Receiver(const SlotsReceive& call, Shared& shared)
      : call_(call),
        group_(call.group),
        shared_(shared),
        epoch_(call.group.memory->slots_received + 1),
        tokens_(static_cast<std::uint32_t>(call.sizes.max_tokens)),
        slots_(static_cast<std::uint32_t>(call.group.ranks) * tokens_) {
    if (threadIdx.x < static_cast<std::uint32_t>(group_.ranks))
      shared_.masked[threadIdx.x] = is_masked(group_, static_cast<std::int32_t>(threadIdx.x));
    __syncthreads();
  }

  __device__ void run() {
    const std::int32_t items = 1 + group_.local_experts * call_.splits;
    for (auto item = static_cast<std::int32_t>(blockIdx.x); item < items;
         item += static_cast<std::int32_t>(gridDim.x)) {
      if (item == 0)
        list_pairs();
      else
        fill_expert((item - 1) / call_.splits, (item - 1) % call_.splits);
    }
  }

  __device__ void end() const {
    end_kernel(group_, Kernel::slots_receive, [&] {
      for (auto member = static_cast<std::int32_t>(lane_id()); member < group_.ranks; member += 32) {
        raise_signal(group_, group_.layout.slots_read, member, epoch_);
        if (call_.wait_ns == nullptr) continue;
        call_.wait_ns[member] += static_cast<std::int64_t>(call_.longest_wait[member]);
        call_.longest_wait[member] = 0;
      }
      if (lane_id() == 0) group_.memory->slots_received = epoch_;
    });
  }

 private:
  __device__ const std::byte* header_of(std::int32_t source, std::int32_t token) const {
    return slot_header(group_, group_.me, slot_index(group_, call_.sizes, epoch_, source, token));
  }
  /// Whether all packets of a header are there; `place` is that of the first.
  __device__ bool look(const std::byte* header, std::uint32_t& place) const {
    bool here = true;
    for (std::uint32_t p = 0; p < group_.layout.packets; ++p) {
      const SlotPacket packet = load_packet(header + p * detail::kPacketBytes);
      here = here && is_epoch(packet.low, epoch_);
      if (p == 0) place = packet.place();
    }
    return here;
  }

  /// Looks at this thread's slots of a segment all at once: they are usually there, and waiting for one after the other
  /// would take a trip to memory each. `places` as wait_slot; slot `i` is of source_of(i), token_of(i).
  template <typename Source, typename TokenOf>
  __device__ void wait_slots(std::uint32_t first, std::uint32_t (&places)[kPerThread], Source&& source_of,
                             TokenOf&& token_of) const {
    bool here[kPerThread];
#pragma unroll
    for (std::uint32_t j = 0; j < kPerThread; ++j) {
      const std::uint32_t i = first + j * kThreads + threadIdx.x;
      places[j] = 0;
      here[j] = true;
      if (i >= slots_ || shared_.masked[source_of(i)]) continue;
      const std::uint64_t said = load_relaxed(slot_notice(group_, group_.me, epoch_, source_of(i)));
      here[j] = look(header_of(source_of(i), token_of(i)), places[j]);
      if (here[j]) continue;
      places[j] = 0;
      here[j] = is_epoch(said, epoch_) && !SlotNotice::of(said).left_out && token_of(i) >= SlotNotice::of(said).tokens;
    }
#pragma unroll
    for (std::uint32_t j = 0; j < kPerThread; ++j) {
      const std::uint32_t i = first + j * kThreads + threadIdx.x;
      if (!here[j]) places[j] = wait_slot(source_of(i), token_of(i));
    }
  }

  /// What is known of one slot; 1 + place where its token has an expert here, else 0.
  __device__ std::uint32_t wait_slot(std::int32_t source, std::int32_t token) const {
    if (shared_.masked[source]) return 0;
    const std::byte* const header = header_of(source, token);
    const std::uint64_t* const notice = slot_notice(group_, group_.me, epoch_, source);
    std::uint32_t place = 0;
    bool left_out = false;
    std::uint64_t waited = 0;
    const auto ready = [&] {
      const std::uint64_t said = load_relaxed(notice);
      if (look(header, place)) return true;
      place = 0;
      const std::int32_t ahead = ahead_of(said, epoch_);
      if (ahead == 0 && !SlotNotice::of(said).left_out) return token >= SlotNotice::of(said).tokens;
      return left_out = ahead >= 0;  // it is told so, or finds a later notice: the source did not wait for this member
    };
    const bool came = wait_or_mask(group_, source, Phase::slots, kDispatchOperation, epoch_, ready, notice,
                                   call_.wait_ns != nullptr ? &waited : nullptr);
    if (waited != 0)
      atomicMax(reinterpret_cast<unsigned long long*>(call_.longest_wait + source),
                static_cast<unsigned long long>(waited));
    if (left_out)
      wait_failed(group_, Fault::peer_failed, Phase::slots, kDispatchOperation, source, epoch_,
                  static_cast<std::uint32_t>(load_relaxed(notice)));
    return came && !left_out ? place : 0;
  }

  /// Until the row of a slot is there; all lanes of a warp call.
  __device__ bool wait_row(std::int32_t source, std::int32_t token) const {
    const std::uint64_t* const word =
        slot_ready(group_, group_.me, slot_index(group_, call_.sizes, epoch_, source, token));
    return __all_sync(kWarp, wait_or_mask(
                                 group_, source, Phase::slots, kDispatchOperation, epoch_,
                                 [&] { return load_acquire(word) >= epoch_; }, word, nullptr)) != 0;
  }

  /// Calls f(lane, local expert) for all lanes of a slot, -1 where the expert is elsewhere.
  template <typename F>
  __device__ void for_lanes(std::int32_t source, std::int32_t token, F&& f) const {
    const std::byte* const header = header_of(source, token);
    for (std::uint32_t p = 0; p < group_.layout.packets; ++p) {
      const SlotPacket packet = load_packet(header + p * detail::kPacketBytes);
#pragma unroll
      for (std::uint32_t i = 0; i < detail::kLanesPerPacket; ++i)
        f(p * static_cast<std::uint32_t>(detail::kLanesPerPacket) + i, packet.expert(i));
    }
  }

  /// Numbers the threads' hits of a segment in the order of the slots: `ranks` where `hits`. Returns their number. All
  /// threads call; two calls need a barrier between them.
  __device__ std::uint32_t number_hits(const bool (&hits)[kPerThread], std::uint32_t (&ranks)[kPerThread]) {
    const std::uint32_t warp = threadIdx.x / 32, me = lane_id();
    std::uint32_t ballots[kPerThread];
#pragma unroll
    for (std::uint32_t j = 0; j < kPerThread; ++j) {
      ballots[j] = __ballot_sync(kWarp, hits[j]);
      if (me == 0) shared_.counts[j * kWarps + warp] = __popc(ballots[j]);
    }
    __syncthreads();
    const std::uint32_t count = shared_.counts[me];
    std::uint32_t sum = count;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const std::uint32_t before = __shfl_up_sync(kWarp, sum, distance);
      if (me >= static_cast<std::uint32_t>(distance)) sum += before;
    }
#pragma unroll
    for (std::uint32_t j = 0; j < kPerThread; ++j)
      ranks[j] = __shfl_sync(kWarp, sum - count, j * kWarps + warp) + __popc(ballots[j] & ((1u << me) - 1));
    return __shfl_sync(kWarp, sum, 31);
  }

  /// The tokens with an expert here, those of one token of all sources together, so that the answers of the combine go
  /// to all members at the same time.
  __device__ void list_pairs() {
    const auto ranks = static_cast<std::uint32_t>(group_.ranks);
    std::uint32_t listed = 0;
    for (std::uint32_t first = 0; first < slots_; first += kSegment) {
      HandlePair pairs[kPerThread];
      bool hits[kPerThread];
      std::uint32_t numbers[kPerThread], places[kPerThread];
      // Of one token all sources together, and not all members the same source first.
      const auto token_of = [&](std::uint32_t i) { return static_cast<std::int32_t>(i / ranks); };
      const auto source_of = [&](std::uint32_t i) {
        return static_cast<std::int32_t>((i % ranks + group_.me + 1) % ranks);
      };
      wait_slots(first, places, source_of, token_of);
#pragma unroll
      for (std::uint32_t j = 0; j < kPerThread; ++j) {
        const std::uint32_t i = first + j * kThreads + threadIdx.x;
        hits[j] = false;
        if (i >= slots_) continue;
        HandlePair& pair = pairs[j];
        pair.token = token_of(i);
        pair.source = source_of(i);
        pair.place = static_cast<std::int32_t>(places[j]) - 1;
        if (pair.place < 0) continue;
        pair.lanes = 0;
        for_lanes(pair.source, pair.token, [&](std::uint32_t lane, std::int32_t expert) {
          if (expert >= 0) pair.lanes |= 1u << lane;
        });
        hits[j] = true;
        if (call_.has_weights != 0) keep_weights(pair);
      }
      const std::uint32_t count = number_hits(hits, numbers);
#pragma unroll
      for (std::uint32_t j = 0; j < kPerThread; ++j)
        if (hits[j]) call_.handle.pairs[listed + numbers[j]] = pairs[j];
      listed += count;
      __syncthreads();
    }
    if (threadIdx.x == 0) call_.handle.header->pairs = static_cast<std::int32_t>(listed);
    if (threadIdx.x < ranks) check_agreement(static_cast<std::int32_t>(threadIdx.x));
  }

  /// The half of the slots may be written again before the combine reads them.
  __device__ void keep_weights(const HandlePair& pair) const {
    // They lie before the row, not before the header.
    const std::uint64_t* const word =
        slot_ready(group_, group_.me, slot_index(group_, call_.sizes, epoch_, pair.source, pair.token));
    if (!wait_or_mask(
            group_, pair.source, Phase::slots, kDispatchOperation, epoch_, [&] { return load_acquire(word) >= epoch_; },
            word, nullptr))
      return;
    const float* const from =
        slot_weights(group_, group_.me, slot_index(group_, call_.sizes, epoch_, pair.source, pair.token));
    float* const to = call_.handle.weights + pair_lane(pair.source, pair.token, 0);
    for (std::uint32_t left = pair.lanes; left != 0; left &= left - 1)
      to[__ffs(left) - 1] = __ldcg(from + __ffs(left) - 1);
  }

  __device__ std::size_t pair_lane(std::int32_t source, std::int32_t token, std::int32_t lane) const {
    return (static_cast<std::size_t>(source) * tokens_ + token) * group_.top_k + lane;
  }

  __device__ void check_agreement(std::int32_t source) const {
    const std::uint64_t word = load_relaxed(slot_notice(group_, group_.me, epoch_, source));
    if (!is_epoch(word, epoch_) || is_masked(group_, source)) return;
    const SlotNotice notice = SlotNotice::of(word);
    if (notice.quantize != call_.quantize || notice.has_weights != (call_.has_weights != 0))
      report_fault(group_, Fault::mismatch, Phase::slots, kDispatchOperation, source, epoch_, word, 0, 0, 0, false);
  }

  // --- rows of an expert

  /// The rows of expert `expert` whose number is `split` modulo the number of splits. Split 0 also writes what there is
  /// once for an expert.
  __device__ void fill_expert(std::int32_t expert, std::int32_t split) {
    const bool first_split = split == 0;
    if (first_split && threadIdx.x < static_cast<std::uint32_t>(group_.ranks)) shared_.per_source[threadIdx.x] = 0;
    __syncthreads();
    std::uint32_t rows = 0;
    for (std::uint32_t first = 0; first < slots_; first += kSegment) {
      bool hits[kPerThread];
      std::uint32_t numbers[kPerThread], lanes[kPerThread], places[kPerThread];
      const auto source_of = [&](std::uint32_t i) { return static_cast<std::int32_t>(i / tokens_); };
      const auto token_of = [&](std::uint32_t i) { return static_cast<std::int32_t>(i % tokens_); };
      wait_slots(first, places, source_of, token_of);
#pragma unroll
      for (std::uint32_t j = 0; j < kPerThread; ++j) {
        const std::uint32_t i = first + j * kThreads + threadIdx.x;
        hits[j] = false;
        lanes[j] = 0;
        if (i >= slots_ || places[j] == 0) continue;
        for_lanes(source_of(i), token_of(i), [&](std::uint32_t lane, std::int32_t other) {
          if (other != expert) return;
          hits[j] = true;
          lanes[j] = lane;
        });
      }
      const std::uint32_t count = number_hits(hits, numbers);
#pragma unroll
      for (std::uint32_t j = 0; j < kPerThread; ++j) {
        if (!hits[j]) continue;
        const std::uint32_t i = first + j * kThreads + threadIdx.x;
        shared_.list[numbers[j]] = i;
        if (!first_split) continue;
        const auto source = static_cast<std::int32_t>(i / tokens_), token = static_cast<std::int32_t>(i % tokens_);
        call_.handle.rows[pair_lane(source, token, static_cast<std::int32_t>(lanes[j]))] =
            static_cast<std::int32_t>(static_cast<std::uint32_t>(expert) * slots_ + rows + numbers[j]);
        atomicAdd(&shared_.per_source[source], 1);
      }
      __syncthreads();
      copy_rows(expert, split, rows, count);
      rows += count;
      __syncthreads();
    }
    if (first_split) describe(expert, rows);
  }

  /// Rows `rows` .. `rows + count - 1` of an expert, those of this split. A warp copies a piece of a row at a time.
  __device__ void copy_rows(std::int32_t expert, std::int32_t split, std::uint32_t rows, std::uint32_t count) const {
    const auto splits = static_cast<std::uint32_t>(call_.splits);
    const std::uint32_t first = (static_cast<std::uint32_t>(split) + splits - rows % splits) % splits;
    if (first >= count) return;
    const std::uint32_t mine = (count - first + splits - 1) / splits;
    const std::uint32_t chunks = static_cast<std::uint32_t>(call_.sizes.hidden) * (quantized() ? 1 : 2) / 16;
    const std::uint32_t pieces = (chunks + kPieceChunks - 1) / kPieceChunks;
    for (std::uint32_t unit = threadIdx.x / 32; unit < mine * pieces; unit += kWarps) {
      const std::uint32_t at = first + unit / pieces * splits, piece = unit % pieces;
      const std::uint32_t i = shared_.list[at];
      const auto source = static_cast<std::int32_t>(i / tokens_), token = static_cast<std::int32_t>(i % tokens_);
      const std::byte* const from = slot_row(group_, group_.me, slot_index(group_, call_.sizes, epoch_, source, token));
      const std::size_t row = static_cast<std::size_t>(expert) * slots_ + rows + at;
      if (!wait_row(source, token)) continue;
      if (piece == 0) {
        if (lane_id() == 0) call_.source_token[row] = token;
        if (quantized()) copy_scales(from, expert, rows + at);
      }
      copy_piece(reinterpret_cast<uint4*>(call_.x + row * chunks * 16), from, piece * kPieceChunks, chunks);
    }
  }

  __device__ bool quantized() const { return call_.quantize != static_cast<std::uint32_t>(Quantize::none); }

  __device__ static void copy_piece(uint4* to, const std::byte* from, std::uint32_t first, std::uint32_t chunks) {
    constexpr std::uint32_t kAhead = kPieceChunks / 32;
    uint4 data[kAhead];
#pragma unroll
    for (std::uint32_t k = 0; k < kAhead; ++k) {
      const std::uint32_t chunk = first + k * 32 + lane_id();
      if (chunk < chunks) data[k] = load_row(reinterpret_cast<const uint4*>(from) + chunk);
    }
#pragma unroll
    for (std::uint32_t k = 0; k < kAhead; ++k) {
      const std::uint32_t chunk = first + k * 32 + lane_id();
      if (chunk < chunks) to[chunk] = data[k];
    }
  }

  /// A warp writes the scales of one row, which lie a row apart.
  __device__ void copy_scales(const std::byte* slot, std::int32_t expert, std::uint32_t row) const {
    const auto* const scales = reinterpret_cast<const float*>(slot + group_.layout.slot_scales);
    const auto groups = static_cast<std::uint32_t>(numeric::group_count(call_.sizes.hidden));
    if (call_.quantize != static_cast<std::uint32_t>(Quantize::fp8_ue8m0)) {
      float* const out = static_cast<float*>(call_.scales) + static_cast<std::size_t>(expert) * groups * slots_ + row;
      for (std::uint32_t g = lane_id(); g < groups; g += 32)
        out[static_cast<std::size_t>(g) * slots_] = __ldcg(scales + g);
      return;
    }
    const std::uint32_t words = (groups + 3) / 4;
    std::int32_t* const out =
        static_cast<std::int32_t*>(call_.scales) + static_cast<std::size_t>(expert) * words * slots_ + row;
    for (std::uint32_t w = lane_id(); w < words; w += 32) {
      std::int32_t word = 0;
      for (std::uint32_t g = 4 * w; g < min(4 * w + 4, groups); ++g)
        word = numeric::with_ue8m0(word, g, __ldcg(scales + g));
      out[static_cast<std::size_t>(w) * slots_] = word;
    }
  }

  /// counts, layout and statistics of an expert; behind a barrier.
  __device__ void describe(std::int32_t expert, std::uint32_t rows) const {
    const auto me = static_cast<std::int32_t>(threadIdx.x);
    if (me < group_.ranks) {
      std::int64_t before = 0;
      for (std::int32_t source = 0; source < me; ++source) before += shared_.per_source[source];
      call_.layout[static_cast<std::size_t>(expert) * group_.ranks + me] = before << 32 | shared_.per_source[me];
    }
    if (me == 0) {
      call_.counts[expert] = static_cast<std::int32_t>(rows);
      if (call_.expert_counts != nullptr) call_.expert_counts[expert] += static_cast<std::int32_t>(rows);
    }
    __syncthreads();  // the next item counts again
  }

  const SlotsReceive& call_;
  const DeviceGroup& group_;
  Shared& shared_;
  const std::uint64_t epoch_;
  const std::uint32_t tokens_, slots_;
};

// Two blocks an SM: one must fit beside a block of the send that it is chained to.
__global__ void __launch_bounds__(kThreads, 2) dispatch_receive_impl(const __grid_constant__ SlotsReceive call) {
  begin_kernel(call.chained != 0);
  __shared__ Shared shared;
  Receiver receiver(call, shared);
  receiver.run();
  receiver.end();
  end_chained(call.chained != 0);
}

}  // namespace

void launch_slots_receive(SlotsReceive& call, const Machine& machine, cudaStream_t stream) {
  // About a block an SM: each looks at all flags, which costs more than it gains beyond that.
  const std::int32_t most = machine.most_blocks > 0 ? machine.most_blocks : machine.multiprocessors;
  call.splits = std::max(1, (most - 1) / call.group.local_experts);
  const std::int32_t blocks = std::min(1 + call.group.local_experts * call.splits, most);
  launch(dispatch_receive_impl, static_cast<std::uint32_t>(blocks), kThreads, 0, call, machine, stream);
}

void load_slots_receive() {
  load_kernel(dispatch_receive_impl);
}

}  // namespace shoal::ep::cuda
