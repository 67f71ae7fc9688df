// SPDX-License-Identifier: Apache-2.0
// recorder.hpp: writes the record of a group.
//
// Cheap enough to be always on: an operation stores its entry's two cache lines and counts a bucket
// per phase. The clock is read at the start of every phase but the first.
#pragma once

#include <array>
#include <bit>
#include <chrono>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "record/pe_recorder.hpp"
#include "record/process_record.hpp"
#include "shoal/heap.hpp"

namespace shoal {
struct Settings;
}

namespace shoal::detail::record {

/// Counters of the kernels of a group since it began. Times are those of the steady clock.
struct KernelCounts {
  struct Totals {
    std::uint64_t operations = 0, rows = 0, bytes = 0;
  };
  struct Durations {
    Operation operation;
    Phase phase;
    std::uint64_t sum = 0;
    std::array<std::uint64_t, observe::Histogram::kBuckets> buckets{};
  };
  struct Peer {
    std::uint64_t rows = 0, bytes = 0, waits = 0, wait = 0;
    std::uint64_t network_rows = 0, network_bytes = 0;
  };
  struct Launch {
    Operation operation;
    std::uint64_t epoch = 0;
    std::vector<std::pair<Phase, std::uint64_t>> phases;  ///< at most LaunchBlock::kPhases
    std::uint64_t end = 0;
    std::uint64_t rows = 0, bytes = 0;  ///< of normal mode
  };
  struct Wait {
    std::int32_t rank = -1;  ///< none
    Operation operation = Operation::dispatch;
    Phase phase = Phase::none;
    std::uint64_t epoch = 0, since = 0;
  };
  std::array<Totals, kOperations> totals;
  std::vector<Durations> durations;
  std::vector<Peer> peers;                        ///< by rank
  std::vector<std::uint64_t> expert_rows;         ///< by local expert
  std::vector<Launch> launches;                   ///< at most kLaunchBlocks
  std::array<std::uint64_t, kOperations> done{};  ///< GroupBlock::kernels_done
  Wait wait;
};

class GroupRecorder {
 public:
  GroupRecorder() = default;
  /// `hosts`: of the ranks.
  GroupRecorder(const Settings& settings, PeRecorder& pe, Pe my_pe, std::int32_t rank,
                const std::vector<Pe>& pes, std::int64_t hosts, std::int64_t first_expert,
                std::int64_t local_experts);

  /// Begins an operation, whose epoch its first phase states. Returns what end() restores: an
  /// operation may run within another.
  Entry* begin(Operation operation, Time now) noexcept;
  /// Continues an operation that was `sent`.
  Entry* resume(Operation operation, std::uint64_t epoch, Time now) noexcept;
  /// Ends the current operation, or leaves it (State::sent).
  void end(State state, Time start, Time now, Entry* outer) noexcept;

  void phase(Phase phase, std::uint64_t epoch) noexcept;
  /// The call has queued its kernels, and ends. The phase `queued` begins; its histogram has the
  /// time of the call.
  void queue(std::uint64_t epoch, Time now) noexcept;
  void begin_wait(std::int32_t rank) noexcept {
    if (current_ != nullptr)
      current_->awaited.store((static_cast<std::uint64_t>(rank) + 1) | kWaiting);
  }
  void end_wait(std::int32_t rank, std::chrono::nanoseconds waited) noexcept;
  /// Rows of the current operation.
  void moved(std::uint64_t rows, std::uint64_t bytes) noexcept;
  /// The rows that the current operation moves at most, where its kernels alone know the number.
  void moves_at_most(std::uint64_t rows, std::uint64_t bytes) noexcept {
    if (current_ == nullptr) return;
    current_->rows.store(rows);
    current_->bytes.store(bytes);
  }
  /// Rows that a dispatch sent to a rank; `moved` counts them too.
  void sent_to(std::int32_t rank, std::uint64_t rows, std::uint64_t bytes) noexcept {
    if (!counts_) return;
    peers_[rank].rows.add(rows);
    peers_[rank].bytes.add(bytes);
  }
  /// Rows that a dispatch sent to a rank over a network.
  void sent_over_network(std::int32_t rank, std::uint64_t rows, std::uint64_t bytes) noexcept {
    if (!counts_) return;
    peers_[rank].network_rows.add(rows);
    peers_[rank].network_bytes.add(bytes);
  }
  /// Rows that an operation received for a local expert.
  void received(std::int64_t expert, std::uint64_t rows) noexcept {
    if (counts_) experts_[expert].add(rows);
  }
  /// From now on the kernels of the group count rows, waits and operations of these modes (show).
  void leave_counters_to_kernels(bool normal, bool low_latency) noexcept {
    kernels_count_ = {normal, normal, low_latency, low_latency};
  }
  /// Replaces the counters that are left to kernels; those of ranks and experts are added to what
  /// this recorder counts. Any thread, one at a time.
  void show(const KernelCounts& counts) noexcept;
  /// True if sent_to has an effect.
  bool counts_peers() const noexcept { return counts_; }
  /// Counters stand still while the library's own operations run.
  void set_counting(bool on) noexcept { counts_ = on && metrics_; }
  bool counting() const noexcept { return counts_; }
  /// GroupRecord::number; 0 without a record.
  std::uint64_t number() const noexcept { return group_ == nullptr ? 0 : group_->number.load(); }
  void set_failure(std::string_view reason) noexcept;

 private:
  void enter(Phase phase, Time now) noexcept;
  void end_phase(Time now) noexcept;

  Block block_;
  GroupBlock* group_ = nullptr;
  Entry* entries_ = nullptr;
  PeerBlock *peers_ = nullptr, *kernel_peers_ = nullptr;
  Word *experts_ = nullptr, *kernel_experts_ = nullptr;
  LaunchBlock* launches_ = nullptr;
  std::uint64_t n_entries_ = 0, begun_ = 0;
  bool metrics_ = false, counts_ = false, ranges_ = false;
  std::array<bool, kOperations> kernels_count_{};  ///< by Operation

  Entry* current_ = nullptr;
  Operation operation_ = Operation::dispatch;  ///< current
  Phase phase_ = Phase::none;
  std::uint32_t n_phases_ = 0;
  std::uint64_t phases_ = 0;
  Time phase_start_{};
  bool first_phase_ = false;  ///< the next phase starts where the call did
};

}  // namespace shoal::detail::record
