// SPDX-License-Identifier: Apache-2.0
#include "ep/cuda/group/kernel_counts.hpp"

#include <algorithm>
#include <bit>

#include "ep/cuda/group/phases.hpp"

namespace shoal::ep::cuda {

namespace record = shoal::detail::record;

namespace {

using record::KernelCounts;
using record::Operation;

// Epochs are those of GroupMemory, in this order.
static_assert(offsetof(GroupMemory, epoch) == 0 && kKernelKinds == 5);
static_assert(static_cast<std::uint32_t>(KernelKind::normal) == 0 &&
              offsetof(GroupMemory, dispatches_sent) ==
                  8 * static_cast<std::uint32_t>(KernelKind::low_latency_dispatch_send) &&
              offsetof(GroupMemory, dispatches_received) ==
                  8 * static_cast<std::uint32_t>(KernelKind::low_latency_dispatch_receive) &&
              offsetof(GroupMemory, combines_sent) ==
                  8 * static_cast<std::uint32_t>(KernelKind::low_latency_combine_send) &&
              offsetof(GroupMemory, combines_received) ==
                  8 * static_cast<std::uint32_t>(KernelKind::low_latency_combine_receive));
static_assert(DurationRecord::kBuckets == shoal::observe::Histogram::kBuckets);
static_assert(static_cast<std::uint32_t>(RecordedOperation::low_latency_combine) ==
              static_cast<std::uint32_t>(Operation::low_latency_combine));
static_assert(std::size_t{kKernelKinds} * kLaunches <= record::kLaunchBlocks);

constexpr bool is_low_latency(std::uint64_t operation) {
  return operation >= static_cast<std::uint64_t>(RecordedOperation::low_latency_dispatch);
}

/// The phases of an operation, as DurationRecords and times of a launch have them.
record::Phase phase_of(std::uint64_t operation, std::uint32_t index, const NodeBorders& borders) {
  constexpr record::Phase kDispatch[] = {record::Phase::notify, record::Phase::send,
                                         record::Phase::receive};
  constexpr record::Phase kCombine[] = {record::Phase::notify, record::Phase::receive,
                                        record::Phase::finish};
  constexpr record::Phase kLowLatency[] = {record::Phase::send, record::Phase::receive,
                                           record::Phase::none};
  if (is_low_latency(operation)) return kLowLatency[index];
  if (index == 1 && borders.rails) return record::Phase::rail;
  return operation == 0 ? kDispatch[index] : kCombine[index];
}

bool receives(std::uint32_t kind) {
  return kind == static_cast<std::uint32_t>(KernelKind::low_latency_dispatch_receive) ||
         kind == static_cast<std::uint32_t>(KernelKind::low_latency_combine_receive);
}

/// A send ends before the kernel that forwards it, so its epoch does not say that it is complete.
bool is_complete(const LaunchRecord& launch, std::uint64_t epoch, std::uint32_t kind,
                 const NodeBorders& borders) {
  const bool forwards = kind != 0 && !receives(kind) && !borders.remote_ranks.empty();
  return launch.epoch == epoch && launch.end() >= launch.start &&
         launch.operation < kRecordedOperations && (!forwards || launch.forwarded == epoch);
}

void add_duration(DurationRecord& to, std::uint64_t from, std::uint64_t until) {
  const std::uint64_t took = until > from ? until - from : 0;
  const auto bucket = static_cast<std::uint32_t>(std::bit_width(took | 1) - 1);
  to.sum += took;
  ++to.buckets[std::min(bucket, DurationRecord::kBuckets - 1)];
}

void add_launch(KernelRecord& to, const LaunchRecord& launch, std::uint32_t kind) {
  OperationCounts& counts = to.operations[launch.operation];
  DurationRecord(&durations)[kLaunchPhases] = to.durations[launch.operation];
  const std::uint64_t begin = launch.begin(), notified = std::max(launch.notified, begin);
  counts.waited += notified - begin;
  if (kind == 0) {
    ++counts.operations;
    add_duration(durations[0], begin, notified);
    add_duration(durations[1], notified, launch.sent);
    add_duration(durations[2], launch.sent, launch.end());
    counts.waited += launch.end() - launch.sent;
  } else {
    if (receives(kind)) ++counts.operations;
    add_duration(durations[receives(kind) ? 1 : 0], begin, launch.end());
  }
}

KernelCounts::Launch shown(const LaunchRecord& launch, std::uint32_t kind,
                           const NodeBorders& borders, std::int64_t clock) {
  KernelCounts::Launch to;
  const auto add = [&](std::uint32_t phase, std::uint64_t start) {
    to.phases.emplace_back(phase_of(launch.operation, phase, borders),
                           start + static_cast<std::uint64_t>(clock));
  };
  to.operation = static_cast<Operation>(launch.operation);
  to.epoch = launch.epoch;
  to.rows = launch.rows;
  to.bytes = launch.bytes;
  to.end = launch.end() + static_cast<std::uint64_t>(clock);
  if (kind == 0) {
    add(0, launch.begin());
    add(1, std::max(launch.notified, launch.begin()));
    add(2, launch.sent);
  } else {
    add(receives(kind) ? 1 : 0, launch.begin());
  }
  return to;
}

/// The kernel with which an operation ends.
KernelKind last_kernel(std::size_t operation) {
  constexpr KernelKind kLast[] = {KernelKind::normal, KernelKind::normal,
                                  KernelKind::low_latency_dispatch_receive,
                                  KernelKind::low_latency_combine_receive};
  return kLast[operation];
}

/// The wait that has lasted longest, of those whose operation has not ended.
KernelCounts::Wait wait_of(const KernelRecord& record, const Epochs& done, std::int32_t ranks) {
  KernelCounts::Wait longest;
  for (std::int32_t rank = 0; rank < ranks; ++rank) {
    const RankRecord& from = record.ranks[rank];
    if (from.waiting == 0) continue;
    const std::uint64_t epoch = from.waiting >> 8;
    const PhaseText& place = text_of(static_cast<Phase>(from.waiting & 0xff));
    const KernelKind end = last_kernel(static_cast<std::size_t>(place.operation));
    if (epoch <= done.of_kind[static_cast<std::uint32_t>(end)]) continue;
    if (longest.rank >= 0 && longest.since <= from.waiting_since) continue;
    longest = {rank, place.operation, place.phase, epoch, from.waiting_since};
  }
  return longest;
}

}  // namespace

void add_last_launches(KernelRecord& to, const Epochs& done, const NodeBorders& borders) {
  for (std::uint32_t kind = 0; kind < kKernelKinds; ++kind) {
    const std::uint64_t last = done.of_kind[kind];
    const std::uint64_t kept = last - std::min<std::uint64_t>(last, kLaunches);
    for (std::uint64_t epoch = std::max(to.added[kind], kept) + 1; epoch <= last; ++epoch) {
      const LaunchRecord& launch = to.launches[kind][epoch % kLaunches];
      if (is_complete(launch, epoch, kind, borders)) add_launch(to, launch, kind);
    }
    to.added[kind] = std::max(to.added[kind], last);
  }
  const auto sends = static_cast<std::uint32_t>(KernelKind::low_latency_combine_send);
  for (RankRecord& rank : to.ranks) {
    std::uint64_t& longest = to.weight_wait[done.of_kind[sends] & 1][&rank - to.ranks];
    if (longest == 0) continue;
    ++rank.waits;
    rank.waited += longest;
    longest = 0;
  }
}

KernelCounts counts_of(const KernelRecord& from, const Epochs& done, const detail::Shape& shape,
                       const NodeBorders& borders, std::int32_t me, std::int64_t clock) {
  KernelCounts counts;
  const auto hidden = static_cast<std::uint64_t>(shape.hidden);
  for (std::uint32_t op = 0; op < kRecordedOperations; ++op) {
    counts.totals[op] = {from.operations[op].operations, from.operations[op].rows,
                         from.operations[op].bytes};
    for (std::uint32_t index = 0; index < kLaunchPhases; ++index) {
      const record::Phase phase = phase_of(op, index, borders);
      if (phase == record::Phase::none) continue;
      KernelCounts::Durations durations{static_cast<Operation>(op), phase,
                                        from.durations[op][index].sum};
      std::copy_n(from.durations[op][index].buckets, durations.buckets.size(),
                  durations.buckets.begin());
      counts.durations.push_back(durations);
    }
  }
  auto& dispatches = counts.totals[static_cast<std::size_t>(Operation::low_latency_dispatch)];
  for (std::int32_t rank = 0; rank < shape.ranks; ++rank) {
    const RankRecord& peer = from.ranks[rank];
    std::uint64_t rows = 0, bytes = 0;
    for (const LowLatencyRows& copy : from.low_latency_rows) {
      const auto& sent = copy.sent[rank];
      rows += sent[0] + sent[1] + sent[2];
      bytes += (2 * sent[0] + sent[1]) * hidden + sent[2] * hidden / 2;
    }
    dispatches.rows += rows;
    dispatches.bytes += bytes;
    const bool remote = std::ranges::find(borders.remote_ranks, rank) != borders.remote_ranks.end();
    counts.peers.push_back({peer.rows + rows, peer.bytes + bytes, peer.waits, peer.waited,
                            peer.network_rows + (remote ? rows : 0),
                            peer.network_bytes + (remote ? bytes : 0)});
  }
  auto& combines = counts.totals[static_cast<std::size_t>(Operation::low_latency_combine)];
  for (const LowLatencyRows& copy : from.low_latency_rows) combines.rows += copy.combined;
  combines.bytes = 2 * combines.rows * hidden;
  counts.expert_rows.assign(from.expert_rows, from.expert_rows + shape.experts_of(me));
  for (std::uint32_t kind = 0; kind < kKernelKinds; ++kind)
    for (const LaunchRecord& launch : from.launches[kind])
      if (launch.epoch > 0 && launch.epoch <= done.of_kind[kind] &&
          is_complete(launch, launch.epoch, kind, borders))
        counts.launches.push_back(shown(launch, kind, borders, clock));
  for (std::size_t op = 0; op < record::kOperations; ++op) {
    const std::uint64_t last = done.of_kind[static_cast<std::size_t>(last_kernel(op))];
    // A receive of low-latency mode advances its epoch while blocks of it still wait, and when it
    // has failed.
    counts.done[op] = is_low_latency(op) && last > 0 ? last - 1 : last;
  }
  counts.wait = wait_of(from, done, shape.ranks);
  if (counts.wait.rank == me) counts.wait = {};
  counts.wait.since += static_cast<std::uint64_t>(clock);
  return counts;
}

void add_counts(const KernelRecord& from, Statistics& statistics) {
  statistics.rows_sent +=
      from.operations[static_cast<std::uint32_t>(RecordedOperation::dispatch)].rows;
  for (const LowLatencyRows& copy : from.low_latency_rows) {
    for (const auto& sent : copy.sent) statistics.rows_sent += sent[0] + sent[1] + sent[2];
    statistics.rows_received += copy.received;
  }
  std::uint64_t waited = 0;
  for (const OperationCounts& counts : from.operations) {
    statistics.rows_received += counts.received;
    waited += counts.waited;
  }
  statistics.wait_time += std::chrono::nanoseconds(waited);
}

}  // namespace shoal::ep::cuda
