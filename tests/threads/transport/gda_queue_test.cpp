// SPDX-License-Identifier: Apache-2.0
// Send queues that many tasks share, on the emulated NIC. Fibers in a random order find what is
// wrong with the order of steps, threads under ThreadSanitizer with the order of memory.
// @traits slow
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <set>

#include "support/rounds.hpp"
#include "threads/transport/gda_queue.hpp"

namespace shoal::emulator::test {
namespace {

using gda::Cause;
using gda::Failure;
using gda::SignalKind;
using gda::Step;

class SharedQueue : public ::testing::TestWithParam<Kind> {
 protected:
  /// A second of virtual time, or a minute of a busy machine.
  std::uint64_t soon() { return runner->now() + (with_fibers() ? 1'000'000'000 : 60'000'000'000); }
  QueueShape shape(std::uint32_t blocks = 16, Ordering ordering = Ordering::strict) {
    return {.blocks = blocks, .collapsed = GetParam().collapsed, .ordering = ordering};
  }
  bool with_fibers() const { return GetParam().tasks == Tasks::fibers; }
  std::uint64_t count(std::uint64_t fibers, std::uint64_t threads, std::uint64_t sanitized) {
    return with_fibers() ? fibers : shoal::test::rounds(threads, sanitized);
  }

  std::unique_ptr<Runner> runner = make_runner(GetParam().tasks, 4711);
};

/// Operations of the tasks of ManyTasksOnATinyQueue: word 0 counts signals, word 1 fetch-and-adds;
/// task i has words 8 + 8 i and on, at both ends.
struct Mix {
  SharedQueues& queues;
  Runner& runner;
  std::uint64_t operations, patience;
  std::set<std::uint64_t> before{};
  std::mutex mutex{};

