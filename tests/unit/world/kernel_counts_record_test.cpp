// SPDX-License-Identifier: Apache-2.0
// The record of a group whose kernels count: what GroupRecorder::show writes and readers see; and
// when parts of the record are refreshed.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <thread>

#include "record/recorder.hpp"
#include "record/refresh.hpp"
#include "shoal/observe.hpp"
#include "shoal/settings.hpp"
#include "support/expect_error.hpp"
#include "support/wait_for.hpp"

namespace shoal::detail::record {
namespace {

constexpr std::uint64_t kWorld = 0x5151;

observe::GroupRecord read_group() {
  for (const auto& pe : observe::read_process())
    if (pe.world == kWorld) return pe.groups.at(0);
  ADD_FAILURE() << "no record";
  return {};
}

struct Records {
  explicit Records(const Settings& settings = {}) : group(settings, pe, 0, 0, {0, 1}, 1, 0, 3) {
    group.leave_counters_to_kernels(true, true);
  }
  /// A call that queues kernels. Returns its duration.
  std::chrono::nanoseconds queue(Operation operation, std::uint64_t epoch) {
    const Time now = std::chrono::steady_clock::now();
    Entry* const outer = group.begin(operation, now);
    group.moves_at_most(16, 160);
    group.queue(epoch, now + std::chrono::microseconds(3));
    group.end(State::queued, now, now + std::chrono::microseconds(3), outer);
    return std::chrono::microseconds(3);
  }
  PeRecorder pe{{}, kWorld, 0, 2, "host"};
  GroupRecorder group;
};

KernelCounts counts() {
  KernelCounts counts;
  counts.totals[0] = {7, 70, 700};
  KernelCounts::Durations durations{Operation::dispatch, Phase::notify, 3000};
  durations.buckets[10] = 2;
  durations.buckets[9] = 1;
  counts.durations = {durations};
  counts.peers = {{10, 100, 0, 0}, {60, 600, 3, 5000, 40, 400}};
  counts.expert_rows = {5, 0, 9};
  counts.launches = {{Operation::dispatch, 8, {{Phase::notify, 2000}, {Phase::send, 2500}}, 3000},
                     {Operation::low_latency_combine, 1, {{Phase::send, 1000}}, 1500}};
  return counts;
}

TEST(KernelCountsRecord, ReadersSeeWhatKernelsCounted) {
  Records records;
  records.group.show(counts());
  const observe::GroupRecord seen = read_group();
  EXPECT_EQ(seen.totals[0].operations, 7U);
  EXPECT_EQ(seen.totals[0].rows, 70U);
  EXPECT_EQ(seen.totals[0].bytes, 700U);
  ASSERT_EQ(seen.histograms.size(), 1U);
  EXPECT_EQ(seen.histograms[0].phase, "notify");
  EXPECT_EQ(seen.histograms[0].count, 3U);
  EXPECT_EQ(seen.histograms[0].sum_ns, 3000);
  EXPECT_EQ(seen.histograms[0].buckets[10], 2U);
  EXPECT_EQ(seen.peers[1].rows, 60U);
  EXPECT_EQ(seen.peers[1].waits, 3U);
  EXPECT_EQ(seen.peers[1].wait_ns, 5000);
  EXPECT_EQ(seen.peers[1].network_rows, 40U);
  EXPECT_EQ(seen.peers[1].network_bytes, 400U);
  EXPECT_EQ(seen.expert_rows, (std::vector<std::uint64_t>{5, 0, 9}));
  ASSERT_EQ(seen.launches.size(), 2U);
  EXPECT_EQ(seen.launches[0].operation, "low_latency_combine") << "by their start";
  EXPECT_EQ(seen.launches[1].phases.size(), 2U);
  EXPECT_EQ(seen.launches[1].phases[1].name, "send");
  EXPECT_EQ(seen.launches[1].phases[1].start_ns - seen.launches[1].phases[0].start_ns, 500);
  EXPECT_EQ(seen.launches[1].end_ns - seen.launches[1].phases[1].start_ns, 500);

  KernelCounts fewer = counts();
  fewer.launches.clear();
  records.group.show(fewer);
  EXPECT_TRUE(read_group().launches.empty());
}

TEST(KernelCountsRecord, OperationsOfTheHostDoNotCountTwice) {
  Records records;
  records.group.show(counts());
  const auto took = records.queue(Operation::dispatch, 8);
  const observe::GroupRecord seen = read_group();
  EXPECT_EQ(seen.totals[0].operations, 7U);
  EXPECT_EQ(seen.totals[0].time_ns, took.count());
}

TEST(KernelCountsRecord, AnOperationIsCompletedWhenItsKernelsHaveEnded) {
  Records records;
  records.queue(Operation::dispatch, 7);
  records.queue(Operation::dispatch, 8);
  records.queue(Operation::low_latency_combine, 1);
  records.queue(Operation::dispatch, 9);
  for (const auto& op : read_group().operations) EXPECT_EQ(op.state, "queued");
  KernelCounts ended = counts();
  ended.launches[0].rows = 12;
  ended.launches[0].bytes = 120;
  ended.done = {8, 8, 0, 1};
  records.group.show(ended);
  const observe::GroupRecord seen = read_group();
  ASSERT_EQ(seen.operations.size(), 4U);
  const auto names = [&](std::size_t op) {
    std::string text = seen.operations[op].state;
    for (const auto& phase : seen.operations[op].phases) text += ' ' + phase.name;
    return text;
  };
  EXPECT_EQ(names(0), "completed queued") << "its launch is not in the record";
  EXPECT_EQ(names(1), "completed queued notify send");
  EXPECT_EQ(names(2), "completed queued send");
  EXPECT_EQ(names(3), "queued queued");
  const observe::OperationRecord& op = seen.operations[1];
  EXPECT_EQ(op.phases[0].start_ns - op.start_ns, 3000) << "the call";
  EXPECT_EQ(op.end_ns - op.phases[1].start_ns, 1000);
  EXPECT_EQ(op.rows, 12U);
  EXPECT_EQ(op.bytes, 120U);
  EXPECT_EQ(seen.operations[2].rows, 16U) << "the most that the call moves";
}

TEST(KernelCountsRecord, OperationsThatKernelsDoNotCountAreThoseOfTheHost) {
  Records records;
  records.group.leave_counters_to_kernels(true, false);
  const Time now = std::chrono::steady_clock::now();
  Entry* const outer = records.group.begin(Operation::low_latency_dispatch, now);
  records.group.end(State::queued, now, now, outer);
  KernelCounts with_low_latency = counts();
  with_low_latency.totals[2] = {9, 9, 9};
  records.group.show(with_low_latency);
  EXPECT_EQ(read_group().totals[0].operations, 7U);
  EXPECT_EQ(read_group().totals[2].operations, 1U);
  EXPECT_EQ(read_group().totals[2].rows, 0U);
}

// A group between nodes can have kernels for low-latency mode and a host that moves the rows of
// normal mode.
TEST(KernelCountsRecord, WhatTheHostAndKernelsCountIsAdded) {
  Records records;
  records.group.leave_counters_to_kernels(false, true);
  const Time now = std::chrono::steady_clock::now();
  Entry* const outer = records.group.begin(Operation::dispatch, now);
  records.group.phase(Phase::notify, 1);
  records.group.moved(5, 50);
  records.group.sent_to(1, 5, 50);
  records.group.sent_over_network(1, 4, 40);
  records.group.received(2, 6);
  records.group.end_wait(1, std::chrono::nanoseconds(100));
  records.group.end(State::completed, now, now + std::chrono::microseconds(3), outer);
  KernelCounts of_kernels = counts();
  of_kernels.totals[0] = {};
  of_kernels.totals[2] = {8, 80, 800};
  for (int copy = 0; copy < 2; ++copy) records.group.show(of_kernels);
  const observe::GroupRecord seen = read_group();
  EXPECT_EQ(seen.totals[0].operations, 1U);
  EXPECT_EQ(seen.totals[0].rows, 5U);
  EXPECT_EQ(seen.totals[2].operations, 8U);
  ASSERT_EQ(seen.histograms.size(), 1U);
  EXPECT_EQ(seen.histograms[0].count, 1U) << "of the host's phase";
  EXPECT_EQ(seen.peers[1].rows, 65U);
  EXPECT_EQ(seen.peers[1].bytes, 650U);
  EXPECT_EQ(seen.peers[1].waits, 4U);
  EXPECT_EQ(seen.peers[1].wait_ns, 5100);
  EXPECT_EQ(seen.peers[1].network_rows, 44U);
  EXPECT_EQ(seen.peers[1].network_bytes, 440U);
  EXPECT_EQ(seen.expert_rows, (std::vector<std::uint64_t>{5, 0, 15}));
}

TEST(KernelCountsRecord, AWaitOfAKernelIsShownInItsOperation) {
  Records records;
  records.queue(Operation::dispatch, 8);
  KernelCounts waiting = counts();
  waiting.wait = {1, Operation::dispatch, Phase::notify, 8, 2000};
  records.group.show(waiting);
  observe::OperationRecord op = read_group().operations.back();
  EXPECT_EQ(op.state, "started");
  EXPECT_TRUE(op.waiting);
  EXPECT_EQ(op.awaited, 1);
  EXPECT_EQ(op.phases.back().name, "notify");
  EXPECT_EQ(op.end_ns, 0);
  std::vector<observe::PeRecord> mine;
  for (const auto& pe : observe::read_process())
    if (pe.world == kWorld) mine.push_back(pe);
  test::expect_parts(observe::who_waits(mine), {"rank 1 (PE 1) is behind: rank 0 waits for it"});

  // A replayed graph has no entry.
  waiting.wait.epoch = 9;
  records.group.show(waiting);
  const observe::GroupRecord seen = read_group();
  ASSERT_EQ(seen.operations.size(), 2U);
  EXPECT_EQ(seen.operations[0].state, "queued");
  EXPECT_EQ(seen.operations[1].epoch, 9U);
  EXPECT_TRUE(seen.operations[1].waiting);

  records.group.show(counts());
  EXPECT_FALSE(read_group().operations.back().waiting) << "it is over";
}

TEST(KernelCountsRecord, SettingsLeavePartsOut) {
  Settings settings;
  settings.flight_entries = 0;
  {
    Records records(settings);
    records.group.show(counts());
    EXPECT_TRUE(read_group().launches.empty());
    EXPECT_EQ(read_group().totals[0].rows, 70U);
  }
  settings = {};
  settings.metrics = "off";
  Records records(settings);
  records.group.show(counts());
  EXPECT_EQ(read_group().totals[0].rows, 0U);
}

TEST(Refresh, CopiesFromTimeToTimeAndWhenAsked) {
  std::atomic<int> often = 0, asked = 0;
  auto by_time = std::make_unique<Refresh>([&] { ++often; }, std::chrono::milliseconds(1));
  auto by_request = std::make_unique<Refresh>([&] { ++asked; }, std::chrono::milliseconds(0));
  EXPECT_TRUE(test::wait_for([&] { return often >= 5; }));
  EXPECT_EQ(asked, 0);
  refresh_all();
  EXPECT_EQ(asked, 1);
  observe::read_process();
  EXPECT_EQ(asked, 2);
  by_request.reset();
  refresh_all();
  EXPECT_EQ(asked, 2);
  by_time.reset();
  const int last = often;
  refresh_all();
  EXPECT_EQ(often, last);
  // The thread starts again.
  by_time = std::make_unique<Refresh>([&] { ++often; }, std::chrono::milliseconds(1));
  EXPECT_TRUE(test::wait_for([&] { return often > last; }));
}

TEST(Refresh, AnExceptionEndsOnlyItsOwnCopy) {
  int copies = 0;
  const Refresh bad([] { throw std::runtime_error("no"); }, std::chrono::milliseconds(0));
  const Refresh good([&] { ++copies; }, std::chrono::milliseconds(0));
  refresh_all();
  EXPECT_EQ(copies, 1);
}

}  // namespace
}  // namespace shoal::detail::record
