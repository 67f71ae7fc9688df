// SPDX-License-Identifier: Apache-2.0
// low_latency_combine_send: the answers to this member's rows go to the members that sent the
// tokens.
//
// sums: the weighted sum over this member's experts of a token, in float32, lanes ascending,
// rounded to bfloat16: one row per (token, member) crosses the link, at the member's place among
// those that answer. rows: each expert's answer as it is, at its lane. log_fmt: likewise, in
// LogFMT-10.
//
// Reads y where it lies, 2 B a channel and answer, writes one row per answer. A block a (source,
// token) at a time, in the order that the dispatch left them in.
//
// Waits: answers_read of the use before last of this half; with sums, where weights did not travel
// with the dispatch, the stamped weights of each token, after giving this member's own to whoever
// sums with them. Publishes: grants, a notice, the rows (low_latency_kernels.cuh: rows tell of
// themselves); with flags, behind each answer its flag (release at system scope, behind a barrier
// of the block).
#include "ep/cuda/device/vectors.cuh"
#include "ep/cuda/low_latency/logfmt.cuh"

namespace shoal::ep::cuda {
namespace {

constexpr std::uint32_t kThreads = 224;
static_assert(kThreads >= kMaxDeviceRanks);
/// By the registers that they need.
constexpr std::int32_t blocks_per_multiprocessor(CombineRowForm form) {
  return form == CombineRowForm::log_fmt ? 1 : 2;
}
constexpr std::uint32_t kAhead = 4;  // 16-byte chunks of a row that a thread has in flight

/// One (source, token) as its warps know it: lane k has the answer of the k-th expert.
struct Work {
  HandlePair pair;
  const std::uint16_t* row;  ///< of this lane's answer in y; nullptr: none
  float weight;
  std::uint64_t stamped;  ///< the weight, where it comes with the combine: as it was there when
                          ///< this was loaded
  std::uint32_t lanes;    ///< with an answer
};

class Sender {
 public:
  __device__ explicit Sender(const AnswersSend& call, bool* masked)
      : call_(call),
        group_(call.group),
        masked_(masked),
        epoch_(call.group.memory->answers_sent + 1),
        dispatch_epoch_(call.handle.header->epoch),
        pairs_(call.handle.header->pairs),
        slots_(static_cast<std::uint32_t>(call.group.ranks) *
               static_cast<std::uint32_t>(call.sizes.max_tokens)) {}

  /// False when the group has failed.
  __device__ bool enter() {
    const auto me = static_cast<std::int32_t>(threadIdx.x);
    if (blockIdx.x == 0 && threadIdx.x >= blockDim.x - 32) begin();
    if (exchanges()) give_weights();
    bool usable = true;
    if (me < group_.ranks) {
      if (epoch_ > 2)
        wait_signal_or_mask(group_, group_.layout.answers_read, me, epoch_ - 2, Phase::answer_grant,
                            kCombineOperation);
      if (blockIdx.x == 0)
        store_relaxed(answer_notice(group_, me, epoch_, group_.me),
                      flag() | (is_masked(group_, me) ? AnswerNotice::kLeftOut : 0));
      masked_[me] = is_masked(group_, me);
      usable = !aborted(group_);
    }
    if (call_.form != CombineRowForm::sums) keep_weights();
    usable = __syncthreads_and(usable) != 0;
    passed_ = pass_epoch(group_, Kernel::answers_send, call_.flags != 0);
    return usable;
  }

  /// All but the weights, which may have to be waited for.
  __device__ Work load(std::int32_t number) const {
    Work work;
    work.pair = {};
    // Of the list more is loaded than there may be, so that its length need not be waited for.
    if (static_cast<std::uint32_t>(number) < slots_) work.pair = call_.handle.pairs[number];
    if (number >= pairs_) work.pair = {};
    const std::uint32_t me = lane_id();
    work.row = nullptr;
    work.weight = 0;
    work.stamped = 0;
    if (work.pair.lanes >> me & 1) {
      if (exchanges()) work.stamped = load_relaxed(weight_at(work.pair));
      const auto row = static_cast<std::uint32_t>(call_.handle.rows[lane_of(work.pair)]);
      // A row of a source that failed between the blocks of a receive may never have been numbered.
      if (row < slots_ * static_cast<std::uint32_t>(group_.local_experts))
        work.row = call_.y + row / slots_ * call_.expert_stride + row % slots_ * call_.row_stride;
    }
    work.lanes = __ballot_sync(kWarp, work.row != nullptr);
    return work;
  }

