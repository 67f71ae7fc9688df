// SPDX-License-Identifier: Apache-2.0
// gda_queue.hpp: shared send queues on the emulated NIC, for tests: tasks that post to them, and
// ways to run tasks alongside the engine.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/nic.hpp"
#include "shoal/device/detail/gda/operations.hpp"
#include "support/fiber_context.hpp"
#include "support/gda/host_platform.hpp"
#include "wire/virtual_network.hpp"

namespace shoal::emulator::test {

namespace gda = device::gda;

constexpr std::uint32_t kAllAccess =
    Access::local_write | Access::remote_write | Access::remote_read | Access::remote_atomic;

struct QueueShape {
  std::uint32_t blocks = 16;
  bool collapsed = true;
  std::uint32_t batch = 4, largest_message = 1 << 20;
  Ordering ordering = Ordering::strict;
  std::uint8_t ack_timeout = 14, retries = 7;
};

/// Queues of NIC 0, and the memory of both ends. The tasks share only memory with the engine.
class SharedQueues {
 public:
  static constexpr std::size_t kWords = 1 << 16;

  explicit SharedQueues(const QueueShape& shape, std::size_t queues = 1,
                        const NetworkOptions& options = {})
      : network(options), local(kWords), remote(kWords) {
    key = register_memory(network.nic(0), local);
    remote_key = register_memory(network.nic(1), remote);
    for (std::size_t i = 0; i < queues; ++i) lines_.push_back(make(shape));
  }

  gda::Queue& queue(std::size_t i = 0) { return lines_[i]->queue; }
  std::uint64_t doorbells(std::size_t i = 0) {
    return network.nic(0).find(queue(i).sends.number)->counters().doorbells;
  }
  QueuePair& pair(std::size_t i = 0) { return *lines_[i]->pair; }
  mlx5::Memory at_peer(std::size_t word) const { return {address(remote, word), remote_key}; }
  gda::Source from(std::size_t word, bool readable = true) const {
    const auto* const bytes = reinterpret_cast<const std::byte*>(&local[word]);
    return {readable ? bytes : nullptr, {address(local, word), key}};
  }
  gda::Result result(std::size_t word) const { return {&local[word], {address(local, word), key}}; }
  std::uint64_t seen(std::size_t word) {
    return std::atomic_ref(remote[word]).load(std::memory_order_acquire);
  }

  /// The engine: looks at the doorbells, then runs for `time`.
  void serve(Time time) {
    for (auto& line : lines_) {
      if (deaf) break;
      const std::uint64_t doorbell =
          std::atomic_ref(line->doorbell).load(std::memory_order_acquire);
      if (doorbell == line->answered) continue;
      line->answered = doorbell;
      network.doorbell(0, line->queue.sends.number);
    }
    network.run_until([] { return false; }, network.now() + time);
  }

  VirtualNetwork network;
  std::vector<std::uint64_t> local, remote;
  std::uint32_t key = 0, remote_key = 0;
  std::atomic<bool> deaf = false;  ///< does not look at doorbells

 private:
  struct Line {
    std::vector<mlx5::Segment> ring;
    std::vector<mlx5::CompletionEntry> entries;
    mlx5::DoorbellRecord record{};
    std::uint64_t doorbell = 0, answered = 0;
    gda::Shared shared;
    gda::Queue queue;
    std::shared_ptr<QueuePair> pair, peer;
  };

  static std::uint64_t address(const std::vector<std::uint64_t>& memory, std::size_t word) {
    return reinterpret_cast<std::uint64_t>(&memory[word]);
  }
  static std::uint32_t register_memory(Nic& nic, std::vector<std::uint64_t>& memory) {
    return nic.keys().create({.domain = 1,
                              .address = address(memory, 0),
                              .length = memory.size() * 8,
                              .memory = reinterpret_cast<std::byte*>(memory.data()),
                              .access = kAllAccess});
  }
  std::unique_ptr<Line> make(const QueueShape& shape) {
    auto line = std::make_unique<Line>();
    line->ring.resize(std::size_t{shape.blocks} * 4);
    const std::uint32_t entries = shape.collapsed ? 1 : shape.blocks;
    line->entries.resize(entries);
    // Drivers leave the same: nothing but the state says that an entry is unused.
    for (mlx5::CompletionEntry& entry : line->entries)
      entry.index_state = mlx5::big(mlx5::kCompletionInvalid << 4);
    Nic& nic = network.nic(0);
    const auto made =
        nic.create_completion_queue({.entries = reinterpret_cast<std::byte*>(line->entries.data()),
                                     .size = entries,
                                     .collapsed = shape.collapsed,
                                     .ignore_overrun = true});
    line->pair = nic.create_queue_pair(
                        {.domain = 1,
                         .send_completions = made.object,
                         .ring = {reinterpret_cast<std::byte*>(line->ring.data()), shape.blocks},
                         .doorbell_record = reinterpret_cast<std::byte*>(&line->record)})
                     .object;
    line->peer = network.nic(1).create_queue_pair({.domain = 1}).object;
    connect(*line->pair, *line->peer, shape, 2);
    connect(*line->peer, *line->pair, shape, 1);
    gda::Queue& queue = line->queue;
    queue.sends = {line->ring.data(), shape.blocks, line->pair->number(), &line->record.sends,
                   &line->doorbell};
    std::uint32_t log_size = 0;
    while ((1U << log_size) < entries) ++log_size;
    queue.completions = {line->entries.data(), log_size, nullptr};
    queue.shared = &line->shared;
    queue.ordering = static_cast<gda::Ordering>(shape.ordering);
    queue.batch = shape.batch;
    queue.largest_message = shape.largest_message;
    queue.sink = {address(local, kWords - 1), key};
    queue.peer = 7;
    return line;
  }
  static void connect(QueuePair& pair, const QueuePair& peer, const QueueShape& shape,
                      std::uint16_t lid) {
    const Connection connection{.remote_lid = lid,
                                .remote_qp = peer.number(),
                                .ack_timeout = shape.ack_timeout,
                                .retry_count = shape.retries,
                                .access = kAllAccess,
                                .ordering = shape.ordering};
    for (const QpState state : {QpState::init, QpState::ready_to_receive, QpState::ready_to_send})
      ASSERT_EQ(pair.modify(state, connection), Status::ok);
  }

