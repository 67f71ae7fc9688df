// SPDX-License-Identifier: Apache-2.0
// kernels.cuh: the kernels of low-latency mode and their parameters.
//
//   dispatch: slots_send | slots_receive      combine: answers_send | answers_receive
//
// Signals. A slot has a header that its source writes for every token and every member as soon as
// it knows the token's experts: for each the number of the row among those of the source. Beside
// the headers a source sends how many rows it has for each expert, so that a receiver finds the
// place of every row by itself while the rows are on their way. Packets and words carry the epoch
// and are written whole, so that nothing needs to be ordered behind them. A notice word says how
// many tokens there are (SlotNotice), another at the start of a combine how its member answers
// (AnswerNotice). The low bit of the epoch chooses the half.
//
// Rows tell of themselves: a word that is not kSentinel has come. No flag, no fence and no barrier
// stands between the stores of a row and who waits for it, and its beginning can be used while its
// end is on the way. Who has taken a word puts kSentinel back, which is what the grant of the half
// says. Two kinds of rows have a flag behind them instead (slot_ready, answer_flags): LogFMT-10,
// whose bits may be anything, and those of groups that leave failed members out, because nobody
// would take what such a member sends. A send whose receive is deferred raises flags too: the
// members that get its rows may ask `ready`.
//
// Halves of slots and answers are granted by the signals slots_read and answers_read. A receive
// that lies directly behind its send does not raise them: the next send does, when it begins, so
// that they cost the receive no fence.
//
// Epochs live in device memory: every kernel reads its own at the start, and a block advances it
// when all have read it.
#pragma once

#include <algorithm>

#include "ep/cuda/device/device.cuh"
#include "ep/cuda/device/divisor.cuh"
#include "shoal/ep/group.hpp"

namespace shoal::ep::cuda {

/// Tokens below which the words below hold them, and rows of all experts of a member by the size of
/// an index.
inline constexpr std::int64_t kMaxSlotTokens = 1 << 24;
inline constexpr std::int64_t kMaxLowLatencyRows =
    std::int64_t{1} << 31;  ///< local experts * ranks * tokens, below
inline constexpr std::int64_t kMaxLocalExperts = 1 << 15;  ///< numbers of local experts are int16
inline constexpr std::uint64_t kMaxAnswerChunks = std::uint64_t{1}
                                                  << 32;  ///< of 16 bytes, in both halves, below

/// Epoch (its low 32 bits), tokens, and what members must agree on. A member that has been masked
/// is told so.
struct SlotNotice {
  std::int32_t tokens;
  std::uint32_t quantize;
  bool has_weights, left_out;