  __device__ void load_weights(Work& work) const {
    if (work.row == nullptr) return;
    work.weight =
        call_.weights_travelled != 0 ? call_.handle.weights[lane_of(work.pair)] : wait_weight(work);
  }

  __device__ std::int32_t pairs() const { return pairs_; }

  __device__ bool wanted(const Work& work) const {
    return work.pair.lanes != 0 && !masked_[work.pair.source];
  }

  /// As answer_slot, of a sum or of the answer of a lane.
  __device__ std::int32_t sum_slot(const Work& work) const {
    return answer_slot(group_, group_.me, work.pair.place, 0);
  }
  __device__ std::int32_t row_slot(const Work& work, std::int32_t lane) const {
    return answer_slot(group_, group_.me, lane, __popc(work.pair.lanes & ((1u << lane) - 1)));
  }

  __device__ std::byte* target(const Work& work, std::int32_t slot) const {
    return answer_row(group_, work.pair.source,
                      answer_index(group_, call_.sizes, epoch_, work.pair.token, slot));
  }

  __device__ static const std::uint16_t* row_of(const Work& work, int lane) {
    return reinterpret_cast<const std::uint16_t*>(
        __shfl_sync(kWarp, reinterpret_cast<unsigned long long>(work.row), lane));
  }

  /// The weights are waited for when the first row is on its way.
  __device__ void send_sum(Work& work) const {
    const std::uint32_t chunks = static_cast<std::uint32_t>(call_.sizes.hidden) / 8;
    bool weighted = false;
    auto* const out = reinterpret_cast<uint4*>(target(work, sum_slot(work)));
    // Not a warp without a chunk: nobody's answer would wait for what it waits for.
    const std::uint32_t warp = threadIdx.x / 32 * 32;
    for (std::uint32_t first = 0; first + warp < chunks; first += kAhead * kThreads) {
      float sums[kAhead][8] = {};
      for (std::uint32_t left = work.lanes; left != 0; left &= left - 1) {
        const int lane = __ffs(left) - 1;
        const auto* const row = reinterpret_cast<const uint4*>(row_of(work, lane));
        uint4 data[kAhead];
        load_chunks(data, row, first, chunks);
        if (!weighted) load_weights(work);
        weighted = true;
        const float weight = __shfl_sync(kWarp, work.weight, lane);
#pragma unroll
        for (std::uint32_t i = 0; i < kAhead; ++i) add(sums[i], data[i], weight);
      }
      uint4 data[kAhead];
#pragma unroll
      for (std::uint32_t i = 0; i < kAhead; ++i) data[i] = Bfloat16::narrow(sums[i]);
      store_chunks(out, data, first, chunks);
    }
  }

  __device__ void send_rows(const Work& work) const {
    const std::uint32_t chunks = static_cast<std::uint32_t>(call_.sizes.hidden) / 8;
    for (std::uint32_t left = work.lanes; left != 0; left &= left - 1) {
      const int lane = __ffs(left) - 1;
      const auto* const row = reinterpret_cast<const uint4*>(row_of(work, lane));
      for (std::uint32_t first = 0; first < chunks; first += kAhead * kThreads) {
        uint4 data[kAhead];
        load_chunks(data, row, first, chunks);
        store_chunks(reinterpret_cast<uint4*>(target(work, row_slot(work, lane))), data, first,
                     chunks);
      }
    }
  }

  __device__ void send_log_fmt(const Work& work, std::byte* staged, std::uint32_t* castable) const;

  /// Behind a barrier: the rows of all threads are written.
  __device__ void send_flags(const Work& work) const {
    const std::uint32_t me = lane_id();
    const bool sums = call_.form == CombineRowForm::sums;
    const std::uint32_t warp = threadIdx.x / 32,
                        flags_warp = call_.form == CombineRowForm::log_fmt ? 0 : kThreads / 32;
    if (warp != flags_warp || (sums ? me != 0 : (work.pair.lanes >> me & 1) == 0)) return;
    const std::int32_t slot = sums ? sum_slot(work) : row_slot(work, static_cast<std::int32_t>(me));
    store_release(answer_flag_at(group_, work.pair.source,
                                 answer_index(group_, call_.sizes, epoch_, work.pair.token, slot)),
                  flag());
  }

