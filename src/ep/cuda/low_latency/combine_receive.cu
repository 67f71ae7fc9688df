// SPDX-License-Identifier: Apache-2.0
// low_latency_combine_receive: each token's answers are added up in float32 and rounded once.
//
// sums: the members' rows in the order of their last lanes. rows, log_fmt: weight * row, lanes
// ascending; with per_rank reduction grouped by member and rounded to bfloat16 a member, as if the
// member had done it. Sums start at +0. The order is that of every backend, so results agree bit by
// bit.
//
// Reads the answers from this GPU's own memory, 2 B a channel and answer, writes one row per token.
// A block a token, a thread a chunk of the row, which waits for nothing but that chunk of the
// answers. The first block has no token where others can take them: it makes sure that all members
// answer in the same way.
//
// Waits: the words of the answers to a token (low_latency_kernels.cuh: rows tell of themselves); of
// LogFMT-10, and in groups that leave members out, their flags (acquire at system scope). The half
// is granted by the next send, or at the end where the receive does not lie behind its own.
#include "ep/cuda/device/vectors.cuh"
#include "ep/cuda/low_latency/logfmt.cuh"

namespace shoal::ep::cuda {
namespace {

/// Of a block that adds up rows, one of which fits beside a block of the send that it is chained
/// to.
constexpr std::uint32_t kThreads = 448;
constexpr std::uint32_t kDecodeThreads = 256;  // that decodes
constexpr std::uint32_t kWindow =
    4096;  // channels that it decodes at a time: blocks of 512 or 1024
constexpr std::uint32_t kWindowGroups = kWindow / numeric::kGroupChannels,
                        kWindowBlocks = kWindow / 512;

struct Answer {
  Lane lane;
  std::uint32_t arrived;  ///< lanes whose answer is there or will be: of each member the last one,
                          ///< where members send sums
  float weight;
  std::uint32_t row;  ///< of this lane's answer, in chunks of 16 bytes from the first answer
};

class Collector {
 public:
  __device__ Collector(const AnswersReceive& call, const bool* masked)
      : call_(call),
        group_(call.group),
        masked_(masked),
        epoch_(call.group.memory->answers_received + 1),
        expected_(AnswerNotice{call.form, call.exact != 0, call.weights_travelled != 0,
                               call.handle.header->epoch}
                      .word(epoch_)) {}

  /// Waits for the answers to a token.
  __device__ Answer wait(std::int32_t token) const {
    const std::uint32_t me = lane_id();
    const bool in_row = me < static_cast<std::uint32_t>(group_.top_k);
    const std::size_t at = static_cast<std::size_t>(token) * group_.top_k + me;
    Answer answer;
    answer.lane =
        make_lane(in_row ? known_expert(group_, call_.handle.topk[at]) : -1, group_.local_experts);
    const bool sums = call_.form == CombineRowForm::sums;
    answer.weight = !sums && in_row ? call_.pending.weights[at] : 0;
    answer.row = 0;
    bool arrived = false;
    if ((sums ? answer.lane.last : answer.lane.member >= 0) && !masked_[answer.lane.member]) {
      const Lane& lane = answer.lane;
      const std::int32_t slot =
          sums ? answer_slot(group_, lane.member, lane.place, 0)
               : answer_slot(group_, lane.member, static_cast<std::int32_t>(me), lane.own);
      const std::size_t index = answer_index(group_, call_.sizes, epoch_, token, slot);
      answer.row = static_cast<std::uint32_t>(index * (group_.layout.answer_bytes / sizeof(uint4)));
      arrived = tells() || wait_answer(lane.member, answer_flag_at(group_, group_.me, index));
      if (tells() && measures()) measure(lane.member, answer.row);
    }
    answer.arrived = __ballot_sync(kWarp, arrived);
    return answer;
  }

  /// Whether answers tell of themselves.
  __device__ bool tells() const { return rows_tell(group_) && call_.form != CombineRowForm::log_fmt; }

  __device__ RowsOf about_rows() const {
    return rows_of_answers(group_, Phase::answer_rows, epoch_);
  }

  __device__ uint4* chunk_at(std::uint32_t row, std::uint32_t chunk) const {
    return reinterpret_cast<uint4*>(group_.block[group_.me] + group_.layout.answers) + row + chunk;
  }
  __device__ const std::byte* row_of(const Answer& answer, int lane) const {
    return reinterpret_cast<const std::byte*>(chunk_at(__shfl_sync(kWarp, answer.row, lane), 0));
  }

