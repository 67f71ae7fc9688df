// SPDX-License-Identifier: Apache-2.0
// source_waits.cuh: the waits of the receive of a low-latency dispatch for what its sources send.
#pragma once

#include "ep/cuda/low_latency/device/self_signalling.cuh"

namespace shoal::ep::cuda::dispatch_receive {

/// Source and call of a wait, for its report.
struct SourceWait {
  const DeviceGroup* group;
  const DispatchReceivePart* call;
  std::uint64_t epoch;
  std::int32_t source;
};

/// Waits until ready(notice). Returns false when the notice says that this will not happen, and
/// when the wait fails. kCounted: counts as a wait for the source.
template <bool kCounted = false, typename Ready>
__device__ bool wait_for(const SourceWait& wait, Ready&& ready) {
  const DeviceGroup& group = *wait.group;
  const std::uint64_t* const notice = dispatch_notice(group, group.me, wait.epoch, wait.source);
  if (is_masked(group, wait.source)) return false;
  std::uint64_t said = 0, waited = 0;
  bool here = false, masked = false;
  const bool came = wait_or_mask(
      group, wait.source, Phase::low_latency_dispatch_receive, kDispatchOperation, wait.epoch,
      [&] {
        said = ptx::ld_relaxed_sys_global(notice);
        if ((here = ready(said))) return true;
        // The source has masked this rank: its notice says so, or is already a later one.
        return masked = ahead_of(said, wait.epoch) > 0 ||
                        (is_epoch(said, wait.epoch) && DispatchNoticeWord::of(said).masked);
      },
      notice, kCounted || wait.call->wait_ns != nullptr ? &waited : nullptr);
  if (wait.call->wait_ns != nullptr) note_wait(wait.call->longest_wait, wait.source, waited);
  if constexpr (kCounted)
    count_first_wait(group, KernelKind::low_latency_dispatch_receive, wait.epoch, wait.source,
                     waited);
  if (masked)
    wait_failed(group, Fault::peer_failed, Phase::low_latency_dispatch_receive, kDispatchOperation,
                wait.source, wait.epoch, static_cast<std::uint32_t>(said));
  return came && here;
}

/// Waits for the header of a slot; false where the source has no such token. The lanes of a warp
/// have a packet each, or none.
__device__ inline __noinline__ bool wait_header(const SourceWait& wait, std::int32_t token,
                                                const std::byte* packet) {
  bool beyond = false;
  return wait_for(wait,
                  [&](std::uint64_t said) {
                    if (packet == nullptr || is_epoch(load_packet(packet).low, wait.epoch))
                      return true;
                    return beyond = is_epoch(said, wait.epoch) &&
                                    !DispatchNoticeWord::of(said).masked &&
                                    token >= DispatchNoticeWord::of(said).tokens;
                  }) &&
         !beyond;
}

/// Waits for the number of rows of a source for an expert; 0 where the source is masked.
__device__ inline __noinline__ std::uint32_t wait_count(const SourceWait& wait,
                                                        const std::uint64_t* at) {
  std::uint64_t word = 0;
  const bool came = wait_for(wait, [&](std::uint64_t) {
    return is_epoch(word = ptx::ld_relaxed_sys_global(at), wait.epoch);
  });
  return came ? static_cast<std::uint32_t>(word >> 32) : 0;
}

/// Waits for the notice of a source; 0 where it is masked.
template <bool kCounts>
__device__ __noinline__ std::uint64_t wait_notice(const SourceWait& wait) {
  std::uint64_t word = 0;
  wait_for<kCounts>(wait, [&](std::uint64_t said) {
    if (!is_epoch(said, wait.epoch) || DispatchNoticeWord::of(said).masked) return false;
    word = said;
    return true;
  });
  return word;
}

/// Waits for a ready word.
__device__ inline __noinline__ bool wait_ready(const SourceWait& wait, const std::uint64_t* word) {
  return wait_for(wait,
                  [&](std::uint64_t) { return ptx::ld_acquire_sys_global(word) >= wait.epoch; });
}

/// Waits for a word of a row.
__device__ inline __noinline__ std::uint32_t wait_word(const SourceWait& wait, const RowWait& rows,
                                                       const std::uint32_t* at) {
  std::uint32_t word = kSentinel;
  wait_for(wait, [&](std::uint64_t) {
    return (word = ptx::ld_relaxed_sys_global(at)) != kSentinel || disagreed(rows);
  });
  return word;
}

}  // namespace shoal::ep::cuda::dispatch_receive
