// SPDX-License-Identifier: Apache-2.0
// gpu_timed.hpp: the NIC on a GPU with a model of what its steps take: the dispatcher and each
// worker have clocks of their own, which their accesses to memory advance. For tests of rates.
//
// The times are those of an H200, rounded up. The model is coarse: lanes of a warp cost nothing
// beside each other, and a job takes the same time whatever its size.
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <limits>
#include <optional>
#include <vector>

#include "unit/emulator/gpu_nic.hpp"
#include "unit/emulator/gpu_outcomes.hpp"

namespace shoal::emulator::test {

/// Nanoseconds.
struct NicCosts {
  std::uint64_t access = 500;  ///< a load that others may have changed; a release
  std::uint64_t fence = 900, near_fence = 400;
  std::uint64_t collective = 250;  ///< one call of all lanes
  std::uint64_t job = 4500;        ///< copy of 8 KiB, with its fence
  std::uint64_t store = 2000;      ///< of it, after its data are there
  std::uint64_t poll = 600;        ///< between two looks of a worker
};

/// The dispatcher's: every access moves its clock, and `hook` lets the others catch up.
struct TimedDispatcherPlatform : gpu::HostPlatform {
  std::uint64_t* clock = nullptr;
  const NicCosts* costs = nullptr;
  const std::function<void()>* hook = nullptr;
  mutable bool has_accessed = false;  ///< lanes wait for their loads together

  template <typename Function>
  void lanes(std::uint32_t n, Function function) const {
    HostPlatform::lanes(n, function);
    end_collective();
  }
  template <typename Function>
  std::uint32_t mask(std::uint32_t n, Function function) const {
    const std::uint32_t bits = HostPlatform::mask(n, function);
    end_collective();
    return bits;
  }
  template <std::uint32_t kCount, typename Function>
  gpu::Masks<kCount> masks(std::uint32_t n, Function function) const {
    const auto masks = HostPlatform::masks<kCount>(n, function);
    end_collective();
    return masks;
  }
  template <typename Function>
  std::uint64_t sum(std::uint32_t n, Function function) const {
    const std::uint64_t sum = HostPlatform::sum(n, function);
    end_collective();
    return sum;
  }
  template <typename Function, typename Visitor>
  void scan(std::uint32_t n, Function function, Visitor visit) const {
    HostPlatform::scan(n, function, visit);
    end_collective();
  }
  template <typename Function>
  void one(Function function) const {
    function();
    end_collective();
  }
  template <typename Function>
  std::uint64_t ask(Function function) const {
    const auto value = static_cast<std::uint64_t>(function());
    end_collective();
    return value;
  }
  std::uint64_t load_word(const std::uint64_t* word) const {
    has_accessed = true;
    return HostPlatform::load_word(word);
  }
  void store_word(std::uint64_t* word, std::uint64_t value) const {
    has_accessed = true;
    HostPlatform::store_word(word, value);
  }
  std::uint64_t load_far(const std::uint64_t* word) const {
    has_accessed = true;
    return HostPlatform::load_far(word);
  }
  std::uint32_t load_record(const std::uint32_t* word) const {
    has_accessed = true;
    return HostPlatform::load_record(word);
  }
  template <typename T>
  T load(const std::byte* from) const {
    has_accessed = true;
    return HostPlatform::load<T>(from);
  }
  void fence() const { *clock += costs->fence; }
  void fence_near() const { *clock += costs->near_fence; }
  std::uint64_t now() const { return *clock; }

 private:
  void end_collective() const {
    *clock += costs->collective + (has_accessed ? costs->access : 0);
    has_accessed = false;
    (*hook)();
  }
};

/// A worker's: its job counts as done when its time has passed. While it waits for the jobs before
/// it, its data are on their way.
struct TimedWorkerPlatform : gpu::HostPlatform {
  struct Done {
    std::uint64_t at;
    std::uint64_t* word;
  };
  std::uint64_t clock = 0;
  const NicCosts* costs = nullptr;
  const gpu::JobRing* ring = nullptr;
  std::vector<Done>* done = nullptr;
  mutable std::uint64_t loading_since = 0;  ///< 0: not yet

