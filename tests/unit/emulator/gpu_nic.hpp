// SPDX-License-Identifier: Apache-2.0
// gpu_nic.hpp: the NIC on a GPU (emulator/gpu/) in memory of this process, for tests: its steps in
// an order drawn from a seed and in virtual time, or by threads.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "gpu/dispatcher.hpp"
#include "gpu/host_platform.hpp"
#include "gpu/worker.hpp"
#include "mlx5/request_writer.hpp"
#include "rig.hpp"
#include "shoal/device/detail/gda/operations.hpp"
#include "transport/gda/host_platform.hpp"

namespace shoal::emulator::test {

namespace gda = device::gda;

/// Of the NIC's own threads. A hook runs between the accesses to what they share.
struct EnginePlatform : gpu::HostPlatform {
  const std::uint64_t* clock = nullptr;  ///< virtual time; nullptr: real
  const std::function<void()>* hook = nullptr;

  std::uint64_t now() const { return clock == nullptr ? HostPlatform::now() : *clock; }
  std::uint64_t load_word(const std::uint64_t* word) const {
    step();
    return HostPlatform::load_word(word);
  }
  void store_word(std::uint64_t* word, std::uint64_t value) const {
    step();
    HostPlatform::store_word(word, value);
    step();
  }
  void count(std::uint64_t* word) const {
    step();
    HostPlatform::count(word);
    step();
  }
  std::uint32_t load_record(const std::uint32_t* word) const {
    const std::uint32_t value = HostPlatform::load_record(word);
    step();
    return value;
  }
  void step() const {
    if (hook != nullptr) (*hook)();
  }
};

struct GpuShape {
  std::uint32_t blocks = 64;
  bool collapsed = false;
  Ordering ordering = Ordering::strict;
  std::uint32_t access = kAllAccess;   ///< of keys
  std::uint32_t granted = kAllAccess;  ///< by connections
  std::size_t bytes = 1 << 16;
  gpu::Timing timing{.owner_timeout = 0};
  std::uint32_t jobs = 64, workers = 3, dispatchers = 1;
};

/// A NIC, its memory, and its queue pairs.
class GpuEnd {
 public:
  GpuEnd(const GpuShape& shape, std::size_t pairs)
      : memory((shape.bytes + 7) / 8), shape_(shape), bytes_(shape.bytes), regions_(1) {
    for (std::size_t i = 0; i < pairs; ++i) lines_.push_back(std::make_unique<Line>(shape));
  }

  std::byte* bytes() { return reinterpret_cast<std::byte*>(memory.data()); }
  std::uint64_t address(std::size_t offset = 0) {
    return reinterpret_cast<std::uint64_t>(memory.data()) + offset;
  }
  static constexpr std::uint32_t key = gpu::kFirstKey << 8;

  /// Queue pair i of this end with that of `peer`. Then the NIC can start.
  void connect(GpuEnd& peer) {
    regions_[0] = {.key = key,
                   .domain = 1,
                   .access = shape_.access,
                   .address = address(),
                   .length = bytes_,
                   .memory = address()};
    peer_ = &peer;
    tables_ = {gpu::KeyTable{regions_.data(), 1, 0}, gpu::KeyTable{peer.regions_.data(), 1, 1}};
    for (std::size_t i = 0; i < lines_.size(); ++i) {
      Line& line = *lines_[i];
      completions_.push_back({reinterpret_cast<std::byte*>(line.entries.data()),
                              log_of(line.entries.size()), shape_.collapsed, true});
      configs_.push_back({.number = number(i),
                          .blocks = shape_.blocks,
                          .ring = reinterpret_cast<std::byte*>(line.ring.data()),
                          .record = &line.record.sends,
                          .completions = static_cast<std::uint32_t>(i),
                          .domain = 1,
                          .user_index = 77,
                          .ordering = shape_.ordering,
                          .table = 1,
                          .peer_number = number(i),
                          .peer_domain = 1,
                          .peer_access = shape_.granted,
                          .ended = &line.ended,
                          .peer_ended = &peer.lines_[i]->ended});
    }
    counters_.assign(lines_.size() * gpu::kWindow, 0);
    reports_.resize(lines_.size());
    jobs_.resize(shape_.jobs);
    saved_.resize(gpu::Dispatcher<EnginePlatform>::saved_bytes(lines_.size()));
    done_.assign(shape_.jobs, 0);
    state_ = {.timing = shape_.timing,
              .n_pairs = lines_.size(),
              .pairs = configs_.data(),
              .completions = completions_.data(),
              .tables = tables_.data(),
              .counters = counters_.data(),
              .reports = reports_.data(),
              .control = &control,
              .saved = saved_.data(),
              .ring = {}};
    state_.ring.jobs = jobs_.data();
    state_.ring.done = done_.data();
    state_.ring.size = shape_.jobs;
  }
  /// The NIC's threads see this platform.
  void start(const EnginePlatform& platform) {
    platform_ = platform;
    pairs_.resize(lines_.size());
    scratch_.resize(shape_.dispatchers);
    gpu::begin(state_, common, shape_.dispatchers, platform_);
    for (std::uint32_t i = 0; i < shape_.dispatchers; ++i)
      dispatchers.push_back(std::make_unique<gpu::Dispatcher<EnginePlatform>>(
          state_, common, scratch_[i], pairs_.data(), i, shape_.dispatchers, platform_));
    for (std::uint32_t i = 0; i < shape_.workers; ++i) workers.emplace_back(state_.ring, platform_);
  }

