// SPDX-License-Identifier: Apache-2.0
// forward.cuh: from an outbox to the block of its rank.
#pragma once

#include "ep/cuda/device/network.cuh"
#include "ep/cuda/low_latency/between_nodes.cuh"
#include "ep/cuda/low_latency/waits.cuh"

namespace shoal::ep::cuda {

/// The epoch of the last weights that `owner` has sent to rank `of` before its rows.
__device__ inline std::uint64_t* weights_sent(const DeviceGroup& group, std::int32_t of,
                                              std::int32_t owner) {
  return signal_at(group, of, group.layout.combine_read, owner) + 2;
}

/// The outbox of one remote rank. `Network`: ByProxy or ByNic.
template <class Network>
class Outbox {
 public:
  __device__ Outbox(const DeviceGroup& group, const RemoteRanks& remote, std::int32_t index)
      : group_(group), remote_(remote), rank_(remote.rank[index]), pe_(remote.pe[index]) {}

  __device__ std::int32_t rank() const { return rank_; }

  /// Starts to put `bytes` bytes of the outbox at `from`, and then, where it is not nullptr, the
  /// word `flag`.
  __device__ void put(const void* from, std::size_t bytes, const std::uint64_t* flag = nullptr) {
    if (bytes == 0) return;  // and no flag
    const bool has_flag = flag != nullptr;
    note(Network::start_put(remote_.world, target(from), from, bytes, pe_,
                            has_flag ? static_cast<const std::uint64_t*>(target(flag)) : nullptr,
                            has_flag ? ptx::ld_relaxed_sys_global(flag) : 0));
  }

  /// put() of each lane of a warp, all of which call; 0 bytes: none.
  __device__ void put_each(const void* from, std::size_t bytes) {
    note(Network::start_puts(remote_.world, target(from), from, bytes, pe_));
  }

  /// Sends a word, after everything that was put before.
  __device__ void signal(const std::uint64_t* word) {
    note(Network::start_signal(remote_.world, static_cast<const std::uint64_t*>(target(word)),
                               ptx::ld_relaxed_sys_global(word), pe_));
  }

  /// Sends those signals of this rank that have changed: grants, begun sends, failure.
  __device__ void signal_changes() {
    for (const std::size_t signals :
         {group_.layout.dispatch_read, group_.layout.combine_read, group_.layout.failed})
      for (int word = 0; word < 3; ++word)
        signal_change(signal_at(group_, rank_, signals, group_.me) + word);
  }
  /// The second half of the line remembers what was sent.
  __device__ void signal_change(std::uint64_t* word) {
    constexpr std::size_t kSent = kLine / sizeof(std::uint64_t) / 2;
    const std::uint64_t value = ptx::ld_relaxed_sys_global(word);
    if (value == word[kSent]) return;
    signal(word);
    word[kSent] = value;
  }

  /// Sends the weights of this rank's tokens for a combine, and signals that they are complete.
  __device__ void put_weights(const LowLatencySizes& sizes, std::int32_t tokens,
                              std::uint64_t epoch) {
    put(combine_weights(group_, sizes, rank_, epoch, group_.me),
        static_cast<std::size_t>(tokens) * group_.top_k * sizeof(std::uint64_t));
    std::uint64_t* const sent = weights_sent(group_, rank_, group_.me);
    *sent = epoch;
    signal_change(sent);
  }

  /// Whether the network took everything.
  __device__ bool ok() const { return ok_; }

 private:
  /// The address here that names the same place in the block of the rank.
  __device__ void* target(const void* in_outbox) const {
    return group_.block[group_.me] +
           (static_cast<const std::byte*>(in_outbox) - group_.block[rank_]);
  }
  __device__ void note(bool started) { ok_ = ok_ && started; }

  const DeviceGroup& group_;
  const RemoteRanks& remote_;
  const std::int32_t rank_;
  const Pe pe_;
  bool ok_ = true;
};

/// Calls f(remote rank, token of this lane, window) for every remote rank and all of `tokens`
/// tokens; a warp has 32 tokens at a time. Lanes beyond the end have token >= tokens.
template <typename F>
__device__ void for_windows(const RemoteRanks& remote, std::int32_t tokens, F&& f) {
  const std::int32_t windows = (tokens + 31) / 32;
  for (auto item = static_cast<std::int32_t>(threadIdx.x / 32); item < remote.count * windows;
       item += static_cast<std::int32_t>(blockDim.x / 32))
    f(item / windows, item % windows * 32 + static_cast<std::int32_t>(lane_id()));
}

}  // namespace shoal::ep::cuda
