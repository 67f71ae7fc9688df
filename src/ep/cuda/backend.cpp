// SPDX-License-Identifier: Apache-2.0
#include "ep/cuda/backend.hpp"

#include <optional>

#include "ep/cuda/group/kernel_recorder.hpp"
#include "ep/cuda/layout/regions.hpp"
#include "ep/cuda/low_latency/low_latency.hpp"
#include "ep/cuda/normal/normal.hpp"
#include "ep/cuda/warmup.hpp"

namespace shoal::ep::cuda {
namespace {

class CudaBackend final : public detail::Backend {
 public:
  explicit CudaBackend(GroupState& state)
      : state_(state), group_(state), normal_(group_), low_latency_(group_) {}

  detail::BackendKind kind() const override { return detail::BackendKind::cuda; }
  detail::BlockPlan block_plan() const override {
    const detail::DeviceLayout layout(state_.shape);
    return {.bytes = layout.total,
            .arena_bytes = layout.arena_bytes,
            .arena_results = static_cast<std::size_t>(state_.shape.live_results)};
  }
  std::vector<observe::MemoryRegion> regions() const override {
    return detail::regions_of(detail::DeviceLayout(state_.shape), state_.shape);
  }
  void open() override {
    group_.open();
    normal_.open();
    const std::string& metrics = state_.world->settings().metrics;
    const bool all = metrics == "all";
    if (metrics == "on" || all)
      kernel_recorder_.emplace(RecordedKernels{&group_, &group_, all, {}});
  }
  std::optional<std::int32_t> failed_rank() const override {
    return std::nullopt;  // the calls of this backend find out themselves
  }
  std::optional<std::int32_t> ask_failed_rank() override { return group_.ask_failed_rank(); }

  Routing route(const TensorView& topk_idx, const RouteOptions& options) override {
    return normal_.route(topk_idx, options);
  }
  void expand(const ExpandOptions& options) override { normal_.expand(options); }
  void unpack(const Dispatched& received, const UnpackOptions& to) override {
    normal_.unpack(received, to);
  }
  Dispatched dispatch(const detail::DispatchCall& call) override { return normal_.dispatch(call); }
  Combined combine(const TensorView& y, const detail::HandleState& handle,
                   const CombineOptions& options) override {
    return normal_.combine(y, handle, options);
  }

  std::shared_ptr<detail::PendingDispatchState> low_latency_dispatch(
      const TensorView& x, const TensorView& topk_idx,
      const LowLatencyDispatchOptions& options) override {
    group_.throw_failed();
    ++state_.statistics.low_latency_dispatches;
    return low_latency_.dispatch(x, topk_idx, options);
  }
  bool ready(const detail::PendingDispatchState& pending) override {
    return low_latency_.ready(pending);
  }
  LowLatencyReceived receive(detail::PendingDispatchState& pending) override {
    return low_latency_.receive(pending);
  }
  std::shared_ptr<detail::PendingCombineState> low_latency_combine(
      const TensorView& y, const TensorView& topk_idx, const TensorView& weights,
      const std::shared_ptr<const detail::LowLatencyHandleState>& handle,
      const LowLatencyCombineOptions& options) override {
    group_.throw_failed();
    ++state_.statistics.low_latency_combines;
    return low_latency_.combine(y, topk_idx, weights, handle, options);
  }
  bool ready(const detail::PendingCombineState& pending) override {
    return low_latency_.ready(pending);
  }
  Tensor receive(detail::PendingCombineState& pending) override {
    return low_latency_.receive(pending);
  }
  TensorView next_combine_buffer() override { return low_latency_.next_combine_buffer(); }
  std::vector<int> masked() const override { return low_latency_.masked(); }
  void set_mask(std::int32_t rank, bool masked) override { low_latency_.set_mask(rank, masked); }
  void clear_masks() override { low_latency_.clear_masks(); }

  void warmup(Group& group) override {
    const PausedCounting paused(group_);
    warm_up(group, group_, low_latency_);
  }
  bool queues(bool) const override { return true; }
  void add_counts(Statistics& statistics) override {
    if (kernel_recorder_) kernel_recorder_->add_to(statistics);
  }
  void stop_counting() noexcept override {
    if (kernel_recorder_) kernel_recorder_->stop();
  }
  void* stream() const override { return group_.stream; }
  void synchronize() override { group_.synchronize(); }
  void drain() override { group_.drain(); }
  void order_after(void* stream) noexcept override {
    group_.order_after(static_cast<cudaStream_t>(stream));
  }

 private:
  GroupState& state_;
  CudaGroup group_;
  Normal normal_;
  mutable LowLatency low_latency_;
  std::optional<KernelRecorder> kernel_recorder_;
};

}  // namespace

std::unique_ptr<detail::Backend> make_backend(detail::GroupState& state) {
  return std::make_unique<CudaBackend>(state);
}

}  // namespace shoal::ep::cuda
