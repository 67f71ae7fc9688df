// SPDX-License-Identifier: Apache-2.0 internode.cuh: the additional kernels of low-latency mode in
// groups where loads and stores do not reach all ranks (ranks.hpp): their parameters and launchers.
//
//   send | forward_dispatch or forward_combine      wait_arrival | receive | forward_signals
//   forward_weights | wait_arrival, before the send of a combine that sums without deferring
//
// A forward puts what the send left in the outboxes, then signals: its notice tells a rank that all
// rows of the operation have arrived. wait_arrival waits for the notices, so the receive finds all
// remote rows in place, in whatever order the network wrote them.
#pragma once

#include "ep/cuda/low_latency/device/kernels.cuh"
#include "ep/cuda/low_latency/internode/ranks.hpp"

namespace shoal::ep::cuda {

/// forward.cu, after dispatch_send.cu.
struct LowLatencyForwardDispatch {
  DeviceGroup group;
  LowLatencySizes sizes;
  InternodeRanks remote;
  std::int32_t tokens;
  WireRow row;
  std::uint32_t has_weights, flags;
};

/// forward.cu, after combine_send.cu.
struct LowLatencyForwardCombine {
  DeviceGroup group;
  LowLatencySizes sizes;
  InternodeRanks remote;
  HandleView handle;
  CombineRowForm form;  ///< sent_form
  std::uint32_t flags;
  /// This rank's, whose weights go before its rows; 0: they are not wanted, or have been sent.
  std::int32_t weights_of_tokens;
};

/// forward.cu, before combine_send.cu.
struct LowLatencyForwardWeights {
  DeviceGroup group;
  LowLatencySizes sizes;
  InternodeRanks remote;
  HandleView handle;
  const float* weights;  ///< [tokens][top_k]
  std::int32_t tokens;
};

/// forward.cu, after a receive: grants, and word of a failure.
struct LowLatencyForwardSignals {
  DeviceGroup group;
  InternodeRanks remote;
};

/// Events for which wait_arrival.cu waits.
enum class Arrival : std::uint32_t {
  dispatch_grants,  ///< before a send, where ranks are masked
  combine_grants,
  combine_weights,  ///< before a send that sums with them
  dispatch,
  combine,
};

/// wait_arrival.cu
struct LowLatencyWaitArrival {
  DeviceGroup group;
  InternodeRanks remote;
  Arrival what;
  std::uint64_t* longest_wait;  ///< [ranks], as in the receive; or nullptr
};

void launch_low_latency_forward_dispatch(const LowLatencyForwardDispatch& call,
                                         const LowLatencyLimits& limits, cudaStream_t stream);
void launch_low_latency_forward_combine(const LowLatencyForwardCombine& call,
                                        const LowLatencyLimits& limits, cudaStream_t stream);
void launch_low_latency_forward_weights(const LowLatencyForwardWeights& call,
                                        const LowLatencyLimits& limits, cudaStream_t stream);
void launch_low_latency_forward_signals(const LowLatencyForwardSignals& call,
                                        const LowLatencyLimits& limits, cudaStream_t stream);
void launch_low_latency_wait_arrival(const LowLatencyWaitArrival& call,
                                     const LowLatencyLimits& limits, cudaStream_t stream);
void load_low_latency_forward();
void load_low_latency_wait_arrival();

}  // namespace shoal::ep::cuda