  __device__ uint4* out_row(std::int32_t token) const {
    return reinterpret_cast<uint4*>(call_.out +
                                    static_cast<std::size_t>(token) * call_.sizes.hidden);
  }

  __device__ void pass() { passed_ = pass_epoch(group_, Kernel::answers_receive, ordered()); }

  __device__ void end() const {
    end_kernel(group_, Kernel::answers_receive, ordered(), passed_, [&] {
      for (auto member = static_cast<std::int32_t>(lane_id()); member < group_.ranks;
           member += 32) {
        if (call_.grants != 0) grant_at_end(group_, answers_reading(group_), member, epoch_);
        if (call_.wait_ns == nullptr) continue;
        call_.wait_ns[member] += static_cast<std::int64_t>(call_.longest_wait[member]);
        call_.longest_wait[member] = 0;
      }
      if (lane_id() == 0) group_.memory->answers_received = epoch_;
    });
  }

  /// Nobody may go on waiting for, or leave behind, answers of a member that answers otherwise.
  __device__ __noinline__ void check_agreement() const {
    for (auto member = static_cast<std::int32_t>(threadIdx.x);
         rows_tell(group_) && member < group_.ranks;
         member += static_cast<std::int32_t>(blockDim.x)) {
      const std::uint64_t* const notice = answer_notice(group_, group_.me, epoch_, member);
      std::uint64_t said = 0;
      const bool came = wait_or_mask(
          group_, member, Phase::answer_rows, kCombineOperation, epoch_,
          [&] { return ahead_of(said = load_relaxed(notice), epoch_) >= 0; }, notice, nullptr);
      if (!came || said == expected_) continue;
      group_.memory->dirty_answers[epoch_ & 1] = epoch_;
      report_fault(group_, Fault::mismatch, Phase::answer_rows, kCombineOperation, member, epoch_,
                   said, 0, 0, 0, false);
    }
  }

  /// After a row that told of itself by a flag.
  __device__ void clear_rows(const Answer& answer) const {
    if (!rows_tell(group_)) return;
    const auto chunks = static_cast<std::uint32_t>(group_.layout.answer_bytes / sizeof(uint4));
    for (std::uint32_t left = answer.arrived; left != 0; left &= left - 1) {
      const std::uint32_t row = __shfl_sync(kWarp, answer.row, __ffs(left) - 1);
      for (std::uint32_t chunk = threadIdx.x; chunk < chunks; chunk += blockDim.x)
        *chunk_at(row, chunk) = uint4{kSentinel, kSentinel, kSentinel, kSentinel};
    }
  }

 private:
  __device__ bool ordered() const { return call_.grants != 0 || call_.wait_ns != nullptr; }

  /// For the statistics: how long the last word of an answer takes. One warp measures.
  __device__ bool measures() const { return call_.wait_ns != nullptr && threadIdx.x < 32; }
  __device__ __noinline__ void measure(std::int32_t member, std::uint32_t row) const {
    const auto* const word =
        reinterpret_cast<const std::uint32_t*>(chunk_at(row, 0)) + call_.sizes.hidden / 2 - 1;
    const RowsOf rows = about_rows();
    std::uint64_t waited = 0;
    wait_or_mask(
        group_, member, rows.phase, rows.operation, epoch_,
        [&] { return load_fresh(word) != kSentinel || disagreed(rows); },
        signal_at(group_, group_.me, group_.layout.failed, member), &waited);
    note_wait(call_.longest_wait, member, waited);
  }

  __device__ __noinline__ bool wait_answer(std::int32_t member, const std::uint64_t* flag) const {
    const std::uint64_t* const notice = answer_notice(group_, group_.me, epoch_, member);
    std::uint64_t said = 0, waited = 0;
    bool here = false;
    const bool came = wait_or_mask(
        group_, member, Phase::answer_rows, kCombineOperation, epoch_,
        [&] {
          said = load_relaxed(notice);
          here = load_acquire(flag) == expected_;
          // Who answers otherwise, or does not wait for this member any more, will not send this
          // answer.
          return here || (ahead_of(said, epoch_) >= 0 && said != expected_);
        },
        flag, call_.wait_ns != nullptr ? &waited : nullptr);
    note_wait(call_.longest_wait, member, waited);
    if (!came || here) return came;
    if (is_epoch(said, epoch_) && (said & AnswerNotice::kLeftOut) == 0)
      report_fault(group_, Fault::mismatch, Phase::answer_rows, kCombineOperation, member, epoch_,
                   said, 0, 0, 0, false);
    else
      wait_failed(group_, Fault::peer_failed, Phase::answer_rows, kCombineOperation, member, epoch_,
                  static_cast<std::uint32_t>(said));
    return false;
  }

