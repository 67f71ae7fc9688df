// SPDX-License-Identifier: Apache-2.0
#include "record/reader.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <optional>

#include "base/files.hpp"
#include "memory/host/segment.hpp"
#include "record/process_record.hpp"
#include "record/refresh.hpp"
#include "record/text.hpp"

namespace shoal::detail::record {
namespace {

using observe::GroupRecord;
using observe::OperationRecord;
using observe::PeRecord;

constexpr std::uint64_t kMostRanks = 1 << 20;
/// Bytes that are read of the record of another process.
constexpr std::size_t kMostRead = kRecordBytes / 4;

template <typename Names>
std::string name_at(const Names& names, std::uint64_t index) {
  return index < std::size(names) ? names[index] : "unknown";
}

/// Nothing if the entry is being written or reused.
std::optional<OperationRecord> read_entry(const Entry& entry, std::uint64_t id,
                                          std::int64_t clock) {
  if (entry.id.load() != id) return std::nullopt;
  OperationRecord read;
  const auto time = [&](const Word& word) {
    const std::uint64_t value = word.load();
    return value == 0 ? 0 : static_cast<std::int64_t>(value) + clock;
  };
  const std::uint64_t kind = entry.kind.load();
  const std::uint64_t phases = entry.phases.load();
  const std::uint64_t awaited = entry.awaited.load();
  read.id = id;
  read.epoch = entry.epoch.load();
  read.operation = name_at(kOperationNames, kind & 0xff);
  read.state = name_at(kStateNames, kind >> 8 & 0xff);
  read.start_ns = time(entry.start);
  read.end_ns = time(entry.end);
  for (std::size_t i = 0; i < std::min<std::size_t>(kind >> 16, kEntryPhases); ++i)
    read.phases.push_back(
        {name_at(kPhaseNames, phases >> (8 * i) & 0xff), time(entry.phase_start[i])});
  read.waiting = (awaited & kWaiting) != 0;
  read.awaited = static_cast<std::int32_t>(awaited & ~kWaiting) - 1;
  read.rows = entry.rows.load();
  read.bytes = entry.bytes.load();
  read.wait_ns = static_cast<std::int64_t>(entry.wait.load());
  if (entry.id.load() != id) return std::nullopt;
  return read;
}

std::optional<observe::LaunchRecord> read_launch(const LaunchBlock& block, std::int64_t clock) {
  const std::uint64_t epoch = block.epoch.load();
  if (epoch == 0) return std::nullopt;
  observe::LaunchRecord read;
  const std::uint64_t kind = block.kind.load(), phases = block.phases.load();
  read.epoch = epoch;
  read.operation = name_at(kOperationNames, kind & 0xff);
  for (std::size_t i = 0; i < std::min<std::size_t>(kind >> 8 & 0xff, LaunchBlock::kPhases); ++i)
    read.phases.push_back({name_at(kPhaseNames, phases >> (8 * i) & 0xff),
                           static_cast<std::int64_t>(block.starts[i].load()) + clock});
  read.end_ns = static_cast<std::int64_t>(block.end.load()) + clock;
  read.rows = kind >> 16;
  read.bytes = block.bytes.load();
  if (block.epoch.load() != epoch || read.phases.empty()) return std::nullopt;
  return read;
}

/// Completes the operations that kernels have ended: calls only queue them.
void complete_queued(const GroupBlock& block, GroupRecord& group) {
  for (std::size_t i = 0; i < kOperations; ++i) {
    const std::uint64_t done = block.kernels_done[i].load();
    for (OperationRecord& op : group.operations)
      if (op.epoch <= done && op.state == "queued" && op.operation == kOperationNames[i])
        op.state = "completed";
  }
  for (const observe::LaunchRecord& launch : group.launches)
    for (OperationRecord& op : group.operations) {
      if (op.epoch != launch.epoch || op.operation != launch.operation || op.state != "completed")
        continue;
      op.phases.insert(op.phases.end(), launch.phases.begin(), launch.phases.end());
      op.end_ns = launch.end_ns;
      if (launch.rows == 0) continue;
      op.rows = launch.rows;
      op.bytes = launch.bytes;
    }
}

/// Shows the wait of a kernel in its operation, which a replayed graph does not have.
void show_kernel_wait(const GroupBlock& block, GroupRecord& group, std::int64_t clock) {
  const auto awaited = static_cast<std::int32_t>(block.kernel_awaited.load()) - 1;
  if (awaited < 0) return;
  const std::uint64_t kind = block.kernel_kind.load(), epoch = block.kernel_epoch.load();
  const std::string name = name_at(kOperationNames, kind & 0xff);
  auto found = std::find_if(
      group.operations.begin(), group.operations.end(),
      [&](const OperationRecord& op) { return op.operation == name && op.epoch == epoch; });
  const std::int64_t since = static_cast<std::int64_t>(block.kernel_since.load()) + clock;
  if (found == group.operations.end()) {
    OperationRecord op;
    op.id = group.operations.empty() ? 1 : group.operations.back().id + 1;
    op.epoch = epoch;
    op.operation = name;
    op.start_ns = since;
    found = group.operations.insert(group.operations.end(), std::move(op));
  }
  if (found->state == "failed") return;
  found->state = "started";
  found->end_ns = 0;
  found->awaited = awaited;
  found->waiting = true;
  found->phases.push_back({name_at(kPhaseNames, kind >> 8 & 0xff), since});
}

void read_counters(const GroupBlock& block, GroupRecord& group) {
  for (std::size_t op = 0; op < kOperations; ++op) {
    const TotalsBlock& totals = block.totals[op];
    group.totals.push_back({kOperationNames[op], totals.operations.load(), totals.failures.load(),
                            totals.rows.load(), totals.bytes.load(),
                            static_cast<std::int64_t>(totals.time.load())});
    for (std::size_t phase = 1; phase < kPhases; ++phase) {
      const HistogramBlock& from = block.histograms[op][phase];
      if (from.count.load() == 0) continue;
      observe::Histogram histogram{kOperationNames[op], kPhaseNames[phase], from.count.load(),
                                   static_cast<std::int64_t>(from.sum.load())};
      for (std::size_t i = 0; i < histogram.buckets.size(); ++i)
        histogram.buckets[i] = from.buckets[i].load();
      group.histograms.push_back(std::move(histogram));
    }
  }
}

/// `bytes`: of the section.
std::optional<GroupRecord> read_group(const GroupBlock& block, std::size_t bytes,
                                      std::int64_t clock) {
  const auto* const data = reinterpret_cast<const std::byte*>(&block);
  const std::uint64_t ranks = block.ranks.load(), entries = block.entries.load();
  const std::uint64_t entries_at = block.entries_at.load(), peers_at = block.peers_at.load();
  const std::uint64_t experts = block.experts.load(), experts_at = block.experts_at.load();
  const std::uint64_t launches = block.launches.load(), launches_at = block.launches_at.load();
  const auto fits = [&](std::uint64_t at, std::uint64_t count, std::size_t size) {
    return at % alignof(Word) == 0 && at <= bytes && count <= (bytes - at) / size;
  };
  if (ranks == 0 || ranks > kMostRanks || !fits(entries_at, entries, sizeof(Entry)) ||
      !fits(peers_at, ranks, 2 * sizeof(PeerBlock)) ||
      !fits(experts_at, experts, 2 * sizeof(Word)) ||
      !fits(launches_at, launches, sizeof(LaunchBlock)))
    return std::nullopt;
  GroupRecord group;
  group.number = block.number.load();
  group.rank = static_cast<std::int32_t>(block.rank.load());
  group.n_hosts = static_cast<std::int32_t>(block.hosts.load());
  group.failure = load_text(block.failure);
  const auto* const peers = reinterpret_cast<const PeerBlock*>(data + peers_at);
  for (std::uint64_t rank = 0; rank < ranks; ++rank) {
    const PeerBlock &peer = peers[rank], &of_kernels = peers[ranks + rank];
    const auto sum = [&](Word PeerBlock::* word) {
      return (peer.*word).load() + (of_kernels.*word).load();
    };
    group.pes.push_back(static_cast<Pe>(peer.pe.load()));
    group.peers.push_back({sum(&PeerBlock::rows), sum(&PeerBlock::bytes), sum(&PeerBlock::waits),
                           static_cast<std::int64_t>(sum(&PeerBlock::wait)),
                           sum(&PeerBlock::network_rows), sum(&PeerBlock::network_bytes)});
  }
  const auto* const ring = reinterpret_cast<const Entry*>(data + entries_at);
  const std::uint64_t last = entries == 0 ? 0 : block.operations.load();
  for (std::uint64_t id = last - std::min(last, entries) + 1; id <= last; ++id)
    if (auto read = read_entry(ring[(id - 1) % entries], id, clock))
      group.operations.push_back(std::move(*read));
  group.first_expert = static_cast<std::int32_t>(block.first_expert.load());
  const auto* const rows = reinterpret_cast<const Word*>(data + experts_at);
  for (std::uint64_t expert = 0; expert < experts; ++expert)
    group.expert_rows.push_back(rows[expert].load() + rows[experts + expert].load());
  const auto* const kernels = reinterpret_cast<const LaunchBlock*>(data + launches_at);
  for (std::uint64_t i = 0; i < launches; ++i)
    if (auto launch = read_launch(kernels[i], clock)) group.launches.push_back(std::move(*launch));
  std::sort(group.launches.begin(), group.launches.end(), [](const auto& a, const auto& b) {
    return a.phases[0].start_ns < b.phases[0].start_ns;
  });
  complete_queued(block, group);
  show_kernel_wait(block, group, clock);
  read_counters(block, group);
  return group;
}

void read_counters(const PeBlock& block, PeRecord& pe) {
  for (std::size_t op = 0; op < kWorldOperations; ++op) {
    const WorldCountsBlock& counts = block.counts[op];
    observe::Histogram calls{kWorldOperationNames[op], "call", 0,
                             static_cast<std::int64_t>(counts.time.load())};
    for (std::size_t i = 0; i < calls.buckets.size(); ++i)
      calls.count += calls.buckets[i] = counts.buckets[i].load();
    const std::uint64_t failures = counts.failures.load();
    if (calls.count + failures == 0) continue;
    pe.totals.push_back(
        {calls.operation, calls.count + failures, failures, 0, counts.bytes.load(), calls.sum_ns});
    if (calls.sum_ns != 0) pe.histograms.push_back(std::move(calls));
  }
}

/// `bytes`: of the section.
PeRecord read_pe(const PeBlock& block, std::size_t bytes) {
  PeRecord pe;
  pe.world = block.world.load();
  pe.pe = static_cast<Pe>(block.pe.load());
  pe.n_pes = static_cast<Pe>(block.n_pes.load());
  pe.host = load_text(block.host);
  pe.active = block.active.load() != 0;
  pe.awaited = static_cast<Pe>(block.awaited.load()) - 1;
  pe.failure = load_text(block.failure);
  const std::string activity = load_text(block.activity);
  if (!activity.empty()) pe.activity = fmt::format("{} {}", activity, block.epoch.load());
  read_counters(block, pe);
  const std::uint64_t at = block.peers_at.load(), pes = block.n_pes.load();
  if (at % alignof(Word) != 0 || at > bytes || pes > (bytes - at) / sizeof(WorldPeerBlock))
    return pe;
  const auto* const peers =
      reinterpret_cast<const WorldPeerBlock*>(reinterpret_cast<const std::byte*>(&block) + at);
  for (std::uint64_t i = 0; i < pes; ++i)
    pe.peers.push_back({peers[i].operations.load(), peers[i].bytes.load(), peers[i].waits.load(),
                        static_cast<std::int64_t>(peers[i].wait.load())});
  return pe;
}

/// Calls `use` for the record in a file descriptor of process `pid`. Returns whether it is one.
bool use_memfd(const std::string& path, std::int64_t pid,
               const std::function<void(const ProcessBlock&, std::size_t)>& use) {
  const memory::FileDescriptor fd(open_foreign_file(path.c_str(), ForeignFile::memory));
  struct stat status{};
  // The size of a record is sealed: reading it cannot fault.
  const int seals = fd ? fcntl(fd.get(), F_GET_SEALS) : -1;
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(fd.get(), &status) != 0) return false;
  const auto bytes = std::min(static_cast<std::size_t>(status.st_size), kMostRead);
  if (bytes < sizeof(ProcessBlock)) return false;
  void* const at = mmap(nullptr, bytes, PROT_READ, MAP_SHARED | MAP_NORESERVE, fd.get(), 0);
  if (at == MAP_FAILED) return false;
  const auto& process = *static_cast<const ProcessBlock*>(at);
  // A child of fork has its parent's descriptor as well.
  const bool own = process.pid.load() == static_cast<std::uint64_t>(pid) || process.pid.load() == 0;
  if (own) use(process, bytes);
  munmap(at, bytes);
  return own;
}

void sort(std::vector<PeRecord>& records) {
  std::sort(records.begin(), records.end(), [](const PeRecord& a, const PeRecord& b) {
    return a.world != b.world ? a.world < b.world : a.pe < b.pe;
  });
}

}  // namespace