  __device__ void end() const {
    end_kernel(group_, Kernel::answers_send, call_.flags != 0, passed_, [&] {
      if (lane_id() != 0) return;
      group_.memory->answers_sent = epoch_;
      call_.pending.header->epoch = epoch_;
      __threadfence();
      *static_cast<volatile std::uint64_t*>(&call_.pending.header->serial) = call_.serial;
    });
  }

 private:
  /// Of this lane in the handle's arrays.
  __device__ std::size_t lane_of(const HandlePair& pair) const {
    return (static_cast<std::size_t>(pair.source) * call_.sizes.max_tokens + pair.token) *
               group_.top_k +
           lane_id();
  }

  __device__ std::uint64_t flag() const {
    return AnswerNotice{call_.form, call_.exact != 0, call_.weights_travelled != 0, dispatch_epoch_}
        .word(epoch_);
  }

  __device__ bool exchanges() const {
    return call_.form == CombineRowForm::sums && call_.weights_travelled == 0;
  }

  /// What a member tells all others; a warp of the first block calls.
  __device__ void begin() const {
    const RowsOf send = rows_of_answers(group_, Phase::answer_grant, epoch_);
    begin_send(group_, answers_reading(group_), slots_reading(group_), send,
               [&](std::uint64_t left) {
                 fill_sentinel(
                     answer_row(group_, group_.me, answer_index(group_, call_.sizes, left, 0, 0)),
                     static_cast<std::size_t>(call_.sizes.max_tokens) *
                         group_.layout.token_answers * group_.layout.answer_bytes);
               });
  }

  /// A weight of this member's tokens goes to the member that sums with it. The half is free: all
  /// answers that needed the weights of the use before last have come. The first blocks give them,
  /// because all wait for them.
  __device__ void give_weights() const {
    constexpr std::uint32_t kGivers = 8;
    const std::int32_t count = call_.tokens * group_.top_k;
    const std::uint32_t givers = min(gridDim.x, kGivers);
    for (auto w = static_cast<std::int32_t>(blockIdx.x * blockDim.x + threadIdx.x);
         blockIdx.x < givers && w < count; w += static_cast<std::int32_t>(givers * blockDim.x)) {
      const std::int32_t expert = known_expert(group_, call_.handle.topk[w]);
      if (expert < 0) continue;
      store_relaxed(
          combine_weights(group_, call_.sizes, expert / group_.local_experts, epoch_, group_.me) +
              w,
          stamped_weight(call_.weights[w], epoch_));
    }
  }

  __device__ const std::uint64_t* weight_at(const HandlePair& pair) const {  // of this lane
    return combine_weights(group_, call_.sizes, group_.me, epoch_, pair.source) +
           static_cast<std::size_t>(pair.token) * group_.top_k + lane_id();
  }

  /// A member that answers otherwise gives none: its receive will say so.
  __device__ float wait_weight(const Work& work) const {
    const HandlePair& pair = work.pair;
    if (is_epoch(work.stamped, epoch_)) return weight_of(work.stamped);
    const std::uint64_t* const at = weight_at(pair);
    std::uint64_t word = load_relaxed(at);
    if (is_epoch(word, epoch_)) return weight_of(word);
    if (masked_[pair.source]) return 0;
    const std::uint64_t* const notice = answer_notice(group_, group_.me, epoch_, pair.source);
    std::uint64_t waited = 0;
    wait_or_mask(
        group_, pair.source, Phase::weights, kCombineOperation, epoch_,
        [&] {
          const std::uint64_t said = load_relaxed(notice);
          word = load_relaxed(at);
          return ahead_of(word, epoch_) >= 0 || (ahead_of(said, epoch_) >= 0 && said != flag());
        },
        at, call_.longest_wait != nullptr ? &waited : nullptr);
    note_wait(call_.longest_wait, pair.source, waited);
    return weight_of(word);
  }