  SHOAL_HOST_DEVICE constexpr std::uint64_t word(std::uint64_t epoch) const {
    return (epoch & 0xffff'ffffu) | std::uint64_t{static_cast<std::uint32_t>(tokens)} << 32 |
           std::uint64_t{quantize} << 56 | std::uint64_t{has_weights} << 60 |
           std::uint64_t{left_out} << 61;
  }
  SHOAL_HOST_DEVICE static constexpr SlotNotice of(std::uint64_t word) {
    return {static_cast<std::int32_t>(word >> 32 & 0xff'ffffu),
            static_cast<std::uint32_t>(word >> 56 & 0xfu), (word >> 60 & 1) != 0,
            (word >> 61 & 1) != 0};
  }
};

/// Sixteen bytes of a slot's header, about two top-k lanes.
struct SlotPacket {
  std::uint64_t low;  ///< epoch (its low 32 bits), the local experts (16 bits each; 0xffff:
                      ///< elsewhere or none)
  std::uint64_t
      high;  ///< the numbers of the rows (24 bits each); between them 8 bits of 1 + place, or 0

  SHOAL_HOST_DEVICE static constexpr SlotPacket of(std::uint64_t epoch, std::uint32_t place,
                                                   const std::int32_t (&expert)[2],
                                                   const std::uint32_t (&number)[2]) {
    return {(epoch & 0xffff'ffffu) | std::uint64_t{static_cast<std::uint16_t>(expert[0])} << 32 |
                std::uint64_t{static_cast<std::uint16_t>(expert[1])} << 48,
            number[0] | std::uint64_t{place} << 24 | std::uint64_t{number[1]} << 32};
  }
  /// 1 + the member's place among those that answer the token; 0: it has none of its experts.
  SHOAL_HOST_DEVICE constexpr std::uint32_t place() const {
    return static_cast<std::uint32_t>(high >> 24 & 0xffu);
  }
  SHOAL_HOST_DEVICE constexpr std::int32_t expert(std::uint32_t i) const {
    return static_cast<std::int16_t>(low >> (32 + 16 * i));
  }
  /// Among the rows of the source for that expert.
  SHOAL_HOST_DEVICE constexpr std::uint32_t number(std::uint32_t i) const {
    return static_cast<std::uint32_t>(high >> (32 * i) & 0xff'ffffu);
  }
};
static_assert(detail::kLanesPerPacket == 2);

using detail::CombineRowForm;  // members must agree on it

/// What a word of a row holds before it comes. Two bfloat16 NaNs with these bits travel as others
/// (low_latency_device).
inline constexpr std::uint32_t kSentinel = 0xffff'ffffu;

/// Epoch (low 32 bits), and what members must agree on: form, reduction, which dispatch is answered
/// (24 bits of its epoch), and whether weights travelled with that. It is the flag of an answer,
/// and the notice that a member sends at the start of a combine.
struct AnswerNotice {
  CombineRowForm form;
  bool exact, weights_travelled;
  std::uint64_t dispatch_epoch;

  static constexpr std::uint64_t kLeftOut = std::uint64_t{1}
                                            << 36;  ///< notices: the receiver has been masked

  SHOAL_HOST_DEVICE constexpr std::uint64_t word(std::uint64_t epoch) const {
    return (epoch & 0xffff'ffffu) | static_cast<std::uint64_t>(form) << 32 |
           std::uint64_t{exact} << 34 | std::uint64_t{weights_travelled} << 35 |
           (dispatch_epoch & 0xff'ffffu) << 40;
  }
};

/// One token of one source.
struct alignas(16) HandlePair {
  std::int32_t source, token;
  std::int32_t place;  ///< of this member among those that answer the token
  std::uint32_t
      lanes;  ///< top-k lanes whose experts are here, a bit each; 0: the token has none here
};

struct HandleHeader {
  std::uint64_t epoch;   ///< of the dispatch
  std::uint64_t serial;  ///< of the call: written behind epoch, when its send is complete
  std::int32_t pairs;    ///< of those that have been sent
};

/// The arrays of a handle in device memory.
struct HandleView {
  HandleHeader* header;
  HandlePair* pairs;   ///< [tokens][ranks]: of one token all sources together, from the one behind
                       ///< this member on
  std::int32_t* rows;  ///< [ranks][tokens][top_k]: index of the row among those of all local
                       ///< experts; where the pair has the lane
  float* weights;      ///< [ranks][tokens][top_k]: likewise; where weights travel with the dispatch
  std::int32_t* topk;  ///< [tokens][top_k] of this member's tokens; -1: none
};

/// A combine between send and receive, in device memory.
struct PendingHeader {
  std::uint64_t epoch, serial;  ///< as in HandleHeader
};
struct PendingView {
  PendingHeader* header;
  float* weights;  ///< [tokens][top_k], copied: the caller's may go before receive
};

/// What every kernel needs to know of the group's sizes.
struct Sizes {
  std::int32_t hidden, max_tokens;
};

struct SlotsSend {
  DeviceGroup group;
  Sizes sizes;
  const std::uint16_t* x;
  const void* topk_idx;
  std::uint32_t topk_is_64;
  const float* weights;  ///< or nullptr
  std::int32_t tokens;
  std::uint32_t quantize;
  std::uint32_t flags;  ///< a ready word behind every row
  HandleView handle;
  std::uint64_t serial;
};

struct SlotsReceive {
  DeviceGroup group;
  Sizes sizes;
  std::uint32_t quantize, has_weights;
  std::byte* x;
  void* scales;
  std::int32_t* counts;
  std::int32_t* source_token;
  std::int64_t* layout;
  std::int32_t* expert_counts;  ///< or nullptr
  std::int64_t* wait_ns;        ///< or nullptr
  std::uint64_t* longest_wait;  ///< [ranks], 0 between launches
  HandleView handle;
  Divisor by_tokens,
      by_slots;          ///< max_tokens, and that of all sources; with pieces set by the launch
  std::uint32_t pieces;  ///< of a row, that warps copy
  std::uint32_t grants;  ///< the kernel does not follow its send, and grants what it has read
  std::uint32_t
      chained;  ///< the kernel follows its send directly, and need not wait for its end to begin
};

struct AnswersSend {
  DeviceGroup group;
  Sizes sizes;
  const std::uint16_t* y;
  std::int64_t expert_stride, row_stride;  ///< of y, in elements
  const float* weights;
  std::int32_t tokens;
  CombineRowForm form;
  std::uint32_t exact, weights_travelled;
  std::uint32_t flags;  ///< a flag behind every answer
  std::uint64_t*
      longest_wait;  ///< where waits for weights count: as the receive has it; or nullptr
  HandleView handle;
  PendingView pending;
  std::uint64_t serial;
};

struct AnswersReceive {
  DeviceGroup group;
  Sizes sizes;
  std::uint16_t* out;
  std::int32_t tokens;
  CombineRowForm form;
  std::uint32_t exact, weights_travelled;
  std::int64_t* wait_ns;
  std::uint64_t* longest_wait;
  HandleView handle;
  PendingView pending;
  std::uint32_t grants, chained;  ///< as in SlotsReceive
};

/// Asks whether a receive would wait; the answer is `sequence * 2 + (yes ? 1 : 0)` in host memory.
struct Probe {
  DeviceGroup group;
  Sizes sizes;
  HandleView handle;
  PendingView pending;  ///< of a combine; header is nullptr for a dispatch
  std::uint64_t serial;
  std::int32_t tokens;
  CombineRowForm form;
  volatile std::uint64_t* answer;
  std::uint64_t sequence;
};

/// What bounds the blocks of a launch.
struct Machine {
  std::int32_t multiprocessors;
  std::int32_t most_blocks;    ///< Launch::sms, or a share of a GPU that members share; 0: no bound
  std::uint32_t shared_bytes;  ///< that a block can have
  bool dependent_launch;  ///< kernels may be set up before the one before them has ended (sm_90)
};

void launch_slots_send(const SlotsSend& call, const Machine& machine, cudaStream_t stream);
void launch_slots_receive(SlotsReceive& call, const Machine& machine, cudaStream_t stream);
void launch_answers_send(const AnswersSend& call, const Machine& machine, cudaStream_t stream);
void launch_answers_receive(const AnswersReceive& call, const Machine& machine,
                            cudaStream_t stream);
/// Of a block that sends LogFMT-10 rows, beside kLogfmtStaticBytes at most.
std::uint32_t log_fmt_shared_bytes(const DeviceGroup& group, std::int32_t hidden);
inline constexpr std::uint32_t kLogfmtStaticBytes = 1024;
void launch_probe(const Probe& call, cudaStream_t stream);

/// Loads a kernel, and lets it share an SM with the others: an SM is divided between cache and
/// shared memory alike for all of its blocks, and a kernel that wants another division waits until
/// the SM is empty.
template <typename Kernel>
void load_kernel(Kernel* kernel) {
  constexpr int kSharedPercent = 25;
  cudaFuncAttributes attributes{};
  (void)cudaFuncGetAttributes(&attributes, kernel);
  (void)cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                             kSharedPercent);
}

/// Make the driver load the kernels now: at their first launch it may wait for kernels of other PEs
/// on this GPU.
void load_slots_send();
void load_slots_receive();
void load_answers_send(const Machine& machine);
void load_answers_receive();
void load_probe();

}  // namespace shoal::ep::cuda