std::vector<PeRecord> read(const ProcessBlock& process, std::size_t bytes,
                           std::optional<std::pair<std::uint64_t, Pe>> only) {
  if (process.magic.load() != kMagic || process.version.load() != kVersion) return {};
  const auto clock = static_cast<std::int64_t>(process.clock.load());
  const auto now = std::chrono::duration_cast<std::chrono::nanoseconds>(
                       std::chrono::steady_clock::now().time_since_epoch())
                       .count();
  const auto each = [&](Kind kind, std::size_t least, auto&& use) {
    each_section(process, bytes, kind, least, use);
  };
  std::vector<PeRecord> records;
  each(Kind::pe, sizeof(PeBlock), [&](const std::byte* at, std::size_t size) {
    PeRecord pe = read_pe(*reinterpret_cast<const PeBlock*>(at), size);
    if (only && (pe.world != only->first || pe.pe != only->second)) return;
    records.push_back(std::move(pe));
    records.back().pid = static_cast<std::int64_t>(process.pid.load());
    records.back().read_ns = now + clock;
  });
  each(Kind::group, sizeof(GroupBlock), [&](const std::byte* at, std::size_t size) {
    const auto& block = *reinterpret_cast<const GroupBlock*>(at);
    for (PeRecord& pe : records) {
      if (pe.world != block.world.load() || pe.pe != static_cast<Pe>(block.pe.load())) continue;
      if (auto group = read_group(block, size, clock)) pe.groups.push_back(std::move(*group));
    }
  });
  for (PeRecord& pe : records)
    std::sort(pe.groups.begin(), pe.groups.end(),
              [](const auto& a, const auto& b) { return a.number < b.number; });
  sort(records);
  return records;
}

