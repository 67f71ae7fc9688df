// SPDX-License-Identifier: Apache-2.0
// shoal/observe.hpp: what the PEs of this host do, and have done last.
//
// Every process keeps a record in memory: what each of its PEs does, and for each ep::Group the
// last operations (SHOAL_FLIGHT_ENTRIES) and counters (SHOAL_METRICS). Programs of the same user
// read the records of running processes without disturbing them:
//
//   for (const auto& record : shoal::observe::read_host())
//     std::puts(shoal::observe::to_json(record).c_str());
//   std::puts(shoal::observe::who_waits(shoal::observe::read_host()).c_str());
//
// docs/guide/observability.md shows the tools. Times are nanoseconds of the host's real-time clock.
// Records are read while they are written: an operation that changes meanwhile is omitted, and
// counters of one reading may be an operation apart. Kernels on GPUs count themselves; the process
// copies their counters to the record every SHOAL_METRICS_INTERVAL_MS, and before it reads or
// writes its own record.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include <shoal/pe.hpp>
#include <shoal/world.hpp>

namespace shoal::observe {

struct PhaseRecord {
  std::string name;  ///< "notify", "send", "rail", "receive", "finish"; "queued" on GPUs;
                     ///< "between" the calls of a low-latency operation
  std::int64_t start_ns = 0;
};

struct OperationRecord {
  std::uint64_t id = 0;  ///< counts the operations of a group on its rank, from 1
  std::uint64_t epoch = 0;
  std::string operation;  ///< "dispatch", "combine", "low_latency_dispatch", "low_latency_combine"
  /// "started"; "sent": low latency, receive not called; "completed"; "queued": on a GPU, where its
  /// kernels have not ended; "started" if they have waited for a rank for a millisecond; "failed".
  std::string state;
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;  ///< 0: has not ended; on a GPU, if no launch tells: end of the call
  std::vector<PhaseRecord> phases;
  std::int32_t awaited = -1;  ///< the rank that it waits, or waited last, for; -1: none
  /// Sent by a dispatch, fetched by a combine. Low latency on a GPU: at most.
  std::uint64_t rows = 0;
  std::uint64_t bytes = 0;   ///< of these rows
  std::int64_t wait_ns = 0;  ///< spent waiting for other ranks
  bool waiting = false;      ///< is in a wait for `awaited`
};

/// A kernel of an operation on a GPU. Normal operations are one kernel, low-latency ones two.
struct LaunchRecord {
  std::uint64_t epoch = 0;
  std::string operation;
  std::vector<PhaseRecord> phases;
  std::int64_t end_ns = 0;
  std::uint64_t rows = 0, bytes = 0;  ///< equal to those of its OperationRecord; 0: low latency
};

/// Durations of one phase. Bucket i counts those of 2^i to 2^(i+1) - 1 ns; the last one also longer
/// ones.
struct Histogram {
  static constexpr std::size_t kBuckets = 40;
  std::string operation, phase;
  std::uint64_t count = 0;
  std::int64_t sum_ns = 0;
  std::array<std::uint64_t, kBuckets> buckets{};
};

struct OperationTotals {
  std::string operation;
  std::uint64_t operations = 0, failures = 0, rows = 0, bytes = 0;
  std::int64_t time_ns = 0;  ///< of the calling thread, waits included
};

/// Totals of this rank's exchange with one other rank.
struct PeerTotals {
  std::uint64_t rows = 0, bytes = 0;  ///< sent to it by dispatches
  std::uint64_t waits = 0;            ///< for it that were not over at once
  std::int64_t wait_ns = 0;
  /// Sent to it over a network by dispatches. A normal dispatch sends a token once to each other
  /// node that needs it, to the rank with this rank's index there, which passes it on; so these are
  /// fewer than the rows for the ranks of that node.
  std::uint64_t network_rows = 0, network_bytes = 0;
};

struct GroupRecord {
  std::uint64_t number = 0;                 ///< of the group in its world, from 1
  std::int32_t rank = 0;                    ///< of this PE
  std::vector<Pe> pes;                      ///< by rank
  std::int32_t n_hosts = 1;                 ///< on which these PEs are
  std::string failure;                      ///< why the group is unusable; empty: it is not
  std::vector<OperationRecord> operations;  ///< oldest first
  std::vector<OperationTotals> totals;      ///< by operation
  std::vector<PeerTotals> peers;            ///< by rank
  std::vector<Histogram> histograms;        ///< of phases that ran
  std::int32_t first_expert = 0;            ///< the number in the group of this rank's first expert
  /// Rows received for each expert of this rank; expert i is number first_expert + i of the group.
  std::vector<std::uint64_t> expert_rows;
  std::vector<LaunchRecord> launches;  ///< the last ones on a GPU, by their start
};

/// Totals of a PE's operations with one other PE outside of groups.
struct WorldPeerTotals {
  std::uint64_t operations = 0, bytes = 0;  ///< one-sided, to or from it, with SHOAL_METRICS=all
  std::uint64_t waits = 0;                  ///< of collectives for it that were not over at once
  std::int64_t wait_ns = 0;
};

struct PeRecord {
  std::uint64_t world = 0;  ///< equal on the PEs of one world, different in others
  Pe pe = 0, n_pes = 0;
  std::int64_t pid = 0;
  std::string host;
  std::int64_t read_ns = 0;  ///< when the record was read
  /// The last operation outside of groups: "barrier 3, phase wait"; empty: none yet.
  std::string activity;
  bool active = false;  ///< that operation has not ended
  Pe awaited = -1;      ///< the PE that it waits for; -1: no single PE
  std::string failure;  ///< why a team of this PE became unusable
  /// Totals of operations outside of groups that took place, by name: "barrier", "sync",
  /// "exchange", "broadcast", "all_gather", "all_to_all", "all_to_all_v", "reduce",
  /// "reduce_scatter"; with SHOAL_METRICS=all also "put", "get", "signal" and "atomic", without
  /// times. Bytes are those that this PE contributes, or moves. Times are measured with
  /// SHOAL_METRICS=all. On streams, and in kernels, operations do not count.
  std::vector<OperationTotals> totals;
  std::vector<WorldPeerTotals> peers;  ///< by PE
  /// Histograms of collectives (phase "call"), with SHOAL_METRICS=all.
  std::vector<Histogram> histograms;
  std::vector<GroupRecord> groups;
};

/// The PEs of this process. Never throws for a lack of records: those of a process without memory
/// for them are missing.
[[nodiscard]] std::vector<PeRecord> read_process();
/// The PEs of all processes of this host whose records the caller may read: those of its user, and
/// for root all. Sorted by world, then PE.
[[nodiscard]] std::vector<PeRecord> read_host();

/// One JSON object on one line, with the fields above.
[[nodiscard]] std::string to_json(const PeRecord& pe);
/// The record in such text. Throws Error{invalid_argument} for text of other formats.
[[nodiscard]] PeRecord from_json(const std::string& text);
/// Writes the record of `world`'s PE to `directory`/shoal_flight_<pe>.json and returns that name.
/// Throws Error{system} when the file cannot be written, Error{unsupported} without a record.
std::string write_flight_record(const World& world, const std::string& directory);

/// The records in the files shoal_flight_*.json of a folder (SHOAL_FLIGHT_DIR), sorted by world,
/// then PE. A file that is no record is skipped with a warning in the log. Throws
/// Error{invalid_argument} for a folder without such files, and, naming a file, for one without any
/// record.
[[nodiscard]] std::vector<PeRecord> read_files(const std::string& folder);

/// Describes who waits for whom: for each group whose ranks wait, the rank at the end of each chain
/// of waits, what it does, the ranks that wait for it and their phases. `records` may come from
/// several hosts; ranks without a record are reported as such.
[[nodiscard]] std::string who_waits(const std::vector<PeRecord>& records);

}  // namespace shoal::observe