  /// The next kernel of a NIC with slices, after all dispatchers have closed: nothing is left of
  /// the last one but what it has saved.
  void go_on(std::uint64_t& clock) {
    for (bool is_open = true; is_open; clock += 100) {  // they may wait for each other
      is_open = false;
      for (std::size_t i = 0; i < workers.size(); ++i) is_open |= step_worker(i);
    }
    dispatchers.clear();
    workers.clear();
    has_ended_.clear();
    const auto forget = [](auto& object, std::size_t count) {
      std::memset(static_cast<void*>(&object), 0xa5, count * sizeof object);
    };
    forget(common, 1);
    forget(scratch_[0], scratch_.size());
    forget(pairs_[0], pairs_.size());
    gpu::resume(state_);
    start(platform_);
  }

  /// One step of a worker that has not ended. Whether it goes on.
  bool step_worker(std::size_t i) {
    has_ended_.resize(workers.size());
    if (!has_ended_[i]) has_ended_[i] = workers[i].step() == gpu::WorkerState::closed;
    return !has_ended_[i];
  }

  static std::uint32_t number(std::size_t i) { return static_cast<std::uint32_t>(100 + i); }
  std::byte* ring(std::size_t i = 0) {
    return reinterpret_cast<std::byte*>(lines_[i]->ring.data());
  }
  /// Makes `posted` blocks known to the NIC.
  void ring_doorbell(std::uint16_t posted, std::size_t i = 0) {
    std::atomic_ref(lines_[i]->record.sends)
        .store(mlx5::big(std::uint32_t{posted}), std::memory_order_release);
  }
  void end(gpu::Ended ended, std::size_t i = 0) {
    std::atomic_ref(lines_[i]->ended).store(static_cast<std::uint64_t>(ended));
  }
  /// So many queue pairs are known to the NIC; all are when it starts.
  void announce(std::uint64_t pairs) {
    std::atomic_ref(state_.n_pairs).store(pairs, std::memory_order_release);
  }
  const gpu::QueuePairReport& report(std::size_t i = 0) const { return reports_[i]; }
  gpu::Region& region() { return regions_[0]; }
  /// For dispatchers and workers of the caller's.
  gpu::NicState& state() { return state_; }

  /// The next entry of a completion queue, by owner bit.
  std::optional<Seen> poll(std::size_t i = 0) {
    Line& line = *lines_[i];
    mlx5::CompletionQueue queue{line.entries.data(), log_of(line.entries.size()), nullptr};
    mlx5::Completion completion;
    mlx5::HostBus bus;
    const std::uint32_t at = line.consumed & (static_cast<std::uint32_t>(line.entries.size()) - 1);
    if (!mlx5::next(queue, line.consumed, bus, completion)) return std::nullopt;
    const auto* const entry = reinterpret_cast<const std::byte*>(&line.entries[at]);
    EXPECT_EQ(completion.queue_pair, number(i));
    EXPECT_EQ(load_be<std::uint32_t>(entry + 32), 77u);
    return Seen{completion.failed ? CqeOpcode::request_error : CqeOpcode::request,
                static_cast<Syndrome>(completion.syndrome), completion.index,
                load_be<std::uint32_t>(entry + 44), 0};
  }
  std::uint8_t sent_opcode(std::uint32_t entry, std::size_t i = 0) const {
    return static_cast<std::uint8_t>(mlx5::big(lines_[i]->entries[entry].operation) >> 24);
  }

