// SPDX-License-Identifier: Apache-2.0
// low_latency.hpp: the low-latency calls of a group on GPUs.
//
// An operation is a send and a receive:
//   dispatch_send.cuh | dispatch_receive.cuh      combine_send.cuh | combine_receive.cuh
// Where the receive follows its send at once, they are one kernel for few tokens (dispatch.cu,
// combine.cu; Parts::joins), else a kernel each.
// A send waits for no other rank's part of the same operation, except for weights where those come
// with a combine that is not deferred. No SM is held between send and receive. Slots and combine
// rows exist twice, by parity of the epoch; a half is written again only when its reader has
// granted it (signals dispatch_read and combine_read).
#pragma once

#include "ep/cuda/group/group.hpp"
#include "ep/group/modes.hpp"

namespace shoal::ep::cuda {

enum class Arrival : std::uint32_t;
struct LowLatencyCombineSend;
struct LowLatencyDispatchSend;
struct InternodeRanks;

class LowLatency final : public detail::LowLatencyMode {
 public:
  /// `internode`: some ranks are out of reach of loads and stores; connect() names them.
  explicit LowLatency(CudaGroup& group, bool internode = false);
  ~LowLatency() override;

  std::shared_ptr<detail::PendingDispatchState> dispatch(
      const ConstTensorView& x, const ConstTensorView& topk_idx,
      const LowLatencyDispatchOptions& options) override;
  bool ready(const detail::PendingDispatchState& pending) override;
  LowLatencyReceived receive(detail::PendingDispatchState& base) override;

  std::shared_ptr<detail::PendingCombineState> combine(
      const ConstTensorView& y, const ConstTensorView& topk_idx, const ConstTensorView& weights,
      const std::shared_ptr<const detail::LowLatencyHandleState>& base,
      const LowLatencyCombineOptions& options) override;
  bool ready(const detail::PendingCombineState& base) override;
  Tensor receive(detail::PendingCombineState& base) override;

  TensorView next_combine_buffer() override;

  std::vector<int> masked() override;
  void set_mask(std::int32_t rank, bool masked) override;
  void clear_masks() override;

  /// For groups between nodes, before the first call: the ranks that kernels reach over the
  /// network. DeviceGroup::block has their outboxes.
  void connect(const InternodeRanks& remote);
  /// Allocates what the first calls would allocate.
  void preload();
  /// After preload: memory with the shape of an expert output, which holds anything.
  TensorView memory_of_results();
  /// After the last call: other groups on the GPU may be alone from now on (joined.hpp).
  void retire();

 private:
  /// The result of the dispatch `epoch`, without its handle.
  LowLatencyReceived make_result(std::uint64_t epoch, const LowLatencyDispatchOptions& options);
  // `joined`: the send, where it is part of the same launch.
  void queue_receive(const detail::PendingDispatchState& pending, bool behind_send,
                     const LowLatencyDispatchSend* joined);
  Tensor queue_receive(detail::PendingCombineState& base, const float* weights, bool behind_send,
                       const LowLatencyCombineSend* joined);
  // The additional kernels of groups with remote ranks (internode.cuh); no effect
  // in other groups.
  void wait_arrival(Arrival what, std::uint64_t* longest_wait, cudaStream_t on) const;
  void forward(const LowLatencyDispatchSend& sent, cudaStream_t on) const;
  void forward(const LowLatencyCombineSend& sent, cudaStream_t on) const;
  /// Decides whether the send sums between nodes, and exchanges the weights for that.
  void prepare_sums(LowLatencyCombineSend& send, bool deferred, cudaStream_t on) const;
  void forward_signals(cudaStream_t on) const;

  struct Parts;
  CudaGroup& group_;
  std::unique_ptr<Parts> parts_;
};

}  // namespace shoal::ep::cuda