  __device__ void keep_weights() const {
    const std::int32_t count = call_.tokens * group_.top_k;
    for (auto w = static_cast<std::int32_t>(blockIdx.x * blockDim.x + threadIdx.x); w < count;
         w += static_cast<std::int32_t>(gridDim.x * blockDim.x))
      call_.pending.weights[w] = call_.weights[w];
  }

  __device__ static void load_chunks(uint4 (&data)[kAhead], const uint4* row, std::uint32_t first,
                                     std::uint32_t chunks) {
#pragma unroll
    for (std::uint32_t i = 0; i < kAhead; ++i) {
      const std::uint32_t chunk = first + i * kThreads + threadIdx.x;
      data[i] = chunk < chunks ? __ldg(row + chunk) : uint4{};
    }
  }
  __device__ static void store_chunks(uint4* row, const uint4 (&data)[kAhead], std::uint32_t first,
                                      std::uint32_t chunks) {
#pragma unroll
    for (std::uint32_t i = 0; i < kAhead; ++i) {
      const std::uint32_t chunk = first + i * kThreads + threadIdx.x;
      if (chunk < chunks) store_row(row + chunk, data[i]);
    }
  }
  __device__ static void add(float (&sums)[8], const uint4& vector, float weight) {
    float values[8];
    Bfloat16::widen(vector, values);
#pragma unroll
    for (int i = 0; i < 8; ++i) sums[i] = numeric::accumulate(sums[i], weight, values[i]);
  }

