// SPDX-License-Identifier: Apache-2.0
// low_latency.hpp: low-latency mode on GPUs: four kernels, each a file.
//
//   dispatch: slots_send | slots_receive      combine: answers_send | answers_receive
//
// Send kernels do not wait for this operation of anybody else (but for the weights, where they come
// with combine), and between send and receive no SM is held (A9). Slots and answers exist twice, by
// parity of the epoch; a half is written again only after its reader has granted it (slots_read,
// answers_read).
#pragma once

#include "ep/cuda/group.hpp"
#include "ep/pending.hpp"

namespace shoal::ep::cuda {

/// The low-latency calls of a group; the arguments have been checked (ep/backend.hpp).
class LowLatency {
 public:
  explicit LowLatency(CudaGroup& group);
  ~LowLatency();

  std::shared_ptr<detail::PendingDispatchState> dispatch(const TensorView& x,
                                                         const TensorView& topk_idx,
                                                         const LowLatencyDispatchOptions& options);
  bool ready(const detail::PendingDispatchState& pending);
  LowLatencyReceived receive(detail::PendingDispatchState& base);

  std::shared_ptr<detail::PendingCombineState> combine(
      const TensorView& y, const TensorView& topk_idx, const TensorView& weights,
      const std::shared_ptr<const detail::LowLatencyHandleState>& base,
      const LowLatencyCombineOptions& options);
  bool ready(const detail::PendingCombineState& base);
  Tensor receive(detail::PendingCombineState& base);

  TensorView next_combine_buffer();

  std::vector<int> masked();
  void set_mask(std::int32_t rank, bool masked);
  void clear_masks();

  /// Loads the kernels, and allocates what the first calls would.
  void preload();

 private:
  LowLatencyReceived queue_receive(detail::PendingDispatchState& pending, bool behind_send);
  Tensor queue_receive(detail::PendingCombineState& base, bool behind_send);

  struct Parts;
  CudaGroup& group_;
  std::unique_ptr<Parts> parts_;
};

}  // namespace shoal::ep::cuda
