// SPDX-License-Identifier: Apache-2.0
// The NIC on a GPU (emulator/gpu/) run by threads, beside clients that share queues: errors in the
// order of memory accesses show under ThreadSanitizer.
#include <algorithm>
#include <numeric>
#include <string>
#include <tuple>

#include "support/rounds.hpp"
#include "unit/emulator/gpu_nic.hpp"
#include "unit/emulator/gpu_outcomes.hpp"

namespace shoal::emulator::test {
namespace {

/// What several threads do on one queue: word 0 counts signals, word 1 fetch-and-adds; each has
/// words and a large block of its own.
void run_client(GpuNics& nics, std::size_t task, std::uint64_t operations) {
  gda::HostPlatform client;
  const std::uint64_t deadline = client.now() + 60'000'000'000;
  const gda::Queue queue = nics.a.queue();
  const std::size_t word = 64 + 64 * task, block = (1 + task) * 32768;
  std::uint64_t ticket = 0, before = 0;
  for (std::uint64_t i = 1; i <= operations; ++i) {
    gda::Outcome outcome = gda::Outcome::ok;
    nics.a.memory[word / 8] = i;  // its last reader was waited for
    if (i % 4 == 0)
      outcome = gda::fetch_add(queue, nics.a.at_peer(8), 1, nics.a.result(word + 8), deadline,
                               client, before);
    else if (i % 4 == 1)
      outcome = gda::put_signal(queue, nics.a.from(block, false), nics.a.at_peer(block), 20000,
                                {nics.a.at_peer(0), 1}, deadline, client, ticket);
    else
      outcome = gda::put(queue, nics.a.from(word, i % 4 == 2), nics.a.at_peer(word), 8, deadline,
                         client, ticket);
    if (outcome == gda::Outcome::ok && i % 4 >= 2)
      outcome = gda::wait(queue, ticket, deadline, client);
    ASSERT_EQ(outcome, gda::Outcome::ok) << "task " << task << ", operation " << i;
  }
  ASSERT_EQ(gda::quiet(queue, deadline, client), gda::Outcome::ok);
}

class GpuNicThreads : public ::testing::TestWithParam<std::tuple<Ordering, bool>> {};

TEST_P(GpuNicThreads, ManyClientsOnATinyQueue) {
  GpuShape shape{.blocks = 16,
                 .collapsed = std::get<1>(GetParam()),
                 .ordering = std::get<0>(GetParam()),
                 .bytes = 8 * 32768};
  constexpr std::size_t kTasks = 4;
  const std::uint64_t operations = shoal::test::rounds<std::uint64_t>(200, 100);
  GpuNics nics(shape);
  std::iota(nics.a.memory.begin(), nics.a.memory.end(), 0U);
  NicThreads threads(nics);
  std::vector<std::thread> clients;
  for (std::size_t task = 0; task < kTasks; ++task)
    clients.emplace_back([&, task] { run_client(nics, task, operations); });
  for (std::thread& client : clients) client.join();
  threads.stop();
  EXPECT_EQ(nics.b.word(0), kTasks * (operations / 4));
  EXPECT_EQ(nics.b.word(8), kTasks * (operations / 4));
  for (std::size_t task = 0; task < kTasks; ++task) {
    const std::size_t block = (1 + task) * 32768;
    EXPECT_EQ(std::memcmp(nics.a.bytes() + block, nics.b.bytes() + block, 20000), 0) << task;
    EXPECT_EQ(nics.b.word(64 + 64 * task), operations - 1) << task;
  }
  EXPECT_EQ(nics.a.control.stopped, static_cast<std::uint64_t>(gpu::Stopped::by_owner));
}

// A reader that sees the signal sees the data, although workers have stored them.
TEST_P(GpuNicThreads, ASignalPublishesTheData) {
  GpuShape shape{.collapsed = std::get<1>(GetParam()), .ordering = std::get<0>(GetParam())};
  GpuNics nics(shape);
  NicThreads threads(nics);
  gda::HostPlatform client;
  const std::uint64_t deadline = client.now() + 60'000'000'000;
  const gda::Queue queue = nics.a.queue();
  constexpr std::size_t kSignal = 60000;
  for (std::uint64_t lap = 1; lap <= shoal::test::rounds<std::uint64_t>(200, 40); ++lap) {
    std::uint64_t ticket = 0;
    std::fill_n(nics.a.memory.begin(), 2500, lap);
    ASSERT_EQ(gda::put_signal(queue, nics.a.from(0, false), nics.a.at_peer(0), 20000,
                              {nics.a.at_peer(kSignal), 1}, deadline, client, ticket),
              gda::Outcome::ok);
    while (nics.b.word(kSignal) != lap) {
      ASSERT_LT(client.now(), deadline);
      std::this_thread::yield();
    }
    // Plain accesses, which ThreadSanitizer checks.
    ASSERT_EQ(std::count(nics.b.memory.begin(), nics.b.memory.begin() + 2500, lap), 2500);
    ASSERT_EQ(gda::wait(queue, ticket, deadline, client), gda::Outcome::ok);
  }
}

INSTANTIATE_TEST_SUITE_P(Tiers, GpuNicThreads,
                         ::testing::Combine(::testing::ValuesIn(kOrderings), ::testing::Bool()),
                         [](const auto& made) {
                           return std::string(
                                      kTierNames[static_cast<int>(std::get<0>(made.param))]) +
                                  (std::get<1>(made.param) ? "Collapsed" : "EntryEach");
                         });

}  // namespace
}  // namespace shoal::emulator::test
