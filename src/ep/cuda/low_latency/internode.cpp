// SPDX-License-Identifier: Apache-2.0
// internode.cpp: the additional launches of groups with remote ranks.
#include "ep/cuda/low_latency/low_latency.hpp"
#include "ep/cuda/low_latency/parts.hpp"

namespace shoal::ep::cuda {
void LowLatency::connect(const InternodeRanks& remote) {
  parts_->remote = remote;
}

void LowLatency::wait_arrival(Arrival what, std::uint64_t* longest_wait, cudaStream_t on) const {
  if (parts_->remote.count == 0) return;
  launch_low_latency_wait_arrival({parts_->device(), parts_->remote, what, longest_wait},
                                  parts_->limits, on);
}

void LowLatency::forward(const LowLatencyDispatchSend& sent, cudaStream_t on) const {
  if (parts_->remote.count == 0) return;
  launch_low_latency_forward_dispatch({sent.group, sent.sizes, parts_->remote, sent.tokens,
                                       sent.row, sent.weights != nullptr ? 1U : 0U, sent.flags},
                                      parts_->limits, on);
}

void LowLatency::prepare_sums(LowLatencyCombineSend& send, bool deferred, cudaStream_t on) const {
  if (parts_->remote.count == 0 || !is_sums(send.form) || send.weights_travelled != 0) return;
  send.unsummed = detail::sends_unsummed(false, deferred, group_.device.mask_failed != 0) ? 1 : 0;
  if (send.unsummed != 0) return;
  launch_low_latency_forward_weights(
      {send.group, send.sizes, parts_->remote, send.handle, send.weights, send.tokens},
      parts_->limits, on);
  wait_arrival(Arrival::combine_weights, send.longest_wait, on);
}

void LowLatency::forward(const LowLatencyCombineSend& sent, cudaStream_t on) const {
  if (parts_->remote.count == 0) return;
  launch_low_latency_forward_combine(
      {sent.group, sent.sizes, parts_->remote, sent.handle, sent_form(sent), sent.flags,
       sent.unsummed != 0 ? sent.tokens : 0},
      parts_->limits, on);
}

void LowLatency::forward_signals(cudaStream_t on) const {
  if (parts_->remote.count == 0) return;
  launch_low_latency_forward_signals({parts_->device(), parts_->remote}, parts_->limits, on);
}

}  // namespace shoal::ep::cuda