  std::vector<std::unique_ptr<Line>> lines_;
};

/// Runs tasks alongside the engine. A task calls step() before each access to what is shared.
class Runner {
 public:
  virtual ~Runner() = default;
  virtual void run(SharedQueues& queues, std::size_t tasks,
                   const std::function<void(std::size_t)>& body) = 0;
  virtual void step(bool waits) = 0;
  /// Nanoseconds, of deadlines.
  virtual std::uint64_t now() = 0;
};

/// A platform that waits as a runner wants it.
struct PlainPlatform : gda::HostPlatform {
  explicit PlainPlatform(Runner& on) : runner(on) {}

  std::uint64_t now() { return runner.now(); }
  void pause() { runner.step(true); }

  Runner& runner;
};

/// A platform whose steps a runner interleaves.
struct TestPlatform : PlainPlatform {
  using PlainPlatform::PlainPlatform;

  void store_record(std::uint32_t* word, std::uint32_t value) {
    runner.step(false);
    HostPlatform::store_record(word, value);
  }
  void ring(std::uint64_t* doorbell, std::uint64_t value) {
    runner.step(false);
    HostPlatform::ring(doorbell, value);
  }
  std::uint32_t load_entry(const std::uint32_t* word) {
    runner.step(false);
    const std::uint32_t value = HostPlatform::load_entry(word);
    runner.step(false);
    return value;
  }
  std::uint64_t load(const std::uint64_t* word) {
    const std::uint64_t value = HostPlatform::load(word);
    runner.step(false);
    return value;
  }
  std::uint64_t peek(const std::uint64_t* word) {
    const std::uint64_t value = HostPlatform::peek(word);
    runner.step(false);
    return value;
  }
  void store(std::uint64_t* word, std::uint64_t value) {
    runner.step(false);
    HostPlatform::store(word, value);
    runner.step(false);
  }
  std::uint64_t add(std::uint64_t* word, std::uint64_t value) {
    runner.step(false);
    const std::uint64_t before = HostPlatform::add(word, value);
    runner.step(false);
    return before;
  }
  std::uint64_t load_early(const std::uint64_t* word) { return load(word); }
  bool try_lock_early(std::uint64_t* word) {
    runner.step(false);
    return HostPlatform::try_lock_early(word);
  }
  bool replace(std::uint64_t* word, std::uint64_t& seen, std::uint64_t value) {
    runner.step(false);
    return HostPlatform::replace(word, seen, value);
  }
  void raise(std::uint64_t* word, std::uint64_t value) {
    runner.step(false);
    HostPlatform::raise(word, value);
  }
  void order_requests() { runner.step(false); }
};

/// Threads alongside the engine, which this thread runs.
class Threads : public Runner {
 public:
  explicit Threads(std::uint64_t seed) : seed_(seed) {}

  void run(SharedQueues& queues, std::size_t tasks,
           const std::function<void(std::size_t)>& body) override {
    std::atomic<std::size_t> running = tasks;
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < tasks; ++i)
      threads.emplace_back([&, i] {
        random().seed(seed_ * 1000 + i);
        body(i);
        --running;
      });
    while (running != 0) {
      queues.serve(std::chrono::microseconds(5));
      std::this_thread::yield();
    }
    for (std::thread& thread : threads) thread.join();
  }
  void step(bool waits) override {
    if (waits || random()() % 16 == 0) std::this_thread::yield();
  }
  std::uint64_t now() override { return gda::HostPlatform{}.now(); }

 private:
  static std::minstd_rand& random() {
    thread_local std::minstd_rand random;
    return random;
  }
  std::uint64_t seed_;
};

/// Tasks as fibers of this thread, in an order drawn from `seed`. One step in `one_in` lets another
/// task run. Some tasks are held for a long time.
class Fibers : public Runner {
 public:
  explicit Fibers(std::uint64_t seed, unsigned one_in = 4) : random_(seed), one_in_(one_in) {}