  const AnswersSend& call_;
  const DeviceGroup& group_;
  bool* const masked_;
  const std::uint64_t epoch_, dispatch_epoch_;
  const std::int32_t pairs_;
  const std::uint32_t slots_;
  std::uint32_t passed_ = 0;  ///< pass_epoch
};

/// Rows are put together in shared memory, because their parts have sizes that depend on the
/// values, and leave it in stores of 16 bytes. `castable` has a word a block of the row; it becomes
/// where the block starts, and in its highest bit whether it is cast.
__device__ void Sender::send_log_fmt(const Work& work, std::byte* staged,
                                     std::uint32_t* castable) const {
  const LogfmtRow shape(static_cast<std::uint32_t>(call_.sizes.hidden));
  constexpr std::uint32_t kThreadsPerGroup = numeric::kGroupChannels / kLogfmtUnit,
                          kCast = 1u << 31;
  auto* const groups = reinterpret_cast<numeric::LogfmtGroup*>(staged);
  const std::uint32_t units = (shape.hidden + kLogfmtUnit - 1) / kLogfmtUnit;
  const std::uint32_t units_per_block = shape.block_channels / kLogfmtUnit;
  for (std::uint32_t left = work.lanes; left != 0; left &= left - 1) {
    const int lane = __ffs(left) - 1;
    const std::uint16_t* const row = row_of(work, lane);
    const auto load = [&](std::uint32_t unit, uint4(&data)[2]) {
      const std::uint32_t chunk = 2 * unit, chunks = shape.hidden / 8;
#pragma unroll
      for (std::uint32_t i = 0; i < 2; ++i)
        if (chunk + i < chunks) data[i] = __ldg(reinterpret_cast<const uint4*>(row) + chunk + i);
      return unit >= units ? 0u : min(kLogfmtUnit, shape.hidden - unit * kLogfmtUnit);
    };
    const auto value_of = [](const uint4(&data)[2], std::uint32_t i) {
      const std::uint32_t words[8] = {data[0].x, data[0].y, data[0].z, data[0].w,
                                      data[1].x, data[1].y, data[1].z, data[1].w};
      return numeric::Bf16{
          static_cast<std::uint16_t>(i % 2 == 0 ? words[i / 2] & 0xffffu : words[i / 2] >> 16)};
    };
    for (std::uint32_t b = threadIdx.x; b < shape.blocks; b += kThreads) castable[b] = kCast;
    __syncthreads();
    for (std::uint32_t first = threadIdx.x / 32 * 32; first < units; first += kThreads) {
      const std::uint32_t unit = first + lane_id();
      uint4 data[2];
      const std::uint32_t count = load(unit, data);
      numeric::LogfmtGroup group;
#pragma unroll
      for (std::uint32_t i = 0; i < kLogfmtUnit; ++i)
        if (i < count) group = numeric::with_value(group, value_of(data, i));
      std::uint32_t largest = group.largest.bits, smallest = group.smallest.bits;
#pragma unroll
      for (std::uint32_t distance = kThreadsPerGroup / 2; distance > 0; distance /= 2) {
        largest = max(largest, __shfl_xor_sync(kWarp, largest, distance));
        smallest = min(smallest, __shfl_xor_sync(kWarp, smallest, distance));
      }
      if (unit >= units || unit % kThreadsPerGroup != 0) continue;
      group.largest.bits = static_cast<std::uint16_t>(largest);
      group.smallest.bits = static_cast<std::uint16_t>(smallest);
      groups[unit / kThreadsPerGroup] = group;
      if (!numeric::logfmt_scale(group).castable) atomicAnd(castable + unit / units_per_block, 0u);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      std::uint32_t at = shape.meta_bytes();
      for (std::uint32_t b = 0; b < shape.blocks; ++b) {
        const std::uint32_t cast = castable[b];
        castable[b] = at | cast;
        at += shape.bytes_of(b, cast != 0);
      }
      castable[shape.blocks] = at;
    }
    __syncthreads();
    for (std::uint32_t unit = threadIdx.x; unit < units; unit += kThreads) {
      const std::uint32_t block = unit / units_per_block, in_block = unit % units_per_block;
      const bool cast = (castable[block] & kCast) != 0;
      std::byte* const to = staged + (castable[block] & ~kCast);
      uint4 data[2];
      const std::uint32_t count = load(unit, data);
      const std::uint32_t words[8] = {data[0].x, data[0].y, data[0].z, data[0].w,
                                      data[1].x, data[1].y, data[1].z, data[1].w};
      if (!cast) {
        auto* const out = reinterpret_cast<std::uint32_t*>(to + in_block * kLogfmtUnit * 2);
#pragma unroll
        for (std::uint32_t i = 0; i < 8; ++i)
          if (2 * i < count) out[i] = words[i];
        continue;
      }
      const numeric::LogfmtScale scale = numeric::logfmt_scale(groups[unit / kThreadsPerGroup]);
      std::uint32_t codes[kLogfmtUnit], signs = 0;
#pragma unroll
      for (std::uint32_t i = 0; i < kLogfmtUnit; ++i) {
        if (i >= count) continue;
        const numeric::Bf16 value = value_of(data, i);
        codes[i] = numeric::encode_logfmt(numeric::to_float(value), scale);
        signs |= std::uint32_t{value.bits} >> 15 << i;
      }
      LogfmtBits bits;
      bits.pack(codes, signs, count);
      auto* const out =
          reinterpret_cast<std::uint32_t*>(to + numeric::logfmt_bytes(in_block * kLogfmtUnit));
#pragma unroll
      for (std::uint32_t i = 0; i < 5; ++i)
        if (count == kLogfmtUnit || i < 2) out[i] = bits.words[i];
      if (count != kLogfmtUnit)
        reinterpret_cast<std::uint16_t*>(out)[4] = static_cast<std::uint16_t>(bits.words[2]);
    }
    __syncthreads();
    const std::uint32_t chunks = (castable[shape.blocks] + 15) / 16;
    auto* const out = reinterpret_cast<uint4*>(target(work, row_slot(work, lane)));
    for (std::uint32_t chunk = threadIdx.x; chunk < chunks; chunk += kThreads)
      out[chunk] = reinterpret_cast<const uint4*>(staged)[chunk];
    __syncthreads();
  }
}

/// Rows and their flags by different warps: a flag waits until the stores before it have arrived,
/// and the next row need not. A barrier for each row, in turn; all threads meet before a barrier is
/// used again.
class RowsDone {
 public:
  /// The rows' threads: the row is written.
  __device__ void arrive() const {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier()), "n"(kThreads + 32) : "memory");
  }
  /// The flags' warp: until it is.
  __device__ void wait() const {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier()), "n"(kThreads + 32) : "memory");
  }
  __device__ void next() {
    if (++count_ % kBarriers == 0) __syncthreads();
  }

 private:
  static constexpr std::uint32_t kBarriers = 14;  // of 16; 0 is that of __syncthreads
  __device__ std::uint32_t barrier() const { return 1 + count_ % kBarriers; }
  std::uint32_t count_ = 0;
};

