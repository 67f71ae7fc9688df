// SPDX-License-Identifier: Apache-2.0
// backend.cpp: groups in GPU memory whose ranks NVLink does not join. A mode that has kernels for
// such ranks uses them where the world has a proxy; the other one is staged.
//
// All ranks choose the path of a mode alike, when the group opens: one PE without a
// proxy, or a heap without room, makes all ranks stage their rows.
#include "ep/cuda/backend.hpp"
#include "ep/cuda/group/kernel_recorder.hpp"
#include "ep/cuda/internode/kernels.hpp"
#include "ep/cuda/internode/report.hpp"
#include "ep/cuda/staged/call.hpp"

#include "base/check.hpp"
#include "heap/staging.hpp"
#include "team/exchange.hpp"

namespace shoal::ep::cuda {
namespace {

class InternodeBackend final : public detail::Backend {
 public:
  explicit InternodeBackend(GroupState& state)
      : state_(state), staging_(state), staged_(make_staged_backend(staging_)) {
    normal_ = &staged_->normal();
    low_latency_ = &staged_->low_latency();
  }

  detail::BlockPlan block_plan() const override { return staged_->block_plan(); }
  /// Describes the staged memory only. The blocks of kernels have maps of their own.
  std::vector<observe::MemoryRegion> regions() const override { return staged_->regions(); }
  void open() override {
    InternodeWays ways;
    ways.reason = open_kernels();
    if (!ways.reason.empty()) refuse_if_required(ways.reason);
    if (kernels_ && ways.reason.empty()) ways.reason = kernels_->why_not_normal;
    staged_->open();
    if (kernels_) use_kernels(ways);
    report_internode(state_.team, ways);
  }
  void release() override {
    if (kernels_) kernels_->release();
  }

  std::optional<std::int32_t> failed_rank() const override { return staged_->failed_rank(); }
  std::int32_t cause_of(std::int32_t failed) const override { return staged_->cause_of(failed); }
  std::optional<std::int32_t> ask_failed_rank() override {
    if (const auto failed = staged_->ask_failed_rank()) return failed;
    if (kernels_ && kernels_->normal)
      if (const auto failed = kernels_->normal->group.ask_failed_rank()) return failed;
    return kernels_ ? kernels_->group.ask_failed_rank() : std::nullopt;
  }

  void add_counts(Statistics& statistics) override {
    if (kernel_recorder_) kernel_recorder_->add_to(statistics);
  }
  void stop_counting() noexcept override {
    if (kernel_recorder_) kernel_recorder_->stop();
  }

  void warmup(Group& group) override {
    std::optional<PausedCounting> in_normal, in_low_latency;
    if (kernels_ && kernels_->normal) in_normal.emplace(kernels_->normal->group);
    if (kernels_) in_low_latency.emplace(kernels_->group);
    if (kernels_ && kernels_->low_latency) kernels_->low_latency->preload();
    staged_->warmup(group);  // makes the group's own calls
    synchronize_kernels();
  }
  Stream stream() const override { return staging_.stream; }
  void synchronize() override {
    staged_->synchronize();
    synchronize_kernels();
  }
  void drain() override {
    staged_->drain();
    if (kernels_) kernels_->drain();
  }
  bool captures(Stream stream) const noexcept override {
    return is_capturing(static_cast<cudaStream_t>(stream));
  }
  void order_after(Stream stream) noexcept override {
    if (kernels_ && kernels_->normal)
      kernels_->normal->group.order_after(static_cast<cudaStream_t>(stream));
    if (kernels_) kernels_->group.order_after(static_cast<cudaStream_t>(stream));
  }

 private:
  /// Takes the kernels into use if all ranks can; otherwise says why not.
  std::string open_kernels() {
    const auto reason = why_no_kernels(state_);
    const char mine = reason ? 1 : 0;
    std::int32_t rank = 0;
    for (const std::byte other :
         shoal::detail::exchange(state_of(state_.team), &mine, 1, "ep group kernels")) {
      if (other != std::byte{0})
        return reason.value_or(
            fmt::format("those of PE {} cannot; its log says why", state_.world_pe(rank)));
      ++rank;
    }
    auto kernels = std::make_unique<Kernels>(state_);
    try {
      kernels->open();
    } catch (const Error& error) {
      if (error.code() != Code::exhausted) throw;
      return error.what();
    }
    kernels_ = std::move(kernels);
    return {};
  }

  /// Gives the modes that have kernels to them. All calls without a stream of the caller come on
  /// that of low-latency kernels.
  void use_kernels(InternodeWays& ways) {
    CudaGroup& group = kernels_->group;
    staging_.stream = group.stream;
    ways.loads_lazily = group.loads_lazily && group.driver_moves_rows;
    if (kernels_->low_latency) {
      low_latency_ = &*kernels_->low_latency;
      ways.low_latency = group.network;
    }
    if (kernels_->normal) {
      CudaGroup& of_normal = kernels_->normal->group;
      of_normal.default_stream = group.stream;
      normal_ = &kernels_->normal->calls;
      ways.normal = of_normal.network;
      ways.loads_lazily |= group.loads_lazily && of_normal.driver_moves_rows;
    }
    count_kernels();
  }

  /// Makes the kernels count, those of low-latency mode only with SHOAL_METRICS=all.
  void count_kernels() {
    const std::string& metrics = state_.world->settings().metrics;
    const bool all = metrics == "all";
    if (metrics != "on" && !all) return;
    RecordedKernels counted{kernels_->normal ? &kernels_->normal->group : nullptr,
                            kernels_->low_latency ? &kernels_->group : nullptr,
                            all,
                            {kernels_->normal != nullptr, kernels_->remote_ranks}};
    if (counted.normal != nullptr || counted.low_latency != nullptr)
      kernel_recorder_.emplace(std::move(counted));
  }

  /// Returns the group's memory and throws, on all ranks, if the caller insists on kernels.
  void refuse_if_required(const std::string& reason) {
    if (state_.world->settings().ep_between_nodes != "kernels") return;
    release();
    shoal::detail::release_staging(*state_.world, state_.host_offset);
    fail(Code::unsupported,
         "SHOAL-N557: SHOAL_EP_BETWEEN_NODES is kernels, but this ep::Group cannot have them: {}; "
         "with automatic, its rows go through host memory",
         reason);
  }

  void synchronize_kernels() {
    if (kernels_ && kernels_->normal) kernels_->normal->group.synchronize();
    if (kernels_) kernels_->group.synchronize();
  }

  GroupState& state_;
  Staging staging_;
  const std::unique_ptr<detail::Backend> staged_;
  std::unique_ptr<Kernels> kernels_;
  std::optional<KernelRecorder> kernel_recorder_;
};

}  // namespace

std::unique_ptr<detail::Backend> make_internode_backend(GroupState& state) {
  return std::make_unique<InternodeBackend>(state);
}

}  // namespace shoal::ep::cuda