  void run(SharedQueues& queues, std::size_t tasks,
           const std::function<void(std::size_t)>& body) override {
    queues_ = &queues;
    body_ = &body;
    running_ = this;
    constexpr std::size_t kStackBytes = 256 << 10;
    fibers_.clear();
    fibers_.resize(tasks);
    for (Fiber& fiber : fibers_) {
      fiber.stack.reset(new std::byte[kStackBytes]);
      fiber.context.prepare(fiber.stack.get(), kStackBytes, &Fibers::enter);
    }
    std::size_t running = tasks;
    for (std::uint64_t turn = 0; running != 0; ++turn) {
      current_ = random_() % (tasks + 1);
      if (current_ == tasks) {
        queues.serve(Time(static_cast<std::int64_t>(random_() % 6000)));
        continue;
      }
      Fiber& fiber = fibers_[current_];
      if (fiber.ended || turn < fiber.held_until) continue;
      if (random_() % 8192 == 0)
        fiber.held_until = turn + random_() % (random_() % 8 == 0 ? 20000 : 1000);
      main_.change_to(fiber.context);
      if (fiber.ended) --running;
    }
  }
  void step(bool waits) override {
    if (!waits && random_() % one_in_ != 0) return;
    fibers_[current_].context.change_to(main_);
  }
  std::uint64_t now() override {
    return queues_ == nullptr ? 0 : static_cast<std::uint64_t>(queues_->network.now().count());
  }

 private:
  struct Fiber {
    shoal::test::FiberContext context;
    std::unique_ptr<std::byte[]> stack;
    bool ended = false;
    std::uint64_t held_until = 0;
  };

  static void enter() {
    Fibers& self = *running_;
    Fiber& fiber = self.fibers_[self.current_];
    (*self.body_)(self.current_);
    fiber.ended = true;
    fiber.context.change_to(self.main_);
  }

  inline static thread_local Fibers* running_ = nullptr;
  std::mt19937_64 random_;
  unsigned one_in_;
  SharedQueues* queues_ = nullptr;
  const std::function<void(std::size_t)>* body_ = nullptr;
  shoal::test::FiberContext main_;
  std::vector<Fiber> fibers_;
  std::size_t current_ = 0;
};

/// Execution of the tasks of a test, and the form of its completion queues.
enum class Tasks { fibers, threads };

struct Kind {
  Tasks tasks;
  bool collapsed;
};

inline std::unique_ptr<Runner> make_runner(Tasks tasks, std::uint64_t seed, unsigned one_in = 4) {
  if (tasks == Tasks::fibers) return std::make_unique<Fibers>(seed, one_in);
  return std::make_unique<Threads>(seed);
}

inline std::vector<Kind> kinds() {
  std::vector<Kind> all;
  for (const bool collapsed : {false, true}) {
    if (shoal::test::kHasFibers) all.push_back({Tasks::fibers, collapsed});
    all.push_back({Tasks::threads, collapsed});
  }
  return all;
}

inline void PrintTo(const Kind& kind, std::ostream* out) {
  *out << (kind.tasks == Tasks::fibers ? "Fibers" : "Threads")
       << (kind.collapsed ? "Collapsed" : "EntryEach");
}

/// Calls `others` between the first look at an entry and what follows.
struct LatePlatform : TestPlatform {
  using TestPlatform::TestPlatform;
  std::uint32_t load_entry(const std::uint32_t* word) {
    const std::uint32_t value = TestPlatform::load_entry(word);
    const std::function<void()> now = std::exchange(others, nullptr);
    if (now) now();
    return value;
  }
  std::function<void()> others;
};

/// Tasks as the lanes of one group.
class Lanes {
 public:
  Lanes(Runner& runner, std::uint32_t size) : runner_(runner), size_(size), flags_(size) {}

  struct Lane {
    Lanes& all;
    std::uint32_t index;
    std::uint32_t rank() const { return index; }
    std::uint32_t size() const { return all.size_; }
    void sync() const { all.meet(); }
    std::uint64_t broadcast(std::uint64_t value) const {
      if (index == 0) all.value_ = value;
      all.meet();
      const std::uint64_t result = all.value_;
      all.meet();
      return result;
    }
    std::uint32_t count_before(bool flag, std::uint32_t& total) const {
      all.flags_[index] = flag ? 1 : 0;
      all.meet();
      std::uint32_t before = 0;
      total = 0;
      for (std::uint32_t i = 0; i < all.size_; ++i) {
        total += all.flags_[i];
        if (i < index) before += all.flags_[i];
      }
      all.meet();
      return before;
    }
  };

 private:
  void meet() {
    const std::uint32_t lap = lap_.load();
    if (arrived_.fetch_add(1) + 1 == size_) {
      arrived_ = 0;
      ++lap_;
      return;
    }
    while (lap_.load() == lap) runner_.step(true);
  }

  Runner& runner_;
  std::uint32_t size_;
  std::atomic<std::uint32_t> arrived_ = 0, lap_ = 0;
  std::uint64_t value_ = 0;
  std::vector<std::uint32_t> flags_;
};

}  // namespace shoal::emulator::test
