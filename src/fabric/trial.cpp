// SPDX-License-Identifier: Apache-2.0
#include "fabric/trial.hpp"

#include <fmt/format.h>

#include "base/attempt.hpp"
#include "transport/heap_rma.hpp"
#include "transport/polled.hpp"
#include "transport/scoped_timeout.hpp"

namespace shoal::detail {
namespace {

/// In front of errors there.
constexpr const char* kGpuMemory =
    "in GPU memory (settings: SHOAL_VERBS_GPU_MEMORY, SHOAL_OFI_GPU_MEMORY): ";

/// Differs from what the trial of another network has left in the same place.
TrialArea made_for(Pe from, Pe to, std::uint8_t round) {
  TrialArea area;
  const auto pair = (std::uint64_t{round} + 1) << 56 | static_cast<std::uint64_t>(from) << 28 |
                    static_cast<std::uint64_t>(to);
  area.flag = pair;
  area.word = ~pair;
  for (std::size_t i = 0; i < area.block.size(); ++i) area.block[i] = pair + (i + 1) * 0x10001;
  return area;
}

class Trial {
 public:
  Trial(transport::Transport& network, Pe my_pe, std::span<const Pe> pes, std::size_t area,
        TrialMemory& memory)
      : network_(network),
        operations_(network.polled()),
        heap_(network.gpu_access().heaps),
        heap_area_(static_cast<std::size_t>(my_pe) * sizeof memory.from_heap[0]),
        pes_(pes),
        area_(area),
        memory_(memory),
        heap_reached_(pes.size()),
        reasons_(pes.size()) {}

  bool has_heap() const noexcept { return heap_ != nullptr; }

  /// Runs `start(i)` for every PE that has not failed, then waits for what it started. `where`
  /// precedes the errors.
  template <typename Start>
  void round(std::chrono::milliseconds limit, const char* where, Start&& start) {
    using transport::ScopedTimeout;
    const ScopedTimeout scope(limit, ScopedTimeout::Also::nothing);
    for (std::size_t i = 0; i < pes_.size(); ++i)
      if (reasons_[i].empty()) reasons_[i] = error_of(where, [&] { start(i); });
    // The error may be that of any PE; what has arrived shows which ones it concerns.
    const std::string error = error_of(where, [&] { network_.quiet(); });
    if (error_.empty()) error_ = error;
  }

  void put(std::size_t i) {
    const TrialArea& sent = memory_.sent[i];
    operations_.put_nbi(pes_[i], area_ + offsetof(TrialArea, block), &sent.block,
                        sizeof sent.block);
    operations_.put_nbi(pes_[i], area_ + offsetof(TrialArea, word), &sent.word, sizeof sent.word);
    operations_.signal(pes_[i], area_ + offsetof(TrialArea, flag), SignalOp::set, sent.flag);
  }
  void get(std::size_t i) {
    TrialArea& received = memory_.received[i];
    operations_.get_nbi(&received.block, pes_[i], area_ + offsetof(TrialArea, block),
                        sizeof received.block);
    operations_.get_nbi(&received.word, pes_[i], area_ + offsetof(TrialArea, word),
                        sizeof received.word);
    operations_.atomic_nbi(pes_[i], AtomicOp::add, area_ + offsetof(TrialArea, flag), 1, 0,
                           sizeof received.flag, &received.flag);
  }
  void put_to_heap(std::size_t i) {
    const auto& block = memory_.sent[i].block;
    heap_reached_[i] = heap_->reaches(pes_[i], heap_area_, &block, sizeof block);
    if (heap_reached_[i]) heap_->put_nbi(pes_[i], heap_area_, &block, sizeof block);
  }
  void get_from_heap(std::size_t i) {
    auto& block = memory_.from_heap[i];
    if (heap_reached_[i]) heap_->get_nbi(&block, pes_[i], heap_area_, sizeof block);
  }
  std::vector<std::string> reasons(std::chrono::milliseconds limit);

 private:
  template <typename Step>
  static std::string error_of(const char* where, Step&& step) {
    const auto error = attempt(step);
    return error ? fmt::format("{}{}", where, error->reason()) : std::string();
  }

  transport::Transport& network_;
  transport::PolledOperations& operations_;
  transport::HeapRma* const heap_;  ///< nullptr: it does not access heaps in GPU memory
  const std::size_t heap_area_;     ///< where this PE writes in the heaps of others
  const std::span<const Pe> pes_;
  const std::size_t area_;
  TrialMemory& memory_;
  std::vector<bool> heap_reached_;
  std::string error_;  ///< of a wait for all PEs
  std::vector<std::string> reasons_;
};

std::vector<std::string> Trial::reasons(std::chrono::milliseconds limit) {
  bool any = false;
  for (std::size_t i = 0; i < pes_.size(); ++i) {
    const TrialArea &sent = memory_.sent[i], &received = memory_.received[i];
    std::string& reason = reasons_[i];
    const bool wrong_put = received.block != sent.block || received.word != sent.word;
    const bool wrong_flag = received.flag != sent.flag;
    const bool wrong_heap = heap_reached_[i] && memory_.from_heap[i] != sent.block;
    if (reason.empty() && (wrong_put || wrong_flag || wrong_heap))
      reason = !error_.empty() ? error_
               : wrong_put     ? "a get did not return what a put had written"
               : wrong_flag
                   ? "an atomic did not return what a signal had set"
                   : std::string(kGpuMemory) + "a get did not return what a put had written";
    any = any || !reason.empty();
  }
  if (!any && !error_.empty()) reasons_.assign(pes_.size(), error_);
  for (std::string& reason : reasons_)
    if (!reason.empty())
      reason = fmt::format("its first operations failed (limit {} ms): {}", limit.count(), reason);
  return std::move(reasons_);
}

}  // namespace

std::vector<std::string> try_operations(transport::Transport& network, Pe my_pe, std::uint8_t round,
                                        std::span<const Pe> pes, std::size_t area,
                                        std::chrono::milliseconds limit, TrialMemory& memory) {
  for (std::size_t i = 0; i < pes.size(); ++i) memory.sent[i] = made_for(my_pe, pes[i], round);
  Trial trial(network, my_pe, pes, area, memory);
  const auto part = limit / (trial.has_heap() ? 4 : 2);
  trial.round(part, "", [&](std::size_t i) { trial.put(i); });
  trial.round(part, "", [&](std::size_t i) { trial.get(i); });
  if (trial.has_heap()) {
    trial.round(part, kGpuMemory, [&](std::size_t i) { trial.put_to_heap(i); });
    trial.round(part, kGpuMemory, [&](std::size_t i) { trial.get_from_heap(i); });
  }
  return trial.reasons(limit);
}

}  // namespace shoal::detail
