// SPDX-License-Identifier: Apache-2.0
// pe_recorder.hpp: writes the record of a PE: what it does outside of groups.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <string_view>

#include "record/process_record.hpp"
#include "shoal/heap.hpp"

namespace shoal {
struct Settings;
}

namespace shoal::detail::record {

using Time = std::chrono::steady_clock::time_point;

class PeRecorder {
 public:
  PeRecorder() = default;
  PeRecorder(const Settings& settings, std::uint64_t world, Pe pe, Pe n_pes, std::string_view host);

  /// An operation outside of groups begins or, with `active` false, ends.
  void set(std::string_view activity, std::uint64_t epoch, bool active) noexcept;
  void set_awaited(Pe pe) noexcept;
  /// Why an operation outside of groups failed.
  void set_failure(std::string_view reason) noexcept;
  std::uint64_t world() const noexcept { return world_; }
  /// The number of the next group.
  std::uint64_t next_group() noexcept { return ++groups_; }

  // Any thread may count.

  /// True if collectives and waits count (SHOAL_METRICS is not off), and everything (all).
  bool counts() const noexcept { return counts_; }
  bool counts_all() const noexcept { return counts_all_; }
  /// `took`: 0 where it is not known.
  void count_collective(WorldOperation operation, std::uint64_t bytes,
                        std::chrono::nanoseconds took) noexcept;
  void count_failure(WorldOperation operation) noexcept;
  void count_wait(Pe pe, std::chrono::nanoseconds waited) noexcept;
  /// A one-sided operation, where all count.
  void count_one_sided(WorldOperation operation, Pe pe, std::uint64_t bytes) noexcept {
    if (counts_all_) [[unlikely]]
      add_one_sided(operation, pe, bytes);
  }

 private:
  WorldCountsBlock& counts_of(WorldOperation operation) noexcept;
  void add_one_sided(WorldOperation operation, Pe pe, std::uint64_t bytes) noexcept;

  std::uint64_t world_ = 0, groups_ = 0;
  bool counts_ = false, counts_all_ = false;
  Block block_;
  WorldPeerBlock* peers_ = nullptr;
};

/// Counts a collective call of its scope, as failed where an exception leaves the scope. Measures
/// its time only where all count, because two reads of the clock cost a good part of a barrier.
class CountedCollective {
 public:
  /// `bytes`: what this PE contributes.
  CountedCollective(PeRecorder& recorder, WorldOperation operation, std::uint64_t bytes = 0)
      : recorder_(recorder),
        operation_(operation),
        exceptions_(std::uncaught_exceptions()),
        bytes_(bytes) {
    if (recorder.counts_all()) start_ = std::chrono::steady_clock::now();
  }
  ~CountedCollective() {
    if (!recorder_.counts()) return;
    if (std::uncaught_exceptions() > exceptions_)
      recorder_.count_failure(operation_);
    else
      recorder_.count_collective(
          operation_, bytes_,
          recorder_.counts_all() ? std::chrono::steady_clock::now() - start_ : Time::duration{});
  }
  CountedCollective(const CountedCollective&) = delete;
  CountedCollective& operator=(const CountedCollective&) = delete;

 private:
  PeRecorder& recorder_;
  WorldOperation operation_;
  int exceptions_;
  std::uint64_t bytes_;
  Time start_{};
};

}  // namespace shoal::detail::record