void each_process(const std::function<void(const ProcessBlock&, std::size_t)>& use) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  for (const auto& process : fs::directory_iterator("/proc", ignored)) {
    const std::string name = process.path().filename();
    std::int64_t pid = 0;
    if (std::from_chars(name.data(), name.data() + name.size(), pid).ec != std::errc{}) continue;
    std::error_code denied;
    for (const auto& fd : fs::directory_iterator(process.path() / "fd", denied)) {
      std::error_code gone;
      const std::string target = fs::read_symlink(fd.path(), gone);
      if (!gone && target.starts_with(fmt::format("/memfd:{}", kMemfdName)) &&
          use_memfd(fd.path(), pid, use))
        break;  // a process has one record
    }
  }
}

}  // namespace shoal::detail::record

namespace shoal::observe {

std::vector<PeRecord> read_process() {
  const auto* const own = detail::record::own_record();
  if (own == nullptr) return {};
  detail::record::refresh_all();
  return detail::record::read(*own, detail::record::kRecordBytes);
}

std::vector<PeRecord> read_host() {
  std::vector<PeRecord> all;
  detail::record::each_process([&](const detail::record::ProcessBlock& process, std::size_t bytes) {
    for (PeRecord& pe : detail::record::read(process, bytes)) all.push_back(std::move(pe));
  });
  detail::record::sort(all);
  return all;
}

}  // namespace shoal::observe
