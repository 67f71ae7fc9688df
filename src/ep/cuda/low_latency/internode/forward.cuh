// SPDX-License-Identifier: Apache-2.0
// forward.cuh: from an outbox to the block of its rank.
#pragma once

#include "ep/cuda/device/network.cuh"
#include "ep/cuda/low_latency/device/waits.cuh"
#include "ep/cuda/low_latency/internode/internode.cuh"

namespace shoal::ep::cuda {

/// The epoch of the last weights that `owner` has sent to rank `of` before its rows.
__device__ inline std::uint64_t* weights_sent(const DeviceGroup& group, std::int32_t of,
                                              std::int32_t owner) {
  return signal_at(group, of, group.layout.combine_read, owner) + 2;
}

/// Bytes of an outbox to put; 0: none.
struct Piece {
  const void* from = nullptr;
  std::size_t bytes = 0;
};

/// The outbox of one remote rank. `Network`: ByProxy or ByNic.
template <class Network>
class Outbox {
 public:
  __device__ Outbox(const DeviceGroup& group, const InternodeRanks& remote, std::int32_t index)
      : group_(group), remote_(remote), rank_(remote.rank[index]), pe_(remote.pe[index]) {}

  __device__ std::int32_t rank() const { return rank_; }

  /// Sends a signal of this rank if it has changed, after everything that was put before.
  __device__ void signal_change(std::uint64_t* word) {
    const std::uint64_t value = ptx::ld_relaxed_sys_global(word);
    if (value == word[kSent]) return;
    note(Network::start_signal(remote_.world, static_cast<const std::uint64_t*>(target(word)),
                               value, pe_));
    word[kSent] = value;
  }

  // All lanes of a warp call the others, in one post of the network.

  /// Starts the puts of all lanes, then sends the words that are not nullptr: they arrive after the
  /// puts, and after everything that was put before.
  __device__ void send_each(const Piece& piece, const std::uint64_t* word = nullptr) {
    const std::uint64_t value = word == nullptr ? 0 : ptx::ld_relaxed_sys_global(word);
    note(Network::start_each(
        remote_.world, piece.bytes == 0 ? nullptr : target(piece.from), piece.from, piece.bytes,
        pe_, word == nullptr ? nullptr : static_cast<const std::uint64_t*>(target(word)), value));
  }

  /// The same with those signals of this rank that have changed: grants, begun sends, failure.
  /// `notice`, the same for all lanes, is a word to send as well, unless it is nullptr. No rank may
  /// depend on the order of these words.
  __device__ void send_changes(const Piece& piece, const std::uint64_t* notice) {
    std::uint64_t* const signal = signal_of_lane();
    const std::uint64_t value = signal == nullptr ? 0 : ptx::ld_relaxed_sys_global(signal);
    const bool changed = signal != nullptr && value != signal[kSent];
    const std::uint64_t* const word =
        changed ? signal : (lane_id() == kNoticeLane ? notice : nullptr);
    if (__any_sync(kWarp, piece.bytes != 0 || word != nullptr)) send_each(piece, word);
    if (changed) signal[kSent] = value;
  }

  /// Sends the weights of this rank's tokens for a combine, and signals that they are complete.
  __device__ void send_weights(const LowLatencySizes& sizes, std::int32_t tokens,
                               std::uint64_t epoch) {
    std::uint64_t* const sent = weights_sent(group_, rank_, group_.me);
    const bool is_first = lane_id() == 0;
    if (is_first) *sent = epoch;
    Piece piece;
    if (is_first)
      piece = {combine_weights(group_, sizes, rank_, epoch, group_.me),
               static_cast<std::size_t>(tokens) * group_.top_k * sizeof(std::uint64_t)};
    send_each(piece, is_first ? sent : nullptr);
    if (is_first) sent[kSent] = epoch;
  }

  /// True if the network took everything.
  __device__ bool ok() const { return ok_; }

 private:
  /// The second half of the line of a signal remembers what was sent.
  static constexpr std::size_t kSent = kLine / sizeof(std::uint64_t) / 2;
  static constexpr std::uint32_t kWords = 3, kLines = 3;  ///< of signals, one for each lane
  static constexpr std::uint32_t kNoticeLane = kWords * kLines;

  __device__ std::uint64_t* signal_of_lane() const {
    const std::uint32_t lane = lane_id();
    if (lane >= kWords * kLines) return nullptr;
    const std::size_t line = lane < kWords       ? group_.layout.dispatch_read
                             : lane < 2 * kWords ? group_.layout.combine_read
                                                 : group_.layout.failed;
    return signal_at(group_, rank_, line, group_.me) + lane % kWords;
  }
  /// The address here that names the same place in the block of the rank.
  __device__ void* target(const void* in_outbox) const {
    return group_.block[group_.me] +
           (static_cast<const std::byte*>(in_outbox) - group_.block[rank_]);
  }
  __device__ void note(bool started) { ok_ = ok_ && started; }

  const DeviceGroup& group_;
  const InternodeRanks& remote_;
  const std::int32_t rank_;
  const Pe pe_;
  bool ok_ = true;
};

/// Calls f(remote rank, token of this lane, window) for every remote rank and all of `tokens`
/// tokens; a warp has 32 tokens at a time. Lanes beyond the end have token >= tokens.
template <typename F>
__device__ void for_windows(const InternodeRanks& remote, std::int32_t tokens, F&& f) {
  const std::int32_t windows = (tokens + 31) / 32;
  for (auto item = static_cast<std::int32_t>(threadIdx.x / 32); item < remote.count * windows;
       item += static_cast<std::int32_t>(blockDim.x / 32))
    f(item / windows, item % windows * 32 + static_cast<std::int32_t>(lane_id()));
}

}  // namespace shoal::ep::cuda
