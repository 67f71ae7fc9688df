// SPDX-License-Identifier: Apache-2.0
#include "record/recorder.hpp"

#include <algorithm>
#include <cstring>

#include "base/align.hpp"
#include "record/ranges.hpp"
#include "record/text.hpp"
#include "shoal/settings.hpp"

namespace shoal::detail::record {
namespace {

std::uint64_t kind_word(Operation operation, State state, std::uint64_t phases) noexcept {
  return static_cast<std::uint64_t>(operation) | static_cast<std::uint64_t>(state) << 8 |
         phases << 16;
}

std::uint64_t ticks(Time time) noexcept {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count());
}

}  // namespace

GroupRecorder::GroupRecorder(const Settings& settings, PeRecorder& pe, Pe my_pe, std::int32_t rank,
                             const std::vector<Pe>& pes, std::int64_t hosts,
                             std::int64_t first_expert, std::int64_t local_experts)
    : metrics_(settings.metrics != "off"), ranges_(settings.nvtx == "on" && has_profiler()) {
  const std::uint64_t number = pe.next_group();  // equal on all PEs, whatever their settings
  const auto entries = static_cast<std::uint64_t>(settings.flight_entries);
  const std::size_t entries_at = align_up(sizeof(GroupBlock), std::size_t{64});
  const std::size_t peers_at = entries_at + entries * sizeof(Entry);
  const std::size_t experts_at = peers_at + 2 * pes.size() * sizeof(PeerBlock);
  const auto experts = static_cast<std::uint64_t>(local_experts);
  const std::size_t launches_at =
      align_up(experts_at + 2 * experts * sizeof(Word), alignof(LaunchBlock));
  block_ = allocate(launches_at + kLaunchBlocks * sizeof(LaunchBlock));
  auto* const data = block_.as<std::byte>();
  if (data == nullptr) {
    metrics_ = false;
    return;
  }
  counts_ = metrics_;
  group_ = block_.as<GroupBlock>();
  entries_ = reinterpret_cast<Entry*>(data + entries_at);
  peers_ = reinterpret_cast<PeerBlock*>(data + peers_at);
  kernel_peers_ = peers_ + pes.size();
  experts_ = reinterpret_cast<Word*>(data + experts_at);
  kernel_experts_ = experts_ + experts;
  launches_ = reinterpret_cast<LaunchBlock*>(data + launches_at);
  n_entries_ = entries;
  group_->world.store(pe.world());
  group_->pe.store(static_cast<std::uint64_t>(my_pe));
  group_->number.store(number);
  group_->rank.store(static_cast<std::uint64_t>(rank));
  group_->ranks.store(pes.size());
  group_->hosts.store(static_cast<std::uint64_t>(hosts));
  group_->entries.store(entries);
  group_->entries_at.store(entries_at);
  group_->peers_at.store(peers_at);
  group_->first_expert.store(static_cast<std::uint64_t>(first_expert));
  group_->experts.store(experts);
  group_->experts_at.store(experts_at);
  group_->launches.store(kLaunchBlocks);
  group_->launches_at.store(launches_at);
  for (std::size_t i = 0; i < pes.size(); ++i)
    peers_[i].pe.store(static_cast<std::uint64_t>(pes[i]));
  block_.publish(Kind::group);
}

Entry* GroupRecorder::begin(Operation operation, Time now) noexcept {
  Entry* const outer = current_;
  if (ranges_) begin_range(static_cast<std::size_t>(operation));
  operation_ = operation;
  phase_ = Phase::none;
  n_phases_ = 0;
  phases_ = 0;
  phase_start_ = now;
  first_phase_ = true;
  if (n_entries_ == 0) return outer;
  Entry& entry = entries_[begun_ % n_entries_];
  entry.id.store(0);
  entry.kind.store(kind_word(operation, State::started, 0));
  entry.epoch.store(0);
  entry.start.store(ticks(now));
  entry.end.store(0);
  entry.rows.store(0);
  entry.bytes.store(0);
  entry.wait.store(0);
  entry.awaited.store(0);
  entry.phases.store(0);
  entry.id.store(++begun_);
  group_->operations.store(begun_);
  current_ = &entry;
  return outer;
}