  const AnswersReceive& call_;
  const DeviceGroup& group_;
  const bool* const masked_;
  const std::uint64_t epoch_, expected_;
  std::uint32_t passed_ = 0;  ///< pass_epoch
};

/// The sum over answers of weight * row. With levels, lanes are grouped by member and each group is
/// rounded to bfloat16 first: `level` is what is being added up of the group.
struct Sum {
  float total[8] = {}, level[8] = {};

  __device__ void add(const float (&values)[8]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) total[i] = numeric::add(total[i], values[i]);
  }
  __device__ void add_weighted(const float (&values)[8], float weight, bool levels) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (levels)
        level[i] = numeric::accumulate(level[i], weight, values[i]);
      else
        total[i] = numeric::accumulate(total[i], weight, values[i]);
    }
  }
  __device__ void end_level() {
    add_vector<Bfloat16>(total, Bfloat16::narrow(level));
#pragma unroll
    for (float& value : level) value = 0;
  }
};

/// Calls f(lane) for the lanes of `arrived`: ascending, or, with levels, member by member in the
/// order of their last lanes, and end() behind each member.
template <typename F, typename End>
__device__ void for_answers(const Answer& answer, bool levels, F&& f, End&& end) {
  if (!levels) {
    for (std::uint32_t left = answer.arrived; left != 0; left &= left - 1) f(__ffs(left) - 1);
    return;
  }
  for (std::uint32_t members = answer.lane.lasts; members != 0; members &= members - 1) {
    const std::int32_t member = __shfl_sync(kWarp, answer.lane.member, __ffs(members) - 1);
    const std::uint32_t lanes = __ballot_sync(kWarp, answer.lane.member == member) & answer.arrived;
    for (std::uint32_t left = lanes; left != 0; left &= left - 1) f(__ffs(left) - 1);
    if (lanes != 0) end();  // a member that is left out adds nothing
  }
}

/// Rows as bfloat16, several in flight.
template <CombineRowForm kForm>
__device__ void add_rows(const Collector& collector, const AnswersReceive& call,
                         const Answer& answer, uint4* out) {
  constexpr int kAhead = 8, kMemberBits = 8;
  static_assert(kMaxDeviceRanks <= 1 << kMemberBits && kAhead * kMemberBits <= 64);
  const auto chunks = static_cast<std::uint32_t>(call.sizes.hidden) / 8;
  for (std::uint32_t first = threadIdx.x / 32 * 32; first < chunks; first += blockDim.x) {
    const std::uint32_t chunk = first + lane_id();
    Sum sum;
    bool came = true;
    for (std::uint32_t left = answer.arrived; left != 0;) {
      std::uint32_t rows[kAhead], wanted = 0, ahead = left;
      std::uint64_t members = 0;  // a wait of one lane cannot ask another
#pragma unroll
      for (int i = 0; i < kAhead; ++i, ahead &= ahead - 1) {
        if (ahead == 0) continue;
        const int lane = __ffs(ahead) - 1;
        rows[i] = __shfl_sync(kWarp, answer.row, lane);
        members |= static_cast<std::uint64_t>(__shfl_sync(kWarp, answer.lane.member, lane))
                   << (i * kMemberBits);
        if (chunk < chunks) wanted |= 1u << i;
      }
      uint4 data[kAhead];
      const auto at = [&](int i) { return collector.chunk_at(rows[i], chunk); };
      came = take(call.group, collector.about_rows(), wanted, data, at,
                  [&](int i) {
                    return static_cast<std::int32_t>(members >> (i * kMemberBits) &
                                                     ((1u << kMemberBits) - 1));
                  }) &&
             came;
      __syncwarp();
#pragma unroll
      for (int i = 0; i < kAhead; ++i, left &= left - 1) {
        if (left == 0) continue;
        float values[8];
        Bfloat16::widen(data[i], values);
        if constexpr (kForm == CombineRowForm::sums)
          sum.add(values);
        else
          sum.add_weighted(values, __shfl_sync(kWarp, answer.weight, __ffs(left) - 1), false);
      }
    }
    if (chunk < chunks && came) out[chunk] = Bfloat16::narrow(sum.total);
  }
}

