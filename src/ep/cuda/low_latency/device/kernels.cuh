// SPDX-License-Identifier: Apache-2.0
// kernels.cuh: the kernels of low-latency mode: their parameters, what they leave in device memory
// for each other, and the words by which ranks agree.
//
//   dispatch_send | dispatch_receive        combine_send | combine_receive        probe
//               dispatch                                combine
//
// Signals. A slot has a header, which its source writes for every token at every rank as soon as it
// knows the token's experts: for each top-k slot the number of the row among the rows of that
// source for the expert. In addition to the headers, a source sends its number of rows for each
// expert, so that a receiver computes the place of every row while the rows are on their way. A
// notice word says how many tokens there are (DispatchNoticeWord); another, at the start of a
// combine, says in which form its rank sends combine rows (CombineNoticeWord). Packets and words
// carry the epoch and are written atomically, so nothing has to be ordered after them. The low bit
// of the epoch chooses the half.
//
// Rows have no signal, see self_signalling.cuh. A send whose receive is deferred raises flags all
// the same, because the ranks that get its rows may call `ready`; these flags may overtake the end
// of their row.
//
// Epochs live in device memory. Every kernel reads its own at the start; one block advances it when
// all blocks have read it.
#pragma once

#include <algorithm>
#include <type_traits>

#include "ep/cuda/device/combine_notice.hpp"
#include "ep/cuda/device/divisor.cuh"
#include "ep/cuda/device/group.cuh"
#include "ep/cuda/device/slots.cuh"
#include "ep/plan/row_format.hpp"
#include "shoal/ep/group.hpp"

namespace shoal::ep::cuda {

/// Tokens a rank, exclusive: DispatchNoticeWord and SlotPacket have 24 bits for them.
inline constexpr std::int64_t kMaxSlotTokens = 1 << 24;
/// local experts * ranks * tokens, exclusive: rows have 31-bit indices.
inline constexpr std::int64_t kMaxLowLatencyRows = std::int64_t{1} << 31;
/// SlotPacket holds local experts as int16.
inline constexpr std::int64_t kMaxLocalExperts = 1 << 15;
/// 16-byte chunks of combine rows in both halves, exclusive: they have 32-bit indices.
inline constexpr std::uint64_t kMaxCombineRowChunks = std::uint64_t{1} << 32;

/// The notice of a dispatch, one word: the epoch (low 32 bits), the number of tokens, and what
/// ranks must agree on. `masked` tells a rank that the sender has masked it.
struct DispatchNoticeWord {
  std::int32_t tokens;
  std::uint32_t quantize;
  bool has_weights, masked;

