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
      : state_(state), group_(state), normal_calls_(group_), low_latency_calls_(group_) {
    normal_ = &normal_calls_;
    low_latency_ = &low_latency_calls_;
  }

  detail::BlockPlan block_plan() const override {
    const detail::DeviceLayout layout(state_.shape);
    return {.bytes = layout.total,
            .arena_bytes = layout.arena_bytes,
            .arena_results = static_cast<std::size_t>(state_.shape.live_results),
            .arena_transient = layout.stages_in_arena ? std::size_t{1} : 0};
  }
  std::vector<observe::MemoryRegion> regions() const override {
    return detail::regions_of(detail::DeviceLayout(state_.shape), state_.shape);
  }
  void open() override {
    group_.open();
    normal_calls_.open();
    const std::string& metrics = state_.world->settings().metrics;
    const bool all = metrics == "all";
    if (metrics == "on" || all)
      kernel_recorder_.emplace(RecordedKernels{&group_, &group_, all, {}});
  }
  /// failed_rank names none: the calls of this backend find out themselves.
  std::optional<std::int32_t> ask_failed_rank() override { return group_.ask_failed_rank(); }

  void warmup(Group& group) override {
    const PausedCounting paused(group_);
    warm_up(group, group_, low_latency_calls_);
  }
  void add_counts(Statistics& statistics) override {
    if (kernel_recorder_) kernel_recorder_->add_to(statistics);
  }
  void stop_counting() noexcept override {
    if (kernel_recorder_) kernel_recorder_->stop();
  }
  void release() override { low_latency_calls_.retire(); }
  Stream stream() const override { return group_.stream; }
  void synchronize() override { group_.synchronize(); }
  void drain() override { group_.drain(); }
  bool captures(Stream stream) const noexcept override {
    return is_capturing(static_cast<cudaStream_t>(stream));
  }
  void order_after(Stream stream) noexcept override {
    group_.order_after(static_cast<cudaStream_t>(stream));
  }

 private:
  GroupState& state_;
  CudaGroup group_;
  Normal normal_calls_;
  LowLatency low_latency_calls_;
  std::optional<KernelRecorder> kernel_recorder_;
};

}  // namespace

std::unique_ptr<detail::Backend> make_backend(detail::GroupState& state) {
  return std::make_unique<CudaBackend>(state);
}

}  // namespace shoal::ep::cuda
