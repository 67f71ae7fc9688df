// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "base/mlx5/host_bus.hpp"
#include "nic/studies.hpp"
#include "shoal/device/detail/gda/operations.hpp"
#include "transport/gda/host_platform.hpp"

namespace shoal::bench::nic {
namespace {

namespace gda = device::gda;

constexpr std::uint32_t kBlocks = 1024, kLogBlocks = 10;
constexpr std::uint64_t kNever = ~0ULL >> 1;

/// A queue in memory, and a NIC that completes each request as soon as it sees it.
class Answers {
 public:
  Answers() : ring_(kBlocks * 4), entries_(kBlocks) {
    std::memset(static_cast<void*>(entries_.data()), mlx5::kUnusedEntry,
                entries_.size() * sizeof entries_[0]);
    queue.sends = {ring_.data(), kBlocks, 1, &record_.sends, &doorbell_};
    queue.completions = {entries_.data(), kLogBlocks, nullptr};
    queue.shared = &shared_;
    nic_ = std::thread([this] { answer(); });
  }
  ~Answers() {
    stop_ = true;
    nic_.join();
  }
  gda::Queue queue;

 private:
  void answer() {
    std::uint64_t executed = 0;
    while (!stop_.load(std::memory_order_relaxed)) {
      const auto posted = static_cast<std::uint16_t>(
          mlx5::big(std::atomic_ref(record_.sends).load(std::memory_order_acquire)));
      if (posted == static_cast<std::uint16_t>(executed)) std::this_thread::yield();
      for (; posted != static_cast<std::uint16_t>(executed); ++executed) {
        const auto owner = static_cast<std::uint32_t>(executed >> kLogBlocks & 1);
        const auto state = static_cast<std::uint32_t>(executed & 0xffff) << 16 | owner;
        std::atomic_ref(entries_[executed % kBlocks].index_state)
            .store(mlx5::big(state), std::memory_order_release);
      }
    }
  }

  std::vector<mlx5::Segment> ring_;
  std::vector<mlx5::CompletionEntry> entries_;
  mlx5::DoorbellRecord record_{};
  std::uint64_t doorbell_ = 0;
  gda::Shared shared_;
  std::atomic<bool> stop_ = false;
  std::thread nic_;
};

/// Fetch-and-adds by the queue's only owner, `chain` behind a doorbell.
void post_alone(Answers& answers, std::uint64_t requests, std::uint32_t chain) {
  const mlx5::SendQueue& queue = answers.queue.sends;
  const mlx5::CompletionQueue& completions = answers.queue.completions;
  mlx5::HostBus bus;
  mlx5::Completion completion;
  std::uint32_t posted = 0, completed = 0, consumed = 0;
  const auto take = [&] {
    while (mlx5::next(completions, consumed, bus, completion))
      completed = mlx5::completed_after(queue, completed, posted, completion.index);
  };
  for (std::uint64_t i = 0; i < requests; i += chain) {
    while (posted - completed + chain > kBlocks) {
      take();
      if (posted - completed + chain > kBlocks) std::this_thread::yield();
    }
    mlx5::Posted last;
    for (std::uint32_t k = 0; k < chain; ++k) {
      last = mlx5::write_atomic(queue, posted, mlx5::Opcode::fetch_add, {}, 1, 0, {}, {true});
      posted = last.next;
    }
    mlx5::publish(queue, last, bus);
  }
  while (posted != completed) take();
}

/// The same on a shared queue: each thread reserves `chain` slots at once.
void post_shared(Answers& answers, std::uint64_t requests, std::uint32_t chain) {
  gda::HostPlatform platform;
  const gda::Queue& queue = answers.queue;
  for (std::uint64_t i = 0; i < requests; i += chain) {
    gda::Reservation mine;
    if (gda::reserve(queue, chain, kNever, platform, mine) != gda::Outcome::ok) return;
    for (std::uint32_t k = 0; k < chain; ++k)
      mlx5::write_atomic(queue.sends, static_cast<std::uint32_t>(mine.first + k),
                         mlx5::Opcode::fetch_add, {}, 1, 0, {}, {true});
    gda::publish(queue, mine, {}, kNever, platform);
  }
  gda::quiet(queue, kNever, platform);
}

}  // namespace

nlohmann::json post_rate(std::uint32_t threads, bool shared, std::uint32_t chain) {
  constexpr std::uint64_t kRequests = 1 << 18;
  constexpr int kRuns = 5;
  std::vector<double> rates;
  for (int run = 0; run < kRuns; ++run) {
    Answers answers;
    const std::uint64_t each = kRequests / threads;
    const auto start = std::chrono::steady_clock::now();
    std::vector<std::thread> posting;
    for (std::uint32_t i = 0; i < threads; ++i)
      posting.emplace_back(
          [&] { shared ? post_shared(answers, each, chain) : post_alone(answers, each, chain); });
    for (std::thread& thread : posting) thread.join();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    rates.push_back(static_cast<double>(each * threads) / took.count() / 1e6);
  }
  std::ranges::sort(rates);
  return {{"queue", shared ? "shared" : "one owner"},
          {"threads", threads},
          {"chain", chain},
          {"million_per_s", rates[kRuns / 2]},
          {"fastest", rates.back()}};
}

}  // namespace shoal::bench::nic