constexpr std::uint32_t threads_of(CombineRowForm form) {
  return form == CombineRowForm::log_fmt ? kThreads : kThreads + 32;
}

template <CombineRowForm kForm>
__global__ void __launch_bounds__(threads_of(kForm), blocks_per_multiprocessor(kForm))
    combine_send_impl(const __grid_constant__ AnswersSend call) {
  begin_kernel();
  extern __shared__ uint4 staged[];
  __shared__ bool masked[kMaxDeviceRanks];
  Sender sender(call, masked);
  const auto step = static_cast<std::int32_t>(gridDim.x);
  auto i = static_cast<std::int32_t>((blockIdx.x + gridDim.x - 1) %
                                     gridDim.x);  // the first block has more to do
  Work work = sender.load(i);  // ahead of the waits, and then of the answer before
  if (sender.enter()) {
    RowsDone done;
    for (; i < sender.pairs(); i += step) {
      const Work next = sender.load(i + step);
      if constexpr (kForm == CombineRowForm::log_fmt) {
        if (sender.wanted(work)) {
          auto* const bytes = reinterpret_cast<std::byte*>(staged);
          sender.send_log_fmt(
              work, bytes,
              reinterpret_cast<std::uint32_t*>(bytes + call.group.layout.answer_bytes));
          __syncthreads();
          sender.send_flags(work);
        }
      } else {
        if (threadIdx.x >= kThreads) {
          if (call.flags == 0) break;
          done.wait();
          if (sender.wanted(work)) sender.send_flags(work);
        } else {
          if (sender.wanted(work))
            kForm == CombineRowForm::sums ? sender.send_sum(work) : sender.send_rows(work);
          if (call.flags != 0) done.arrive();
        }
        if (call.flags != 0) done.next();
      }
      work = next;
    }
  }
  sender.end();
}

}  // namespace

std::uint32_t log_fmt_shared_bytes(const DeviceGroup& group, std::int32_t hidden) {
  const std::size_t blocks = static_cast<std::size_t>(hidden) / 512 + 2;  // and where the row ends
  return static_cast<std::uint32_t>(group.layout.answer_bytes + blocks * sizeof(std::uint32_t));
}

void launch_answers_send(const AnswersSend& call, const Machine& machine, cudaStream_t stream) {
  const std::int32_t most = machine.most_blocks > 0
                                ? machine.most_blocks
                                : blocks_per_multiprocessor(call.form) * machine.multiprocessors;
  // Pairs there are at most; how many there are only the device knows.
  const auto blocks = static_cast<std::uint32_t>(
      std::min<std::int64_t>(most, std::int64_t{call.group.ranks} * call.sizes.max_tokens));
  switch (call.form) {
    case CombineRowForm::sums:
      return launch(combine_send_impl<CombineRowForm::sums>, blocks, threads_of(call.form), 0, call,
                    machine, stream);
    case CombineRowForm::rows:
      return launch(combine_send_impl<CombineRowForm::rows>, blocks, threads_of(call.form), 0, call,
                    machine, stream);
    case CombineRowForm::log_fmt:
      return launch(combine_send_impl<CombineRowForm::log_fmt>, blocks, kThreads,
                    log_fmt_shared_bytes(call.group, call.sizes.hidden), call, machine, stream);
  }
}

void load_answers_send(const Machine& machine) {
  load_kernel(combine_send_impl<CombineRowForm::sums>);
  load_kernel(combine_send_impl<CombineRowForm::rows>);
  load_kernel(combine_send_impl<CombineRowForm::log_fmt>);
  cudaFuncAttributes attributes{};
  (void)cudaFuncGetAttributes(&attributes, combine_send_impl<CombineRowForm::log_fmt>);
  (void)cudaFuncSetAttribute(combine_send_impl<CombineRowForm::log_fmt>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(machine.shared_bytes - attributes.sharedSizeBytes));
}

}  // namespace shoal::ep::cuda