  std::uint64_t load_word(const std::uint64_t* word) const {
    const auto at = reinterpret_cast<std::uintptr_t>(word),
               jobs = reinterpret_cast<std::uintptr_t>(ring->jobs);
    const bool is_counter = at - jobs >= ring->size * sizeof(gpu::Job);
    if (is_counter && loading_since == 0) loading_since = clock;
    return HostPlatform::load_word(word);
  }
  void count(std::uint64_t* word) const {
    const std::uint64_t loaded_at =
        (loading_since == 0 ? clock : loading_since) + costs->job - costs->store;
    done->push_back({std::max(loaded_at, clock) + costs->store, word});
    loading_since = 0;
  }
  std::uint64_t now() const { return clock; }
};

/// NIC a of `nics`, whose queue pair 0 always has writes of the same size to do.
class TimedNic {
 public:
  TimedNic(GpuNics& nics, const GpuShape& shape, std::uint32_t bytes, NicCosts costs = {})
      : nics_(nics),
        costs_(costs),
        writer_(nics.a.ring(), shape.blocks, GpuEnd::number(0)),
        blocks_(shape.blocks),
        bytes_(bytes),
        slots_(shape.bytes / std::max(bytes, 64U)) {
    hook_ = [this] { catch_up(); };
    platform_.clock = &clock_;
    platform_.costs = &costs_;
    platform_.hook = &hook_;
    pairs_.resize(1);
    for (std::uint32_t i = 0; i < shape.workers; ++i) {
      platforms_.push_back({});
      platforms_.back().costs = &costs_;
      platforms_.back().done = &done_;
      platforms_.back().ring = &nics.a.state().ring;
      workers_.emplace_back(nics.a.state().ring, platforms_.back());
    }
    gpu::begin(nics.a.state(), common_, 1, platform_);
    dispatcher_.emplace(nics.a.state(), common_, scratch_, pairs_.data(), 0, 1, platform_);
  }

  /// Bytes per nanosecond of `count` messages, without the first quarter.
  double rate(std::uint64_t count) {
    std::uint64_t quarter_at = 0;
    while (completed_ < count) {
      if (!dispatcher_->step()) return 0;
      if (completed_ >= count / 4 && quarter_at == 0) {
        quarter_at = clock_;
        quarter_ = completed_;
      }
      if (clock_ > kLimit) return 0;
    }
    return static_cast<double>((completed_ - quarter_) * bytes_) /
           static_cast<double>(clock_ - quarter_at);
  }

 private:
  static constexpr std::uint64_t kLimit = 1'000'000'000;

  void catch_up() {
    feed();
    for (;;) {
      std::size_t next = 0;
      for (std::size_t i = 1; i < platforms_.size(); ++i)
        if (platforms_[i].clock < platforms_[next].clock) next = i;
      const auto soonest = std::ranges::min_element(done_, {}, &TimedWorkerPlatform::Done::at);
      const std::uint64_t done_at =
          soonest == done_.end() ? std::numeric_limits<std::uint64_t>::max() : soonest->at;
      TimedWorkerPlatform& platform = platforms_[next];
      if (std::min(platform.clock, done_at) >= clock_) return;
      if (done_at <= platform.clock) {
        std::atomic_ref(*soonest->word).fetch_add(1);
        done_.erase(soonest);
        continue;
      }
      const bool worked = workers_[next].step() == gpu::WorkerState::worked;
      platform.clock = worked ? done_.back().at : platform.clock + costs_.poll;
    }
  }

  /// Takes completions and posts as much as fits.
  void feed() {
    while (nics_.a.poll().has_value()) ++completed_;
    if (posted_ - completed_ >= blocks_) return;
    for (; posted_ - completed_ < blocks_; ++posted_) {
      const std::size_t at = posted_ % slots_ * std::max(bytes_, 64U);
      write_op(writer_, {.opcode = Opcode::write, .local = at, .remote = at, .bytes = bytes_},
               {nics_.a.address(), nics_.b.address(), GpuEnd::key, GpuEnd::key, nics_.a.bytes()});
    }
    nics_.a.ring_doorbell(writer_.posted());
  }

  GpuNics& nics_;
  const NicCosts costs_;
  RequestWriter writer_;
  const std::uint64_t blocks_;
  const std::uint32_t bytes_;
  const std::size_t slots_;
  std::uint64_t clock_ = 1, posted_ = 0, completed_ = 0, quarter_ = 0;
  std::function<void()> hook_;
  gpu::Common common_;
  gpu::Scratch scratch_;
  std::vector<gpu::Pair> pairs_;
  TimedDispatcherPlatform platform_;
  std::optional<gpu::Dispatcher<TimedDispatcherPlatform>> dispatcher_;
  std::deque<TimedWorkerPlatform> platforms_;
  std::deque<gpu::Worker<TimedWorkerPlatform>> workers_;
  std::vector<TimedWorkerPlatform::Done> done_;
};

}  // namespace shoal::emulator::test
