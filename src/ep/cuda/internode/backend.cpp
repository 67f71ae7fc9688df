// SPDX-License-Identifier: Apache-2.0
// backend.cpp: groups in GPU memory whose ranks NVLink does not join. A mode that has kernels for
// such ranks uses them where the world has a proxy; the other one is staged.
//
// Which way a mode goes is decided when the group opens, equally on all ranks: one PE without a
// proxy, or a heap without room, makes all ranks stage their rows.
#include "ep/cuda/backend.hpp"
#include "ep/cuda/group/kernel_recorder.hpp"
#include "ep/cuda/internode/kernels.hpp"

#include "base/check.hpp"
#include "base/log.hpp"
#include "heap/staging.hpp"
#include "team/exchange.hpp"

namespace shoal::ep::cuda {
namespace {

class InternodeBackend final : public detail::Backend {
 public:
  InternodeBackend(GroupState& state, std::unique_ptr<detail::Backend> staged)
      : state_(state), staged_(std::move(staged)) {}

  /// That of normal mode, which makes the routings.
  detail::BackendKind kind() const override {
    return normal() == nullptr ? staged_->kind() : detail::BackendKind::cuda;
  }
  detail::BlockPlan block_plan() const override { return staged_->block_plan(); }
  /// Of what is staged. The blocks of kernels have maps of their own.
  std::vector<observe::MemoryRegion> regions() const override { return staged_->regions(); }
  void open() override {
    detail::InternodeWays ways;
    ways.reason = open_kernels();
    if (!ways.reason.empty()) refuse_if_required(ways.reason);
    if (kernels_ && ways.reason.empty()) ways.reason = kernels_->why_not_normal;
    staged_->open();
    count_kernels();
    ways.normal = normal() != nullptr;
    ways.low_latency = low_latency() != nullptr;
    ways.normal_by_nic = ways.normal && kernels_->normal->group.network == NetworkPath::nic;
    ways.low_latency_by_nic = ways.low_latency && kernels_->group.network == NetworkPath::nic;
    ways.loads_lazily = kernels_ && kernels_->group.loads_lazily &&
                        (kernels_->group.driver_moves_rows ||
                         (kernels_->normal && kernels_->normal->group.driver_moves_rows));
    detail::report_internode(state_.team, ways);
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

  Routing route(const TensorView& topk_idx, const RouteOptions& options) override {
    if (normal() != nullptr) return normal()->route(topk_idx, on_stream(options));
    return staged_->route(topk_idx, on_stream(options));
  }
  void expand(const ExpandOptions& options) override {
    if (normal() != nullptr) return normal()->expand(on_stream(options));
    staged_->expand(on_stream(options));
  }
  void unpack(const Dispatched& received, const UnpackOptions& to) override {
    if (normal() != nullptr) return normal()->unpack(received, on_stream(to));
    staged_->unpack(received, on_stream(to));
  }
  Dispatched dispatch(const detail::DispatchCall& call) override {
    const DispatchOptions options = on_stream(call.options);
    if (normal() != nullptr)
      return normal()->dispatch({call.x, options, call.routing, call.cached});
    return staged_->dispatch({call.x, options, call.routing, call.cached});
  }
  Combined combine(const TensorView& y, const detail::HandleState& handle,
                   const CombineOptions& options) override {
    if (normal() != nullptr) return normal()->combine(y, handle, on_stream(options));
    return staged_->combine(y, handle, on_stream(options));
  }

  std::shared_ptr<detail::PendingDispatchState> low_latency_dispatch(
      const TensorView& x, const TensorView& topk_idx,
      const LowLatencyDispatchOptions& options) override {
    if (low_latency() == nullptr)
      return staged_->low_latency_dispatch(x, topk_idx, on_stream(options));
    kernels_->group.throw_failed();
    ++state_.statistics.low_latency_dispatches;
    return low_latency()->dispatch(x, topk_idx, options);
  }
  bool ready(const detail::PendingDispatchState& pending) override {
    return low_latency() == nullptr ? staged_->ready(pending) : low_latency()->ready(pending);
  }
  LowLatencyReceived receive(detail::PendingDispatchState& pending) override {
    return low_latency() == nullptr ? staged_->receive(pending) : low_latency()->receive(pending);
  }
  std::shared_ptr<detail::PendingCombineState> low_latency_combine(
      const TensorView& y, const TensorView& topk_idx, const TensorView& weights,
      const std::shared_ptr<const detail::LowLatencyHandleState>& handle,
      const LowLatencyCombineOptions& options) override {
    if (low_latency() == nullptr)
      return staged_->low_latency_combine(y, topk_idx, weights, handle, on_stream(options));
    kernels_->group.throw_failed();
    ++state_.statistics.low_latency_combines;
    return low_latency()->combine(y, topk_idx, weights, handle, options);
  }
  bool ready(const detail::PendingCombineState& pending) override {
    return low_latency() == nullptr ? staged_->ready(pending) : low_latency()->ready(pending);
  }
  Tensor receive(detail::PendingCombineState& pending) override {
    return low_latency() == nullptr ? staged_->receive(pending) : low_latency()->receive(pending);
  }
  TensorView next_combine_buffer() override {
    return low_latency() == nullptr ? staged_->next_combine_buffer()
                                    : low_latency()->next_combine_buffer();
  }
  std::vector<int> masked() const override {
    return low_latency() == nullptr ? staged_->masked() : low_latency()->masked();
  }
  void set_mask(std::int32_t rank, bool masked) override {
    low_latency() == nullptr ? staged_->set_mask(rank, masked)
                             : low_latency()->set_mask(rank, masked);
  }
  void clear_masks() override {
    low_latency() == nullptr ? staged_->clear_masks() : low_latency()->clear_masks();
  }

  /// Of low-latency mode, if it has kernels; of normal mode, as kind() says.
  bool queues(bool in_low_latency) const override {
    return in_low_latency ? low_latency() != nullptr : normal() != nullptr;
  }
  void add_counts(Statistics& statistics) override {
    if (kernel_recorder_) kernel_recorder_->add_to(statistics);
  }
  void stop_counting() noexcept override {
    if (kernel_recorder_) kernel_recorder_->stop();
  }

  void warmup(Group& group) override {
    std::optional<PausedCounting> in_normal, in_low_latency;
    if (normal() != nullptr) in_normal.emplace(kernels_->normal->group);
    if (kernels_) in_low_latency.emplace(kernels_->group);
    if (low_latency() != nullptr) low_latency()->preload();
    staged_->warmup(group);  // makes the group's own calls
    synchronize_kernels();
  }
  void* stream() const override { return kernels_ ? kernels_->group.stream : staged_->stream(); }
  void synchronize() override {
    staged_->synchronize();
    synchronize_kernels();
  }
  void drain() override {
    staged_->drain();
    if (kernels_) kernels_->drain();
  }
  void order_after(void* stream) noexcept override {
    staged_->order_after(stream);
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
         shoal::detail::exchange(state_.team.state(), &mine, 1, "ep group kernels")) {
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

  /// Makes the kernels count, those of low-latency mode only with SHOAL_METRICS=all.
  void count_kernels() {
    const std::string& metrics = state_.world->settings().metrics;
    const bool all = metrics == "all";
    if (!kernels_ || (metrics != "on" && !all)) return;
    RecordedKernels counted{normal() != nullptr ? &kernels_->normal->group : nullptr,
                            low_latency() != nullptr ? &kernels_->group : nullptr,
                            all,
                            {normal() != nullptr, kernels_->remote_ranks}};
    if (counted.normal != nullptr || counted.low_latency != nullptr)
      kernel_recorder_.emplace(std::move(counted));
  }

  Normal* normal() const {
    return kernels_ && kernels_->normal ? &kernels_->normal->calls : nullptr;
  }
  /// Where the caller insists on kernels: returns the group's memory and throws, on all ranks.
  void refuse_if_required(const std::string& reason) {
    if (state_.world->settings().ep_between_nodes != "kernels") return;
    release();
    shoal::detail::release_staging(*state_.world, state_.host_offset);
    fail(
        Code::unsupported,
        "SHOAL_EP_BETWEEN_NODES is kernels, but this ep::Group cannot have them: {}; with automatic, its rows go "
        "through host memory",
        reason);
  }

  LowLatency* low_latency() const {
    return kernels_ && kernels_->low_latency ? &*kernels_->low_latency : nullptr;
  }
  void synchronize_kernels() {
    if (kernels_ && kernels_->normal) kernels_->normal->group.synchronize();
    if (kernels_) kernels_->group.synchronize();
  }
  /// `options` for a call that is not of low-latency kernels: without a stream of the caller, on
  /// their stream.
  template <typename Options>
  Options on_stream(Options options) const {
    if (kernels_ && options.launch.stream == nullptr)
      options.launch.stream = kernels_->group.stream;
    return options;
  }

  GroupState& state_;
  std::unique_ptr<detail::Backend> staged_;
  std::unique_ptr<Kernels> kernels_;
  std::optional<KernelRecorder> kernel_recorder_;
};

}  // namespace

std::unique_ptr<detail::Backend> make_internode_backend(GroupState& state,
                                                        std::unique_ptr<detail::Backend> staged) {
  return std::make_unique<InternodeBackend>(state, std::move(staged));
}

}  // namespace shoal::ep::cuda