Entry* GroupRecorder::resume(Operation operation, std::uint64_t epoch, Time now) noexcept {
  // The send is among the last operations, unless the program made many others meanwhile.
  const std::uint64_t oldest = begun_ - std::min<std::uint64_t>({begun_, n_entries_, 8});
  for (std::uint64_t at = begun_; at-- > oldest;) {
    Entry& entry = entries_[at % n_entries_];
    if (entry.epoch.load() != epoch ||
        (entry.kind.load() & 0xff) != static_cast<std::uint64_t>(operation))
      continue;
    Entry* const outer = current_;
    if (ranges_) begin_range(static_cast<std::size_t>(operation));
    current_ = &entry;
    operation_ = operation;
    phase_ = Phase::none;
    n_phases_ = static_cast<std::uint32_t>(entry.kind.load() >> 16);
    phases_ = entry.phases.load();
    phase_start_ = now;
    first_phase_ = true;
    entry.kind.store(kind_word(operation, State::started, n_phases_));
    entry.end.store(0);
    return outer;
  }
  return begin(operation, now);
}

void GroupRecorder::phase(Phase phase, std::uint64_t epoch) noexcept {
  if (phase == phase_ || (current_ == nullptr && !counts_)) return;
  const Time now = first_phase_ ? phase_start_ : std::chrono::steady_clock::now();
  end_phase(now);
  first_phase_ = false;
  phase_ = phase;
  phase_start_ = now;
  if (current_ == nullptr) return;
  current_->epoch.store(epoch);
  enter(phase, now);
}

void GroupRecorder::queue(std::uint64_t epoch, Time now) noexcept {
  phase_ = Phase::queued;
  first_phase_ = false;
  if (current_ == nullptr) return;
  current_->epoch.store(epoch);
  enter(Phase::queued, now);
}

void GroupRecorder::enter(Phase phase, Time now) noexcept {
  if (current_ == nullptr || n_phases_ == kEntryPhases) return;
  phases_ |= static_cast<std::uint64_t>(phase) << (8 * n_phases_);
  current_->phase_start[n_phases_].store(ticks(now));
  current_->phases.store(phases_);
  current_->kind.store(kind_word(operation_, State::started, ++n_phases_));
}

void GroupRecorder::end_phase(Time now) noexcept {
  if (phase_ == Phase::none || !counts_) return;
  const std::uint64_t took = ticks(now) - ticks(phase_start_);
  HistogramBlock& histogram =
      group_->histograms[static_cast<std::size_t>(operation_)][static_cast<std::size_t>(phase_)];
  const auto bucket = static_cast<std::size_t>(std::bit_width(took | 1) - 1);
  histogram.buckets[std::min(bucket, observe::Histogram::kBuckets - 1)].add(1);
  histogram.count.add(1);
  histogram.sum.add(took);
}

void GroupRecorder::end(State state, Time start, Time now, Entry* outer) noexcept {
  if (ranges_) end_range();
  end_phase(now);
  if (state == State::sent) enter(Phase::none, now);
  phase_ = Phase::none;
  if (counts_) {
    TotalsBlock& totals = group_->totals[static_cast<std::size_t>(operation_)];
    totals.time.add(ticks(now) - ticks(start));
    if (state != State::sent && !kernels_count_[static_cast<std::size_t>(operation_)])
      totals.operations.add(1);
    if (state == State::failed) totals.failures.add(1);
  }
  if (current_ != nullptr) {
    current_->kind.store(kind_word(operation_, state, n_phases_));
    current_->end.store(ticks(now));
  }
  current_ = outer;
  if (outer == nullptr) return;
  const std::uint64_t kind = outer->kind.load();
  operation_ = static_cast<Operation>(kind & 0xff);
  n_phases_ = static_cast<std::uint32_t>(kind >> 16);
  phases_ = outer->phases.load();
  first_phase_ = false;
}