  /// Queue pair i as kernels use it.
  gda::Queue queue(std::size_t i = 0, std::uint32_t largest_message = 1 << 20) {
    Line& line = *lines_[i];
    gda::Queue queue;
    queue.sends = {line.ring.data(), shape_.blocks, number(i), &line.record.sends, &line.doorbell};
    queue.completions = {line.entries.data(), log_of(line.entries.size()), nullptr};
    queue.shared = &line.shared;
    queue.ordering = static_cast<gda::Ordering>(shape_.ordering);
    queue.batch = 4;
    queue.largest_message = largest_message;
    queue.sink = {address(bytes_ - 8), key};
    return queue;
  }
  gda::Source from(std::size_t offset, bool readable = true) {
    return {readable ? bytes() + offset : nullptr, {address(offset), key}};
  }
  mlx5::Memory at_peer(std::size_t offset) { return {peer_->address(offset), key}; }
  gda::Result result(std::size_t offset) { return {&memory[offset / 8], {address(offset), key}}; }
  std::uint64_t word(std::size_t offset) {
    return std::atomic_ref(memory[offset / 8]).load(std::memory_order_acquire);
  }

  std::vector<std::uint64_t> memory;
  gpu::Control control;
  gpu::Common common;
  std::vector<std::unique_ptr<gpu::Dispatcher<EnginePlatform>>> dispatchers;
  std::vector<gpu::Worker<EnginePlatform>> workers;

 private:
  struct Line {
    explicit Line(const GpuShape& shape)
        : ring(std::size_t{shape.blocks} * 4), entries(shape.collapsed ? 1 : shape.blocks) {
      for (mlx5::CompletionEntry& entry : entries)
        entry.index_state = mlx5::big(mlx5::kCompletionInvalid << 4);
    }
    std::vector<mlx5::Segment> ring;
    std::vector<mlx5::CompletionEntry> entries;
    mlx5::DoorbellRecord record{};
    std::uint64_t doorbell = 0, ended = 0;
    std::uint32_t consumed = 0;
    gda::Shared shared;
  };
  static std::uint32_t log_of(std::size_t size) {
    return static_cast<std::uint32_t>(std::countr_zero(size));
  }

  GpuShape shape_;
  std::size_t bytes_;
  GpuEnd* peer_ = nullptr;
  std::vector<std::unique_ptr<Line>> lines_;
  std::vector<gpu::Region> regions_;
  std::array<gpu::KeyTable, 2> tables_;
  std::vector<gpu::CompletionQueueConfig> completions_;
  std::vector<gpu::QueuePairConfig> configs_;
  std::vector<std::uint64_t> counters_, done_;
  std::vector<gpu::QueuePairReport> reports_;
  std::vector<gpu::Job> jobs_;
  std::vector<std::byte> saved_;
  gpu::NicState state_;
  std::vector<gpu::Scratch> scratch_;
  std::vector<gpu::Pair> pairs_;
  std::vector<bool> has_ended_;  ///< by worker
  EnginePlatform platform_;
};

/// Two connected NICs.
class GpuNics {
 public:
  explicit GpuNics(const GpuShape& shape, std::size_t pairs = 1)
      : a(shape, pairs), b(shape, pairs) {
    a.connect(b);
    b.connect(a);
  }
  GpuEnd a, b;
};

/// Steps of both NICs in a random order, each of which takes some virtual time. Steps of workers
/// and of other dispatchers happen inside those of a dispatcher.
class RandomSteps {
 public:
  RandomSteps(GpuNics& nics, std::uint64_t seed) : nics_(nics), random_(seed) {
    hook_ = [this] {
      if (random_() % 4 == 0) worker_step();
      if (depth_ < 3 && random_() % 8 == 0) dispatcher_step();
    };
    for (GpuEnd* end : {&nics_.a, &nics_.b}) {
      EnginePlatform platform;
      platform.clock = &clock;
      platform.hook = &hook_;
      end->start(platform);
      states_[end].resize(end->dispatchers.size());
    }
  }