  SHOAL_HOST_DEVICE constexpr std::uint64_t word(std::uint64_t epoch) const {
    return (epoch & 0xffff'ffffu) | std::uint64_t{static_cast<std::uint32_t>(tokens)} << 32 |
           std::uint64_t{quantize} << 56 | std::uint64_t{has_weights} << 60 |
           std::uint64_t{masked} << 61;
  }
  SHOAL_HOST_DEVICE static constexpr DispatchNoticeWord of(std::uint64_t word) {
    return {static_cast<std::int32_t>(word >> 32 & 0xff'ffffu),
            static_cast<std::uint32_t>(word >> 56 & 0xfu), (word >> 60 & 1) != 0,
            (word >> 61 & 1) != 0};
  }
};

/// Sixteen bytes of a slot's header, for two top-k slots.
struct SlotPacket {
  std::uint64_t low;   ///< epoch (low 32 bits), two local experts of 16 bits; 0xffff: not here
  std::uint64_t high;  ///< two row numbers of 24 bits; between them 8 bits for has_row()

  SHOAL_HOST_DEVICE static constexpr SlotPacket of(std::uint64_t epoch, bool has_row,
                                                   const std::int32_t (&expert)[2],
                                                   const std::uint32_t (&number)[2]) {
    return {(epoch & 0xffff'ffffu) | std::uint64_t{static_cast<std::uint16_t>(expert[0])} << 32 |
                std::uint64_t{static_cast<std::uint16_t>(expert[1])} << 48,
            number[0] | std::uint64_t{has_row} << 24 | std::uint64_t{number[1]} << 32};
  }
  /// True if a row follows: the token has an expert at the receiver.
  SHOAL_HOST_DEVICE constexpr bool has_row() const { return (high >> 24 & 0xffu) != 0; }
  SHOAL_HOST_DEVICE constexpr std::int32_t expert(std::uint32_t i) const {
    return static_cast<std::int16_t>(low >> (32 + 16 * i));
  }
  /// The row's number among the rows of the source for that expert.
  SHOAL_HOST_DEVICE constexpr std::uint32_t number(std::uint32_t i) const {
    return static_cast<std::uint32_t>(high >> (32 * i) & 0xff'ffffu);
  }
};
static_assert(detail::kTopkSlotsPerPacket == 2);

using detail::CombineEncoding, detail::encoding_of, detail::is_encoded, detail::is_sums;

/// Value of each word of an empty row.
inline constexpr std::uint32_t kSentinel = 0xffff'ffffu;

/// One token of one source, as a dispatch leaves it for the combine.
struct alignas(16) HandlePair {
  std::int32_t source, token;
  std::uint32_t topk_slots;  ///< a bit for each of 32 top-k slots whose expert is here
};

struct HandleHeader {
  std::uint64_t epoch;   ///< of the dispatch
  std::uint64_t serial;  ///< of the call; written after `epoch`, when the send has begun
  std::int32_t pairs;    ///< entries of HandleView::pairs in use
  float global_scale;    ///< with which an NVFP4 dispatch was sent
};

/// The arrays of a handle, in device memory.
struct HandleView {
  HandleHeader* header;
  HandlePair* pairs;   ///< [tokens][ranks]; the sources of a token start after this rank
  std::int32_t* rows;  ///< [ranks][tokens][top_k]: row index over all local experts, where the pair
                       ///< has the top-k slot
  float* weights;      ///< [ranks][tokens][top_k], likewise, where weights travel with the dispatch
  /// [tokens][top_k]: the ranks of the experts of this rank's tokens, so that combines look up
  /// none; -1: none.
  std::int32_t* ranks;
  /// [tokens][ranks][kMostPerLane - 1]: bits of the top-k slots of a pair from 32 on; or nullptr.
  std::uint32_t* more_slots;
};

/// A combine between send and receive, in device memory.
struct PendingHeader {
  std::uint64_t epoch, serial;  ///< as in HandleHeader
};
struct PendingView {
  PendingHeader* header;
  float* weights;  ///< [tokens][top_k], a copy: the caller may free its own before the receive
};

/// The group's sizes that every kernel needs.
struct LowLatencySizes {
  std::int32_t hidden, max_tokens;
};

/// Rows of a dispatch as they travel: detail::RowFormat at the size of a group's rows. Rows of a
/// source that are shorter than slots lie closer than those.
struct WireRow {
  std::uint32_t chunks;        ///< of 16 bytes, in the row without its scales
  std::uint32_t scale_chunks;  ///< likewise, of its scales without the global one, which follows
  std::uint32_t scales;        ///< offset of the scales
  std::uint32_t bytes;         ///< of all of it
  std::uint32_t saving;        ///< what a slot has more, for each token of the source before it

  WireRow() = default;
  WireRow(Quantize quantize, std::int64_t hidden, std::size_t slot_bytes) {
    const detail::RowFormat format(quantize);
    const auto of_chunks = [](std::size_t n) {
      return static_cast<std::uint32_t>(n / detail::kWireChunk);
    };
    chunks = of_chunks(format.row_bytes(hidden));
    scale_chunks = of_chunks(format.global_at(hidden) - format.scales_at(hidden));
    scales = static_cast<std::uint32_t>(format.scales_at(hidden));
    bytes = static_cast<std::uint32_t>(format.wire_bytes(hidden));
    saving = format.quantized()
                 ? static_cast<std::uint32_t>(slot_bytes - align_up(format.wire_bytes(hidden), 128))
                 : 0;
  }
};

/// Encodings that have kernels of their own, so that each has few registers and little code.
enum class RowKind : std::uint32_t {
  wide,  ///< bfloat16, or float8 whose scales travel as float32
  mxfp8,
  nvfp4
};

template <RowKind kKind>
using RowKindOf = std::integral_constant<RowKind, kKind>;

/// Calls f with the kind of a Quantize, as a RowKindOf.
template <typename F>
auto for_row_kind(std::uint32_t quantize, F&& f) {
  if (quantize == static_cast<std::uint32_t>(Quantize::mxfp8))
    return f(RowKindOf<RowKind::mxfp8>());
  if (quantize == static_cast<std::uint32_t>(Quantize::nvfp4))
    return f(RowKindOf<RowKind::nvfp4>());
  return f(RowKindOf<RowKind::wide>());
}
/// Likewise, with each.
template <typename F>
void for_each_row_kind(F&& f) {
  f(RowKindOf<RowKind::wide>());
  f(RowKindOf<RowKind::mxfp8>());
  f(RowKindOf<RowKind::nvfp4>());
}

template <CombineRowForm kForm>
using CombineFormOf = std::integral_constant<CombineRowForm, kForm>;

/// Calls f with the form, as a CombineFormOf.
template <typename F>
auto for_combine_form(CombineRowForm form, F&& f) {
  switch (form) {
    case CombineRowForm::sums:
      return f(CombineFormOf<CombineRowForm::sums>());
    case CombineRowForm::rows:
      return f(CombineFormOf<CombineRowForm::rows>());
    case CombineRowForm::log_fmt_sums:
      return f(CombineFormOf<CombineRowForm::log_fmt_sums>());
    case CombineRowForm::log_fmt:
      return f(CombineFormOf<CombineRowForm::log_fmt>());
    case CombineRowForm::fp8_sums:
      return f(CombineFormOf<CombineRowForm::fp8_sums>());
    case CombineRowForm::fp8:
      return f(CombineFormOf<CombineRowForm::fp8>());
    case CombineRowForm::mxfp8_sums:
      return f(CombineFormOf<CombineRowForm::mxfp8_sums>());
    default:
      return f(CombineFormOf<CombineRowForm::mxfp8>());
  }
}
inline constexpr CombineRowForm kCombineForms[] = {
    CombineRowForm::sums,       CombineRowForm::rows,     CombineRowForm::log_fmt_sums,
    CombineRowForm::log_fmt,    CombineRowForm::fp8_sums, CombineRowForm::fp8,
    CombineRowForm::mxfp8_sums, CombineRowForm::mxfp8};

/// dispatch_send.cuh
struct LowLatencyDispatchSend {
  DeviceGroup group;
  LowLatencySizes sizes;
  const std::uint16_t* x;  ///< [tokens][hidden] bfloat16
  const void* topk_idx;    ///< [tokens][top_k] int64 or int32
  std::uint32_t topk_is_64;
  const float* weights;       ///< [tokens][top_k], or nullptr
  const float* global_scale;  ///< of nvfp4, or nullptr: 1
  std::int32_t tokens;
  std::uint32_t quantize;  ///< Quantize
  WireRow row;
  std::uint32_t flags;  ///< not 0: every row is followed by a ready word
  HandleView handle;
  std::uint64_t serial;
};

/// dispatch_receive.cuh: all but the group, which a joined launch has once. No cache has the
/// parameters of a launch, so that each line of them takes time.
struct DispatchReceivePart {
  LowLatencySizes sizes;
  std::uint32_t quantize, has_weights;
  WireRow row;
  const float* global_scale;  ///< of this rank, which sources must have too; nullptr: 1
  std::byte* x;
  std::uint32_t* scales;
  detail::ScaleWords scale_words;
  std::int32_t* counts;
  std::int32_t* source_token;
  std::int64_t* layout;
  std::int32_t* expert_counts;  ///< or nullptr
  std::int64_t* wait_ns;        ///< or nullptr
  std::uint64_t* longest_wait;  ///< [ranks], 0 between launches
  HandleView handle;
  Divisor by_tokens, by_slots;  ///< max_tokens, and ranks * max_tokens; set by the launcher
  std::uint32_t pieces;         ///< of a row, one a warp; set by the launcher
  std::uint32_t grants;  ///< not 0: the kernel does not follow its send and grants the half itself
  /// Not 0: the kernel follows its send and starts before the send has ended.
  std::uint32_t chained;
};
struct LowLatencyDispatchReceive : DispatchReceivePart {
  DeviceGroup group;
};

/// combine_send.cuh
struct LowLatencyCombineSend {
  DeviceGroup group;
  LowLatencySizes sizes;
  const std::uint16_t* y;
  std::int64_t expert_stride, row_stride;  ///< of y, in elements
  const float* weights;                    ///< [tokens][top_k] of this rank's tokens
  std::int32_t tokens;
  CombineRowForm form;
  std::uint32_t exact, weights_travelled;
  std::uint32_t unsummed;       ///< not 0: CombineNoticeWord::kUnsummed
  std::uint32_t keeps_weights;  ///< not 0: the receive is deferred and needs a copy of the weights
  std::uint32_t flags;          ///< not 0: every combine row is followed by a flag
  std::uint32_t split;  ///< log2 of the items into which a pair is divided; set by the launcher
  std::uint32_t parts;  ///< blocks that divide a sum, only without flags; set by the launcher
  std::uint64_t* longest_wait;  ///< as the receive has it, for waits for weights; or nullptr
  HandleView handle;
  PendingView pending;
  std::uint64_t serial;
};

/// The form of the rows that a send stores.
inline CombineRowForm sent_form(const LowLatencyCombineSend& call) {
  return call.unsummed != 0 ? detail::unsummed_form(call.form) : call.form;
}

/// combine_receive.cuh
struct LowLatencyCombineReceive {
  DeviceGroup group;
  LowLatencySizes sizes;
  std::uint16_t* out;  ///< [tokens][hidden] bfloat16; unsummed: [tokens][top_k][hidden]
  std::int32_t tokens;
  CombineRowForm form;
  std::uint32_t exact, weights_travelled;
  std::uint32_t unsummed;  ///< not 0: the rows are copied to `out`, which needs no weights
  const float* weights;    ///< of this rank's tokens, or the copy of them in `pending`; or nullptr
  std::int64_t* wait_ns;
  std::uint64_t* longest_wait;
  HandleView handle;
  PendingView pending;
  std::uint32_t grants, chained;  ///< as in LowLatencyDispatchReceive
  std::uint32_t parts;            ///< blocks that divide a token; set by the launcher
};

/// dispatch.cu: both, in one launch. The launcher sets the numbers of blocks. Of a group that
/// neither counts nor masks ranks.
struct LowLatencyDispatch {
  LowLatencyDispatchSend send;
  DispatchReceivePart receive;
  std::uint32_t send_blocks, receive_blocks;
};

/// combine.cu: likewise, of sums. The send has neither flags nor `unsummed`.
struct LowLatencyCombine {
  LowLatencyCombineSend send;
  LowLatencyCombineReceive receive;
  std::uint32_t send_blocks;  ///< those that receive follow
};

/// probe.cu: asks whether a receive would wait. The reply, in host memory, is
/// `sequence * 2 + (it would not ? 1 : 0)`.
struct LowLatencyProbe {
  DeviceGroup group;
  LowLatencySizes sizes;
  HandleView handle;
  PendingView pending;  ///< of a combine; header is nullptr for a dispatch
  std::uint64_t serial;
  std::int32_t tokens;
  CombineRowForm form;
  volatile std::uint64_t* reply;
  std::uint64_t sequence;
};

/// Limits of the number of blocks of a launch.
struct LowLatencyLimits {
  std::int32_t multiprocessors;
  std::int32_t most_blocks;  ///< Launch::sms, or a share of a GPU that ranks share; 0: no bound
  bool dependent_launch;     ///< kernels can be set up before the one in front has ended (sm_90)
};

void launch_low_latency_dispatch_send(const LowLatencyDispatchSend& call,
                                      const LowLatencyLimits& limits, cudaStream_t stream);
void launch_low_latency_dispatch_receive(LowLatencyDispatchReceive& call,
                                         const LowLatencyLimits& limits, cudaStream_t stream);
void launch_low_latency_combine_send(LowLatencyCombineSend& call, const LowLatencyLimits& limits,
                                     cudaStream_t stream);
void launch_low_latency_combine_receive(LowLatencyCombineReceive& call,
                                        const LowLatencyLimits& limits, cudaStream_t stream);
/// See joined.hpp for when one launch takes the place of two.
void launch_low_latency_dispatch(LowLatencyDispatch& call, const LowLatencyLimits& limits,
                                 cudaStream_t stream);
void launch_low_latency_combine(LowLatencyCombine& call, const LowLatencyLimits& limits,
                                cudaStream_t stream);
void launch_low_latency_probe(const LowLatencyProbe& call, cudaStream_t stream);

/// Loads a kernel and sets its shared-memory carve-out to that of the other kernels: an SM has one
/// division between cache and shared memory for all of its blocks, and a kernel that wants another
/// one waits until the SM is empty.
template <typename Kernel>
void load_kernel(Kernel* kernel) {
  constexpr int kSharedPercent = 25;
  cudaFuncAttributes attributes{};
  (void)cudaFuncGetAttributes(&attributes, kernel);
  (void)cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                             kSharedPercent);
}

/// Make the driver load the kernels now. At their first launch loading may wait for kernels of
/// other PEs on this GPU. `many_slots`: of a group with more top-k slots than a warp has lanes.
void load_low_latency_dispatch_send(bool many_slots);
void load_low_latency_dispatch_receive(bool many_slots);
void load_low_latency_combine_send(bool many_slots);
void load_low_latency_combine_receive(bool many_slots);
void load_low_latency_dispatch();
void load_low_latency_combine();
void load_low_latency_probe(bool many_slots);

/// The kernels of groups with more top-k slots than a warp has lanes: in files of their own, whose
/// device code is compressed, because few programs need it. `counted`: counts(call.group).
void (*many_slots_dispatch_send(bool counted, std::uint32_t quantize))(LowLatencyDispatchSend);
void (*many_slots_dispatch_receive(bool counted,
                                   std::uint32_t quantize))(LowLatencyDispatchReceive);
void (*many_slots_combine_send(bool counted, CombineRowForm form))(LowLatencyCombineSend);
/// `unsummed`: of LowLatencyCombineReceive.
void (*many_slots_combine_receive(bool counted, CombineRowForm form,
                                  bool unsummed))(LowLatencyCombineReceive);

}  // namespace shoal::ep::cuda