void GroupRecorder::end_wait(std::int32_t rank, std::chrono::nanoseconds waited) noexcept {
  const auto time = static_cast<std::uint64_t>(waited.count());
  if (current_ != nullptr) {
    current_->awaited.store(static_cast<std::uint64_t>(rank) + 1);
    current_->wait.add(time);
  }
  if (!counts_) return;
  peers_[rank].waits.add(1);
  peers_[rank].wait.add(time);
}

void GroupRecorder::moved(std::uint64_t rows, std::uint64_t bytes) noexcept {
  if (current_ != nullptr) {
    current_->rows.store(rows);
    current_->bytes.store(bytes);
  }
  if (!counts_) return;
  TotalsBlock& totals = group_->totals[static_cast<std::size_t>(operation_)];
  totals.rows.add(rows);
  totals.bytes.add(bytes);
}

void GroupRecorder::show(const KernelCounts& counts) noexcept {
  if (group_ == nullptr || !metrics_) return;
  for (std::size_t op = 0; op < kOperations; ++op) {
    if (!kernels_count_[op]) continue;
    group_->totals[op].operations.store(counts.totals[op].operations);
    group_->totals[op].rows.store(counts.totals[op].rows);
    group_->totals[op].bytes.store(counts.totals[op].bytes);
  }
  for (const KernelCounts::Durations& durations : counts.durations) {
    if (!kernels_count_[static_cast<std::size_t>(durations.operation)]) continue;
    HistogramBlock& to = group_->histograms[static_cast<std::size_t>(durations.operation)]
                                           [static_cast<std::size_t>(durations.phase)];
    std::uint64_t count = 0;
    for (std::size_t i = 0; i < durations.buckets.size(); ++i) {
      to.buckets[i].store(durations.buckets[i]);
      count += durations.buckets[i];
    }
    to.sum.store(durations.sum);
    to.count.store(count);
  }
  for (std::size_t rank = 0; rank < counts.peers.size(); ++rank) {
    const KernelCounts::Peer& from = counts.peers[rank];
    PeerBlock& to = kernel_peers_[rank];
    to.rows.store(from.rows);
    to.bytes.store(from.bytes);
    to.waits.store(from.waits);
    to.wait.store(from.wait);
    to.network_rows.store(from.network_rows);
    to.network_bytes.store(from.network_bytes);
  }
  for (std::size_t expert = 0; expert < counts.expert_rows.size(); ++expert)
    kernel_experts_[expert].store(counts.expert_rows[expert]);
  group_->kernel_awaited.store(static_cast<std::uint64_t>(counts.wait.rank) + 1);
  group_->kernel_kind.store(static_cast<std::uint64_t>(counts.wait.operation) |
                            static_cast<std::uint64_t>(counts.wait.phase) << 8);
  group_->kernel_epoch.store(counts.wait.epoch);
  group_->kernel_since.store(counts.wait.since);
  for (std::size_t op = 0; op < kOperations; ++op) group_->kernels_done[op].store(counts.done[op]);
  for (std::size_t i = 0; n_entries_ > 0 && i < kLaunchBlocks; ++i) {
    LaunchBlock& to = launches_[i];
    to.epoch.store(0);
    if (i >= counts.launches.size()) continue;
    const KernelCounts::Launch& launch = counts.launches[i];
    std::uint64_t phases = 0;
    for (std::size_t p = 0; p < launch.phases.size(); ++p) {
      phases |= static_cast<std::uint64_t>(launch.phases[p].first) << (8 * p);
      to.starts[p].store(launch.phases[p].second);
    }
    to.kind.store(static_cast<std::uint64_t>(launch.operation) | launch.phases.size() << 8 |
                  launch.rows << 16);
    to.phases.store(phases);
    to.end.store(launch.end);
    to.bytes.store(launch.bytes);
    to.epoch.store(launch.epoch);
  }
}

void GroupRecorder::set_failure(std::string_view reason) noexcept {
  if (group_ != nullptr) store_text(group_->failure, reason);
}

}  // namespace shoal::detail::record