/// What is known of the window of every answer.
struct Window {
  numeric::LogfmtScale scales[kMaxTopK][kWindowGroups];
  std::uint32_t starts[kMaxTopK]
                      [kWindowBlocks];  ///< of blocks, from the start of the row; highest bit: cast
  std::uint32_t next[kMaxTopK];         ///< where the next window starts
};

/// Rows as LogFMT-10, a window of channels at a time. Two threads share a unit of 16 values.
__device__ void add_log_fmt(const Collector& collector, const AnswersReceive& call,
                            const Answer& answer, Window& window, uint4* out) {
  constexpr std::uint32_t kCast = 1u << 31;
  const LogfmtRow shape(static_cast<std::uint32_t>(call.sizes.hidden));
  const bool levels = call.exact == 0;
  const std::uint32_t me = lane_id(), warp = threadIdx.x / 32, warps = blockDim.x / 32;
  if (threadIdx.x < kMaxTopK) window.next[threadIdx.x] = shape.meta_bytes();
  for (std::uint32_t start = 0; start < shape.hidden; start += kWindow) {
    __syncthreads();
    const std::uint32_t first_group = start / numeric::kGroupChannels;
    const std::uint32_t groups = min(kWindowGroups, shape.groups - first_group);
    const std::uint32_t first_block = start / shape.block_channels;
    const std::uint32_t blocks = min(kWindow / shape.block_channels, shape.blocks - first_block);
    const std::uint32_t groups_per_block = shape.block_channels / numeric::kGroupChannels;
    // A warp an answer, a lane a group.
    std::uint32_t number = 0;
    for (std::uint32_t left = answer.arrived; left != 0; left &= left - 1, ++number) {
      const int lane = __ffs(left) - 1;
      const std::byte* const row = collector.row_of(answer, lane);
      if (number % warps != warp) continue;
      bool castable = true;
      if (me < groups) {
        numeric::LogfmtGroup group;
        const std::uint32_t word =
            load_word(row + (first_group + me) * sizeof(numeric::LogfmtGroup));
        group.largest.bits = static_cast<std::uint16_t>(word & 0xffffu);
        group.smallest.bits = static_cast<std::uint16_t>(word >> 16);
        window.scales[lane][me] = numeric::logfmt_scale(group);
        castable = window.scales[lane][me].castable;
      }
      const std::uint32_t cast = __ballot_sync(kWarp, castable);
      if (me != 0) continue;
      std::uint32_t at = window.next[lane];
      for (std::uint32_t b = 0; b < blocks; ++b) {
        const std::uint32_t mask = (groups_per_block == 8 ? 0xffu : 0xfu) << b * groups_per_block;
        const bool is_cast = (cast & mask) == mask;
        window.starts[lane][b] = at | (is_cast ? kCast : 0);
        at += shape.bytes_of(first_block + b, is_cast);
      }
      window.next[lane] = at;
    }
    __syncthreads();
    const std::uint32_t chunks = min(kWindow, shape.hidden - start) / 8;
    for (std::uint32_t first = warp * 32; first < chunks; first += blockDim.x) {
      const std::uint32_t chunk = min(first + me, chunks - 1);  // whole warps go on together
      const std::uint32_t channel = chunk * 8, block = channel / shape.block_channels;
      const std::uint32_t in_block = channel % shape.block_channels;
      const std::uint32_t unit = in_block / kLogfmtUnit, half = in_block % kLogfmtUnit / 8;
      const std::uint32_t count =
          min(kLogfmtUnit, shape.channels_of(first_block + block) - unit * kLogfmtUnit);
      Sum sum;
      for_answers(
          answer, levels,
          [&](int lane) {
            const std::byte* const row = collector.row_of(answer, lane);
            const float weight = __shfl_sync(kWarp, answer.weight, lane);
            const std::uint32_t place = window.starts[lane][block];
            const std::byte* const bytes = row + (place & ~kCast);
            float values[8];
            if ((place & kCast) == 0) {
              const std::byte* const from =
                  bytes + in_block * 2;  // rows start at any multiple of 4 bytes
              Bfloat16::widen(
                  {load_word(from), load_word(from + 4), load_word(from + 8), load_word(from + 12)},
                  values);
            } else {
              LogfmtBits bits;
              const std::byte* const from = bytes + numeric::logfmt_bytes(unit * kLogfmtUnit);
#pragma unroll
              for (int i = 0; i < 5; ++i)
                bits.words[i] = count == kLogfmtUnit || i < 3 ? load_word(from + 4 * i) : 0;
              const std::uint32_t signs = bits.signs(count) >> (8 * half);
              const numeric::LogfmtScale& scale =
                  window.scales[lane][channel / numeric::kGroupChannels];
#pragma unroll
              for (std::uint32_t i = 0; i < 8; ++i)
                values[i] = numeric::decode_logfmt(half == 0 ? bits.code(i) : bits.code(8 + i),
                                                   (signs >> i & 1) != 0, scale);
            }
            sum.add_weighted(values, weight, levels);
          },
          [&] { sum.end_level(); });
      if (first + me < chunks) out[start / 8 + chunk] = Bfloat16::narrow(sum.total);
    }
  }
  __syncthreads();
}