  void run() {
    clock += random_() % 200;
    if (random_() % 3 != 0) return worker_step();
    if (depth_ == 0) dispatcher_step();
  }
  /// Until `done` holds, for at most `limit` of virtual time. Whether it does.
  bool run_until(const std::function<bool()>& done, std::uint64_t limit = 1'000'000'000) {
    const std::uint64_t end = clock + limit;
    while (clock < end) {
      if (done()) return true;
      run();
    }
    return false;
  }

  std::uint64_t clock = 1;
  bool has_stopped = false;
  int slices = 0;  ///< that have ended

 private:
  enum class State : std::uint8_t { idle, in_step, closed };

  GpuEnd& draw_end() { return random_() % 4 == 0 ? nics_.b : nics_.a; }

  void worker_step() {
    if (in_worker_) return;
    in_worker_ = true;
    GpuEnd& end = draw_end();
    end.step_worker(random_() % end.workers.size());
    in_worker_ = false;
  }

  void dispatcher_step() {
    if (in_worker_) return;
    GpuEnd& end = draw_end();
    const std::size_t i = random_() % end.dispatchers.size();
    State& state = states_[&end][i];
    if (state != State::idle) return;
    state = State::in_step;
    ++depth_;
    const bool goes_on = end.dispatchers[i]->step();
    if (!goes_on) end.dispatchers[i]->close();
    --depth_;
    state = goes_on ? State::idle : State::closed;
    if (goes_on || std::ranges::count(states_[&end], State::closed) <
                       static_cast<std::ptrdiff_t>(end.dispatchers.size()))
      return;
    if (end.control.stopped != 0) {
      has_stopped = true;
      return;
    }
    ++slices;
    EXPECT_EQ(nics_.a.control.slices + nics_.b.control.slices, static_cast<std::uint64_t>(slices));
    in_worker_ = true;  // hooks of these steps run no others
    end.go_on(clock);
    in_worker_ = false;
    std::ranges::fill(states_[&end], State::idle);
  }

  GpuNics& nics_;
  std::mt19937_64 random_;
  std::function<void()> hook_;
  std::map<GpuEnd*, std::vector<State>> states_;
  int depth_ = 0;  ///< steps of dispatchers inside each other
  bool in_worker_ = false;
};

/// A client of queues beside random steps, in the same thread.
struct RandomClient : gda::HostPlatform {
  explicit RandomClient(RandomSteps& beside) : steps(beside) {}

  void store_record(std::uint32_t* word, std::uint32_t value) {
    steps.run();
    HostPlatform::store_record(word, value);
    steps.run();
  }
  std::uint64_t load(const std::uint64_t* word) { return HostPlatform::load(word); }
  std::uint32_t load_entry(const std::uint32_t* word) {
    const std::uint32_t value = HostPlatform::load_entry(word);
    steps.run();
    return value;
  }
  std::uint64_t now() const { return steps.clock; }
  void pause() { steps.run(); }

  RandomSteps& steps;
};

/// Both NICs by threads, until this object ends.
class NicThreads {
 public:
  explicit NicThreads(GpuNics& nics) : nics_(nics) {
    for (GpuEnd* end : {&nics.a, &nics.b}) {
      end->start({});
      for (auto& dispatcher : end->dispatchers)
        threads_.emplace_back([&dispatcher] {
          while (dispatcher->step()) std::this_thread::yield();
          dispatcher->close();
        });
      for (gpu::Worker<EnginePlatform>& worker : end->workers)
        threads_.emplace_back([&worker] {
          for (gpu::WorkerState state{}; state != gpu::WorkerState::closed;) {
            state = worker.step();
            if (state == gpu::WorkerState::waiting) std::this_thread::yield();
          }
        });
    }
  }
  ~NicThreads() { stop(); }
  void stop() {
    for (GpuEnd* end : {&nics_.a, &nics_.b})
      std::atomic_ref(end->control.stop).store(1, std::memory_order_release);
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

 private:
  GpuNics& nics_;
  std::vector<std::thread> threads_;
};

}  // namespace shoal::emulator::test