  std::uint64_t deadline() { return runner.now() + patience; }
  void run(std::size_t task) {
    TestPlatform platform(runner);
    const gda::Queue& queue = queues.queue();
    const std::size_t word = 8 + 8 * task;
    std::uint64_t ticket = 0;
    for (std::uint64_t i = 1; i <= operations; ++i) {
      gda::Outcome outcome = gda::Outcome::ok;
      queues.local[word] = i;  // its last reader was waited for
      if (i % 4 == 0) {
        outcome = add(platform, queue, word);
      } else if (i % 4 == 1) {
        outcome = gda::signal(queue, {queues.at_peer(0), 1}, deadline(), platform, ticket);
      } else {
        outcome = gda::put(queue, queues.from(word, i % 4 == 2), queues.at_peer(word), 8,
                           deadline(), platform, ticket);
        if (outcome == gda::Outcome::ok && i % 4 == 3)
          outcome = gda::wait(queue, ticket, deadline(), platform);
      }
      ASSERT_EQ(outcome, gda::Outcome::ok) << "task " << task << ", operation " << i;
    }
    ASSERT_EQ(gda::quiet(queue, deadline(), platform), gda::Outcome::ok);
  }
  gda::Outcome add(TestPlatform& platform, const gda::Queue& queue, std::size_t word) {
    std::uint64_t old = ~0ULL;
    const auto outcome = gda::fetch_add(queue, queues.at_peer(1), 1, queues.result(word + 1),
                                        deadline(), platform, old);
    const std::lock_guard lock(mutex);
    EXPECT_TRUE(before.insert(old).second) << old << " twice";
    return outcome;
  }
};

// More than 65536 requests through 16 slots: indices and ring wrap, requests wait for room.
TEST_P(SharedQueue, ManyTasksOnATinyQueue) {
  constexpr std::size_t kTasks = 8;
  runner = make_runner(GetParam().tasks, 4711, 8);
  SharedQueues queues(shape());
  Mix mix{queues, *runner, count(12600, 3000, 300), soon() - runner->now()};
  runner->run(queues, kTasks, [&](std::size_t task) { mix.run(task); });
  EXPECT_EQ(queues.seen(0), kTasks * (mix.operations / 4));
  EXPECT_EQ(queues.seen(1), kTasks * (mix.operations / 4));
  EXPECT_EQ(mix.before.size(), kTasks * (mix.operations / 4));
  ASSERT_FALSE(mix.before.empty());
  EXPECT_EQ(*mix.before.rbegin(), mix.before.size() - 1);
  for (std::size_t task = 0; task < kTasks; ++task) {
    const std::uint64_t last = mix.operations - (mix.operations % 4 == 0 ? 1 : 0);
    EXPECT_EQ(queues.seen(8 + 8 * task), mix.operations % 4 == 1 ? last - 2 : last) << task;
  }
}

// Tasks that never wait: whoever publishes last rings the doorbell for all.
TEST_P(SharedQueue, NoRequestWaitsForADoorbell) {
  constexpr std::size_t kTasks = 6;
  for (std::uint64_t seed = 0; seed < count(150, 50, 10); ++seed) {
    runner = make_runner(GetParam().tasks, seed);
    // In small rings the doorbell is also left to tasks that wait for room. In the smallest, more
    // slots are reserved than two laps have.
    constexpr std::uint32_t kBlocks[] = {1024, 16, 4};
    SharedQueues queues(shape(kBlocks[seed % 3]));
    queues.queue().batch = 1024;
    runner->run(queues, kTasks, [&](std::size_t) {
      TestPlatform platform(*runner);
      std::uint64_t ticket = 0;
      for (int i = 0; i < 20; ++i)
        EXPECT_EQ(gda::signal(queues.queue(), {queues.at_peer(0), 1}, soon(), platform, ticket),
                  gda::Outcome::ok);
    });
    for (int i = 0; i < 100 && queues.seen(0) != kTasks * 20; ++i) queues.serve(Time(10000));
    ASSERT_EQ(queues.seen(0), kTasks * 20) << "seed " << seed;
    EXPECT_LE(queues.doorbells(), kTasks * 20);
  }
}

// The doorbell of a request was left to a thread that does not publish.
TEST_P(SharedQueue, AWaitRingsForItsRequests) {
  SharedQueues queues(shape());
  runner->run(queues, 1, [&](std::size_t) {
    TestPlatform platform(*runner);
    const gda::Queue& queue = queues.queue();
    gda::Reservation posts[3];
    for (gda::Reservation& post : posts)
      ASSERT_EQ(gda::reserve(queue, 1, soon(), platform, post), gda::Outcome::ok);
    for (std::uint64_t i = 0; i < 3; ++i) {
      gda::detail::write_signal(queue, posts[i].first, 1, {queues.at_peer(0), 1});
      ASSERT_EQ(gda::publish(queue, posts[i], {}, soon(), platform), gda::Outcome::ok);
      EXPECT_EQ(queue.shared->rung, i == 2 ? 3u : 1u);
      EXPECT_EQ(gda::wait(queue, i + 1, soon(), platform), gda::Outcome::ok);
    }
  });
  EXPECT_EQ(queues.seen(0), 3u);
}

// A batch has a doorbell even while other threads have slots behind it.
TEST_P(SharedQueue, FullBatchesRing) {
  SharedQueues queues(shape());
  runner->run(queues, 1, [&](std::size_t) {
    TestPlatform platform(*runner);
    const gda::Queue& queue = queues.queue();
    gda::Reservation posts[10];
    for (gda::Reservation& post : posts)
      ASSERT_EQ(gda::reserve(queue, 1, soon(), platform, post), gda::Outcome::ok);
    for (std::uint64_t i = 0; i < 10; ++i) {
      gda::detail::write_signal(queue, i, 1, {queues.at_peer(0), 1});
      const gda::PublishOptions options{.ring = i == 5};
      ASSERT_EQ(gda::publish(queue, posts[i], options, soon(), platform), gda::Outcome::ok);
      constexpr std::uint64_t kRung[] = {1, 1, 1, 4, 4, 6, 6, 8, 8, 10};
      EXPECT_EQ(queue.shared->rung, kRung[i]) << i;
    }
    EXPECT_EQ(gda::quiet(queue, soon(), platform), gda::Outcome::ok);
  });
  EXPECT_EQ(queues.seen(0), 10u);
}

// An entry is old when it is used: it completes nothing that is not complete.
TEST_P(SharedQueue, AnOldEntryIsNotTakenForANewOne) {
  SharedQueues queues(shape(32768));
  runner->run(queues, 1, [&](std::size_t) {
    PlainPlatform platform(*runner);
    const gda::Queue& queue = queues.queue();
    std::uint64_t ticket = 0;
    const auto post = [&] {
      ASSERT_EQ(gda::signal(queue, {queues.at_peer(0), 1}, soon(), platform, ticket),
                gda::Outcome::ok);
    };
    post();
    ASSERT_EQ(gda::quiet(queue, soon(), platform), gda::Outcome::ok);
    LatePlatform late(*runner);
    late.others = [&] {
      for (int i = 0; i < 40000; ++i) post();
      ASSERT_EQ(gda::quiet(queue, soon(), platform), gda::Outcome::ok);
    };
    EXPECT_TRUE(gda::poll(queue, 2, late));
    EXPECT_EQ(queue.shared->completed, queue.shared->published);
  });
}

// Quiet long after others have lapped the queue, and every size of it.
TEST_P(SharedQueue, IndicesWrapInEverySize) {
  for (const std::uint32_t blocks : {4u, 1024u, 32768u}) {
    runner = make_runner(GetParam().tasks, blocks, 16);
    SharedQueues queues(shape(blocks));
    constexpr std::uint64_t kTasks = 3;
    const std::uint64_t operations = count(22000, 6000, 1000);
    runner->run(queues, kTasks, [&](std::size_t task) {
      TestPlatform platform(*runner);
      const gda::Queue& queue = queues.queue();
      std::uint64_t ticket = 0, first = 0;
      for (std::uint64_t i = 0; i < operations; ++i) {
        ASSERT_EQ(gda::signal(queue, {queues.at_peer(task), 1}, soon(), platform, ticket),
                  gda::Outcome::ok);
        if (i == 0) first = ticket;
        if (i % 1000 == 999) {
          ASSERT_EQ(gda::wait(queue, ticket, soon(), platform), gda::Outcome::ok);
          ASSERT_EQ(queues.seen(task), i + 1) << "complete too early";
        }
      }
      EXPECT_EQ(gda::wait(queue, first, soon(), platform), gda::Outcome::ok);
    });
    for (std::size_t task = 0; task < kTasks; ++task) EXPECT_EQ(queues.seen(task), operations);
  }
}

/// A task that sees a signal sees the data before it. Each task owns `kWords` words and a signal,
/// and writes them again when it has seen both at the peer.
void check_put_signal(Runner& runner, SharedQueues& queues, std::size_t lines, SignalKind kind,
                      std::uint64_t repeats, std::uint64_t deadline) {
  constexpr std::size_t kWords = 300, kTasks = 4;
  runner.run(queues, kTasks, [&](std::size_t task) {
    TestPlatform platform(runner);
    const gda::Queue& queue = queues.queue(task % lines);
    const std::size_t word = 64 + 512 * task, signal = word + kWords;
    for (std::uint64_t i = 1; i <= repeats; ++i) {
      for (std::size_t k = 0; k < kWords; ++k) queues.local[word + k] = i * 1000 + k;
      std::uint64_t ticket = 0;
      const gda::Signal change{queues.at_peer(signal), kind == SignalKind::add ? 1 : i, kind};
      ASSERT_EQ(gda::put_signal(queue, queues.from(word), queues.at_peer(word), kWords * 8, change,
                                deadline, platform, ticket),
                gda::Outcome::ok);
      while (queues.seen(signal) != i) {
        ASSERT_EQ(gda::check(queue, deadline, platform), gda::Outcome::ok);
        platform.pause();
      }
      for (std::size_t k = 0; k < kWords; ++k)
        ASSERT_EQ(queues.remote[word + k], i * 1000 + k) << "signal " << i << " before word " << k;
      ASSERT_EQ(gda::wait(queue, ticket, deadline, platform), gda::Outcome::ok);
    }
  });
}

NetworkOptions bad_network() {
  NetworkOptions options;
  options.paths = 4;
  options.path_skew = Time(700);
  options.jitter = Time(900);
  options.loss = 0.01;
  return options;
}

TEST_P(SharedQueue, SignalsComeBehindTheirData) {
  for (const Ordering ordering : {Ordering::strict, Ordering::adaptive, Ordering::unordered})
    for (const SignalKind kind : {SignalKind::add, SignalKind::set}) {
      QueueShape queue = shape(16, ordering);
      queue.ack_timeout = 2;         // 16 us of virtual time
      queue.largest_message = 1000;  // three messages
      SharedQueues queues(queue, 2, bad_network());
      check_put_signal(*runner, queues, 2, kind, count(60, 20, 4), soon());
      SCOPED_TRACE(static_cast<int>(ordering));
      if (HasFailure()) return;
    }
}

// A signal alone, and a put behind a fence.
TEST_P(SharedQueue, FencesAndSignalsOrderEarlierPuts) {
  for (const Ordering ordering : {Ordering::strict, Ordering::adaptive, Ordering::unordered}) {
    QueueShape queue = shape(16, ordering);
    queue.ack_timeout = 2;
    SharedQueues queues(queue, 1, bad_network());
    const std::uint64_t repeats = count(100, 40, 10);
    runner->run(queues, 2, [&](std::size_t task) {
      TestPlatform platform(*runner);
      const std::size_t data = 100 * (task + 1), flag = data + 40;
      std::uint64_t ticket = 0;
      for (std::uint64_t i = 1; i <= repeats; ++i) {
        queues.local[data] = i;
        const auto put = [&](std::size_t word) {
          return gda::put(queues.queue(), queues.from(data), queues.at_peer(word), 8, soon(),
                          platform, ticket);
        };
        for (std::size_t k = 0; k < 5; ++k) ASSERT_EQ(put(data + k), gda::Outcome::ok);
        if (i % 2 == 0) {
          ASSERT_EQ(gda::fence(queues.queue(), soon(), platform), gda::Outcome::ok);
          ASSERT_EQ(put(flag), gda::Outcome::ok);
        } else {
          ASSERT_EQ(gda::signal(queues.queue(), {queues.at_peer(flag), i, SignalKind::set}, soon(),
                                platform, ticket),
                    gda::Outcome::ok);
        }
        while (queues.seen(flag) != i) {
          ASSERT_EQ(gda::check(queues.queue(), soon(), platform), gda::Outcome::ok);
          platform.pause();
        }
        for (std::size_t k = 0; k < 5; ++k) ASSERT_EQ(queues.seen(data + k), i) << k;
        ASSERT_EQ(gda::wait(queues.queue(), ticket, soon(), platform), gda::Outcome::ok);
      }
    });
    if (HasFailure()) return;
  }
}

// 100 messages through a ring of 8.
TEST_P(SharedQueue, LongPutsAreCutIntoMessages) {
  QueueShape queue = shape(8);
  queue.largest_message = 256;
  SharedQueues queues(queue);
  constexpr std::size_t kWords = 3190;
  for (std::size_t i = 0; i < kWords; ++i) queues.local[i] = i + 1;
  std::array<std::uint64_t, 2> tickets{};
  runner->run(queues, 2, [&](std::size_t task) {
    TestPlatform platform(*runner);
    const std::size_t to = task * 4096;
    std::uint64_t& ticket = tickets[task];
    const auto outcome =
        task == 0 ? gda::put(queues.queue(), queues.from(0), queues.at_peer(to), kWords * 8, soon(),
                             platform, ticket)
                  : gda::put_signal(queues.queue(), queues.from(0), queues.at_peer(to), kWords * 8,
                                    {queues.at_peer(9000), 5}, soon(), platform, ticket);
    ASSERT_EQ(outcome, gda::Outcome::ok);
    ASSERT_EQ(gda::wait(queues.queue(), ticket, soon(), platform), gda::Outcome::ok);
  });
  EXPECT_EQ(std::ranges::max(tickets), 100u + 100u + 1u);  // none longer than largest_message
  EXPECT_EQ(queues.seen(9000), 5u);
  for (std::size_t task = 0; task < 2; ++task)
    for (std::size_t i = 0; i <= kWords; ++i)
      ASSERT_EQ(queues.remote[task * 4096 + i], i < kWords ? i + 1 : 0) << i;
}

TEST_P(SharedQueue, CompareSwapHasOneWinner) {
  SharedQueues queues(shape());
  std::atomic<std::uint64_t> wins = 0;
  const std::uint64_t repeats = count(200, 20, 5);
  runner->run(queues, 5, [&](std::size_t task) {
    TestPlatform platform(*runner);
    for (std::uint64_t i = 0; i < repeats; ++i) {
      std::uint64_t before = ~0ULL;
      ASSERT_EQ(gda::compare_swap(queues.queue(), queues.at_peer(3), i, i + 1,
                                  queues.result(task * 8), soon(), platform, before),
                gda::Outcome::ok);
      if (before == i) ++wins;
    }
  });
  EXPECT_EQ(wins, queues.seen(3));
  EXPECT_GE(wins, 1u);
}

// Two groups of lanes, each lane with a put and a signal of its own and some without.
TEST_P(SharedQueue, LanesPostTogether) {
  constexpr std::uint32_t kLanes = 5;
  SharedQueues queues(shape());
  Lanes first(*runner, kLanes), second(*runner, kLanes);
  const std::uint64_t repeats = count(500, 200, 20);
  runner->run(queues, 2 * kLanes, [&](std::size_t task) {
    TestPlatform platform(*runner);
    const Lanes::Lane lane{task < kLanes ? first : second,
                           static_cast<std::uint32_t>(task % kLanes)};
    const std::size_t word = 8 * task;
    std::uint64_t added = 0;
    for (std::uint64_t i = 1; i <= repeats; ++i) {
      queues.local[word] = i;
      const bool puts = i % (3 + lane.index), signals = !(i % (2 + lane.index)), sets = i % 5;
      const gda::SignalKind kind = sets ? gda::SignalKind::set : gda::SignalKind::add;
      const gda::Signal signal{queues.at_peer(word + (sets ? 1 : 2)), i, kind};
      std::uint64_t ticket = 0;
      const gda::LanePost mine{queues.from(word, i % 2 == 0), queues.at_peer(word), puts ? 8U : 0U,
                               signals ? &signal : nullptr};
      ASSERT_EQ(gda::post_each(lane, queues.queue(), mine, soon(), platform, ticket),
                gda::Outcome::ok);
      ASSERT_EQ(gda::wait(queues.queue(), ticket, soon(), platform), gda::Outcome::ok);
      if (puts) ASSERT_EQ(queues.seen(word), i);
      ASSERT_EQ(queues.seen(word + 2), added += signals && !sets ? i : 0);
      if (signals && sets) ASSERT_EQ(queues.seen(word + 1), i);
    }
  });
}

// A wrong key ends the queue: all tasks hear of the same request, at once.
TEST_P(SharedQueue, ErrorsReachAllTasks) {
  constexpr std::size_t kTasks = 6;
  for (std::uint64_t seed = 0; seed < count(30, 20, 4); ++seed) {
    runner = make_runner(GetParam().tasks, seed);
    SharedQueues queues(shape());
    std::atomic<std::uint64_t> wrong = 0;
    std::vector<Failure> failures(kTasks);
    runner->run(queues, kTasks, [&](std::size_t task) {
      TestPlatform platform(*runner);
      const gda::Queue& queue = queues.queue();
      gda::Outcome outcome = gda::Outcome::ok;
      std::uint64_t ticket = 0;
      for (std::uint64_t i = 0; outcome == gda::Outcome::ok; ++i) {
        gda::Signal signal{queues.at_peer(task), 1};
        const bool fails = task == 0 && i == 40;
        if (fails) signal.word.key ^= 0x100;
        outcome = gda::signal(queue, signal, soon(), platform, ticket);
        if (fails) wrong = ticket - 1;
        if (outcome == gda::Outcome::ok && i % 8 == 7)
          outcome = gda::wait(queue, ticket, soon(), platform);
        if (i > 100000) break;
      }
      EXPECT_EQ(outcome, gda::Outcome::failed) << "task " << task;
      failures[task] = gda::failure_of(queue, platform);
    });
    for (const Failure& failure : failures) {
      EXPECT_EQ(failure.cause, Cause::nic);
      EXPECT_EQ(failure.peer, 7u);
      EXPECT_EQ(failure.queue_pair, queues.queue().sends.number);
      EXPECT_EQ(failure.opcode, mlx5::Opcode::fetch_add);
      if (GetParam().collapsed && failure.syndrome == mlx5::Syndrome::flushed) continue;
      EXPECT_EQ(failure.syndrome, mlx5::Syndrome::remote_access);
      EXPECT_EQ(failure.index, wrong) << "seed " << seed;
    }
    if (HasFailure()) return;
  }
}

TEST_P(SharedQueue, AnUnreachablePeerIsAFailure) {
  QueueShape queue = shape();
  queue.ack_timeout = 1;
  queue.retries = 2;
  SharedQueues queues(queue);
  queues.network.drop_if([](const Packet&) { return true; });
  runner->run(queues, 3, [&](std::size_t task) {
    TestPlatform platform(*runner);
    std::uint64_t ticket = 0, before = 0;
    // Fails where the retries of another task's request have ended already.
    static_cast<void>(
        gda::signal(queues.queue(), {queues.at_peer(0), 1}, soon(), platform, ticket));
    EXPECT_EQ(gda::fetch_add(queues.queue(), queues.at_peer(0), 1, queues.result(8 * task), soon(),
                             platform, before),
              gda::Outcome::failed);
    const Failure failure = gda::failure_of(queues.queue(), platform);
    if (failure.syndrome != mlx5::Syndrome::flushed)
      EXPECT_EQ(failure.syndrome, mlx5::Syndrome::retry_exceeded);
    if (!GetParam().collapsed) EXPECT_EQ(failure.index, 0u);
  });
}

// A deadline ends a wait, and the queue stays usable.
TEST_P(SharedQueue, AWaitHasADeadline) {
  SharedQueues queues(shape());
  queues.deaf = true;
  runner->run(queues, 1, [&](std::size_t) {
    TestPlatform platform(*runner);
    std::uint64_t ticket = 0;
    ASSERT_EQ(gda::signal(queues.queue(), {queues.at_peer(0), 1}, soon(), platform, ticket),
              gda::Outcome::ok);
    EXPECT_EQ(gda::wait(queues.queue(), ticket, runner->now() + 2'000'000, platform),
              gda::Outcome::timeout);
    EXPECT_EQ(gda::failure_of(queues.queue(), platform).cause, Cause::none);
    const Failure late = gda::failure_of_wait(queues.queue(), gda::Outcome::timeout, ticket);
    EXPECT_EQ(late.step, Step::completion);
    EXPECT_EQ(late.index, 0u);
    EXPECT_EQ(late.peer, 7u);
    queues.deaf = false;
    EXPECT_EQ(gda::wait(queues.queue(), ticket, soon(), platform), gda::Outcome::ok);
  });
  EXPECT_EQ(queues.seen(0), 1u);
}

// A task that finds no room in time leaves slots that are never written: the queue ends for all.
TEST_P(SharedQueue, ADeadlineForRoomEndsTheQueue) {
  SharedQueues queues(shape());
  queues.deaf = true;
  runner->run(queues, 4, [&](std::size_t task) {
    TestPlatform platform(*runner);
    gda::Outcome outcome = gda::Outcome::ok;
    std::uint64_t ticket = 0;
    Failure failure;
    while (failure.cause == Cause::none) {
      const std::uint64_t deadline = task == 0 ? runner->now() + 3'000'000 : soon();
      outcome = gda::signal(queues.queue(), {queues.at_peer(0), 1}, deadline, platform, ticket);
      failure = gda::failure_of(queues.queue(), platform);
    }
    EXPECT_EQ(failure.cause, Cause::timeout);
    if (task == 0)
      EXPECT_EQ(outcome, gda::Outcome::timeout);
    else
      EXPECT_NE(outcome, gda::Outcome::timeout) << task;
    if (with_fibers()) {  // a thread may be held between its slot and its request
      EXPECT_EQ(failure.step, Step::room);
      EXPECT_GE(failure.index, 16u);
    }
    EXPECT_EQ(gda::signal(queues.queue(), {queues.at_peer(0), 1}, soon(), platform, ticket),
              gda::Outcome::failed);
  });
}

// Requests behind slots that another thread has reserved and not written.
TEST_P(SharedQueue, ADeadlineForEarlierRequestsEndsTheQueue) {
  SharedQueues queues(shape());
  runner->run(queues, 1, [&](std::size_t) {
    TestPlatform platform(*runner);
    std::uint64_t ticket = 0;
    gda::Reservation first;
    ASSERT_EQ(gda::reserve(queues.queue(), 1, soon(), platform, first), gda::Outcome::ok);
    Failure failure;
    while (failure.cause == Cause::none) {
      EXPECT_EQ(gda::signal(queues.queue(), {queues.at_peer(0), 1}, runner->now() + 2'000'000,
                            platform, ticket),
                gda::Outcome::timeout);
      failure = gda::failure_of(queues.queue(), platform);
    }
    EXPECT_EQ(failure.step, Step::order);
    EXPECT_EQ(failure.index, 1u);
    EXPECT_EQ(gda::publish(queues.queue(), first, {}, soon(), platform), gda::Outcome::ok)
        << "its turn had arrived";
  });
}

TEST_P(SharedQueue, TheAbortWordEndsWaits) {
  SharedQueues queues(shape());
  queues.deaf = true;
  std::atomic<bool> abort = false;
  std::atomic<int> waiting = 0;
  runner->run(queues, 3, [&](std::size_t task) {
    TestPlatform platform(*runner);
    platform.abort = &abort;
    std::uint64_t ticket = 0;
    ++waiting;
    if (task == 0) {
      while (waiting != 3) platform.pause();
      abort = true;
    }
    gda::Outcome outcome = gda::Outcome::ok;
    while (outcome == gda::Outcome::ok)
      outcome = gda::signal(queues.queue(), {queues.at_peer(0), 1}, soon(), platform, ticket);
    EXPECT_TRUE(outcome == gda::Outcome::aborted || outcome == gda::Outcome::failed);
    if (outcome == gda::Outcome::failed)
      EXPECT_EQ(gda::failure_of(queues.queue(), platform).cause, Cause::aborted);
  });
}

TEST_P(SharedQueue, RefusesWithoutPosting) {
  SharedQueues queues(shape());
  runner->run(queues, 1, [&](std::size_t) {
    TestPlatform platform(*runner);
    std::uint64_t ticket = 0;
    gda::Reservation none;
    mlx5::Memory odd = queues.at_peer(0);
    odd.address += 4;
    const gda::Queue& queue = queues.queue();
    EXPECT_EQ(gda::signal(queue, {odd, 1}, soon(), platform, ticket), gda::Outcome::refused);
    EXPECT_EQ(gda::put_signal(queue, queues.from(0), queues.at_peer(1), 100, {odd, 1}, soon(),
                              platform, ticket),
              gda::Outcome::refused);
    EXPECT_EQ(gda::fetch_add(queue, odd, 1, queues.result(0), soon(), platform, ticket),
              gda::Outcome::refused);
    EXPECT_EQ(gda::reserve(queue, 17, soon(), platform, none), gda::Outcome::refused);
    EXPECT_EQ(gda::reserve(queue, 0, soon(), platform, none), gda::Outcome::refused);
    EXPECT_EQ(gda::put(queue, queues.from(0), queues.at_peer(1), 0, soon(), platform, ticket),
              gda::Outcome::ok);
    EXPECT_EQ(ticket, 0u);
    EXPECT_EQ(queue.shared->reserved, 0u);
    EXPECT_EQ(gda::signal(queue, {queues.at_peer(0), 9}, soon(), platform, ticket),
              gda::Outcome::ok);
    EXPECT_EQ(gda::quiet(queue, soon(), platform), gda::Outcome::ok);
  });
  EXPECT_EQ(queues.seen(0), 9u);
}

TEST(SharedQueueFailure, FitsIntoAWord) {
  const Failure failure{.cause = Cause::nic,
                        .syndrome = mlx5::Syndrome::remote_aborted,
                        .vendor = 0xfe,
                        .opcode = mlx5::Opcode::fetch_add,
                        .step = Step::completion,
                        .index = 0xabcdef1,
                        .peer = 3,
                        .queue_pair = 9};
  const Failure same = gda::decode(gda::encode(failure), 3, 9);
  EXPECT_EQ(same.cause, failure.cause);
  EXPECT_EQ(same.syndrome, failure.syndrome);
  EXPECT_EQ(same.vendor, failure.vendor);
  EXPECT_EQ(same.opcode, failure.opcode);
  EXPECT_EQ(same.step, failure.step);
  EXPECT_EQ(same.index, failure.index);
  EXPECT_EQ(same.peer, failure.peer);
  EXPECT_EQ(same.queue_pair, failure.queue_pair);
}

// Except that a flushed request gives way to the request that failed.
TEST(SharedQueueFailure, TheFirstCauseStays) {
  SharedQueues queues({});
  const gda::Queue& queue = queues.queue();
  gda::HostPlatform platform;
  const Failure wrong{.cause = Cause::nic, .syndrome = mlx5::Syndrome::remote_access};
  const Failure flushed{.cause = Cause::nic, .syndrome = mlx5::Syndrome::flushed};
  const Failure late{.cause = Cause::timeout, .step = Step::room};
  const auto cause = [&] { return gda::encode(gda::failure_of(queue, platform)); };
  for (const Failure& next : {flushed, late}) gda::end(queue, next, platform);
  EXPECT_EQ(cause(), gda::encode(flushed));
  gda::end(queue, wrong, platform);
  EXPECT_EQ(cause(), gda::encode(wrong));
  for (const Failure& later : {flushed, late}) gda::end(queue, later, platform);
  EXPECT_EQ(cause(), gda::encode(wrong));
  queue.shared->failure = 0;
  for (const Failure& next : {late, wrong}) gda::end(queue, next, platform);
  EXPECT_EQ(cause(), gda::encode(late));
}

INSTANTIATE_TEST_SUITE_P(All, SharedQueue, ::testing::ValuesIn(kinds()),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace shoal::emulator::test