/// Warps may have seen different answers of a member that is being masked: what counts is what all
/// of them saw.
__device__ void agree(Answer& answer) {
  __shared__ std::uint32_t arrived;
  __syncthreads();
  if (threadIdx.x == 0) arrived = kWarp;
  __syncthreads();
  if (lane_id() == 0) atomicAnd(&arrived, answer.arrived);
  __syncthreads();
  answer.arrived = arrived;
}

template <CombineRowForm kForm>
__global__ void __launch_bounds__(kForm == CombineRowForm::log_fmt ? kDecodeThreads : kThreads, 1)
    combine_receive_impl(const __grid_constant__ AnswersReceive call) {
  begin_kernel(call.chained != 0);
  __shared__ bool masked[kMaxDeviceRanks];
  const DeviceGroup& group = call.group;
  for (auto member = static_cast<std::int32_t>(threadIdx.x); member < group.ranks;
       member += static_cast<std::int32_t>(blockDim.x))
    masked[member] = is_masked(group, member);
  Collector collector(call, masked);
  __syncthreads();
  collector.pass();
  if (blockIdx.x == 0) collector.check_agreement();
  const auto blocks = static_cast<std::int32_t>(gridDim.x);
  for (auto token = (static_cast<std::int32_t>(blockIdx.x) + blocks - 1) % blocks;
       token < call.tokens; token += blocks) {
    Answer answer = collector.wait(token);
    // Who measures has looked before the words are taken.
    if (kForm == CombineRowForm::log_fmt || group.mask_failed != 0 || call.wait_ns != nullptr)
      agree(answer);
    if constexpr (kForm == CombineRowForm::log_fmt) {
      __shared__ Window window;
      add_log_fmt(collector, call, answer, window, collector.out_row(token));
      collector.clear_rows(answer);
    } else {
      add_rows<kForm>(collector, call, answer, collector.out_row(token));
    }
  }
  collector.end();
  end_chained(call.chained != 0);
}

}  // namespace

void launch_answers_receive(const AnswersReceive& call, const Machine& machine,
                            cudaStream_t stream) {
  const std::int32_t most =
      machine.most_blocks > 0 ? machine.most_blocks : 2 * machine.multiprocessors;
  const auto blocks = static_cast<std::uint32_t>(std::min(call.tokens + 1, most));
  const auto chunks = static_cast<std::uint32_t>(call.sizes.hidden) / 8;
  // As few rounds of chunks as there must be, and as few threads as they then need.
  const std::uint32_t rounds = (chunks + kThreads - 1) / kThreads;
  const std::uint32_t threads = ((chunks + rounds - 1) / rounds + 31) / 32 * 32;
  switch (call.form) {
    case CombineRowForm::sums:
      return launch(combine_receive_impl<CombineRowForm::sums>, blocks, threads, 0, call, machine,
                    stream);
    case CombineRowForm::rows:
      return launch(combine_receive_impl<CombineRowForm::rows>, blocks, threads, 0, call, machine,
                    stream);
    case CombineRowForm::log_fmt:
      return launch(combine_receive_impl<CombineRowForm::log_fmt>, blocks, kDecodeThreads, 0, call,
                    machine, stream);
  }
}

void load_answers_receive() {
  load_kernel(combine_receive_impl<CombineRowForm::sums>);
  load_kernel(combine_receive_impl<CombineRowForm::rows>);
  load_kernel(combine_receive_impl<CombineRowForm::log_fmt>);
}

}  // namespace shoal::ep::cuda
