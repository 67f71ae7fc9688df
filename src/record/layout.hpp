// SPDX-License-Identifier: Apache-2.0
// layout.hpp: the record of a process as it lies in memory: a memfd that readers map (reader.cpp).
//
// One thread writes a block of a group at a time; several add to the counters of a PE's block.
// Readers may be other processes, so every word is atomic. An entry of a ring is valid if its `id`
// is the same before and after it is read, and not 0. Words are stored by release and loaded by
// acquire, in place of fences, which the thread sanitizer does not know: who sees a word of an
// entry sees the 0 that was stored to its `id` before.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "shoal/observe.hpp"

namespace shoal::detail::record {

inline constexpr char kMemfdName[] = "shoal-record";
inline constexpr std::uint64_t kMagic = 0x53484f414c524543;  // "SHOALREC"
/// Increases with every change of this file.
inline constexpr std::uint64_t kVersion = 5;

enum class Operation : std::uint8_t {
  dispatch,
  combine,
  low_latency_dispatch,
  low_latency_combine
};
inline constexpr std::size_t kOperations = 4;
inline constexpr const char* kOperationNames[kOperations] = {
    "dispatch", "combine", "low_latency_dispatch", "low_latency_combine"};

/// Operations of a world outside of groups: collectives, then one-sided ones.
enum class WorldOperation : std::uint8_t {
  barrier,
  sync,
  exchange,
  broadcast,
  all_gather,
  all_to_all,
  all_to_all_v,
  reduce,
  reduce_scatter,
  put,
  get,
  signal,
  atomic
};
inline constexpr std::size_t kWorldOperations = 13;
inline constexpr const char* kWorldOperationNames[kWorldOperations] = {
    "barrier",    "sync",         "exchange", "broadcast",      "all_gather",
    "all_to_all", "all_to_all_v", "reduce",   "reduce_scatter", "put",
    "get",        "signal",       "atomic"};

enum class Phase : std::uint8_t { none, notify, send, rail, receive, finish, queued };
inline constexpr std::size_t kPhases = 7;
inline constexpr const char* kPhaseNames[kPhases] = {"between", "notify", "send",  "rail",
                                                     "receive", "finish", "queued"};

enum class State : std::uint8_t { started, sent, completed, queued, failed };
inline constexpr const char* kStateNames[] = {"started", "sent", "completed", "queued", "failed"};

/// A word that one thread writes, or several add to, and others read.
class Word {
 public:
  void store(std::uint64_t value) noexcept { word_.store(value, std::memory_order_release); }
  std::uint64_t load() const noexcept { return word_.load(std::memory_order_acquire); }
  /// The writer alone calls: no atomic read-modify-write.
  void add(std::uint64_t value) noexcept { store(load() + value); }
  /// Several threads may call.
  void add_shared(std::uint64_t value) noexcept {
    word_.fetch_add(value, std::memory_order_relaxed);
  }

 private:
  std::atomic<std::uint64_t> word_;
};

template <std::size_t words>
using Text = std::array<Word, words>;

inline constexpr std::size_t kEntryPhases = 6;

/// An operation: two cache lines.
struct Entry {
  Word id;
  Word kind;  ///< Operation, State << 8, number of phases << 16
  Word epoch, start, end, rows, bytes, wait;
  Word awaited;  ///< rank + 1, or 0; kWaiting is set during the wait
  Word phases;   ///< 8 bits each
  Word phase_start[kEntryPhases];
};
static_assert(sizeof(Entry) == 128);
inline constexpr std::uint64_t kWaiting = std::uint64_t{1} << 63;

struct HistogramBlock {
  Word count, sum;
  Word buckets[observe::Histogram::kBuckets];
};
struct TotalsBlock {
  Word operations, failures, rows, bytes, time;
};
struct PeerBlock {
  Word pe, rows, bytes, waits, wait, network_rows, network_bytes;
};

/// A launch of a kernel. Valid if `epoch` is the same before and after it is read, and not 0.
struct LaunchBlock {
  static constexpr std::size_t kPhases = 3;
  Word epoch;
  Word kind;    ///< Operation, number of phases << 8, rows << 16
  Word phases;  ///< 8 bits each
  Word starts[kPhases];
  Word end, bytes;
};
static_assert(sizeof(LaunchBlock) == 64);
/// Launches of a group that its record has room for.
inline constexpr std::size_t kLaunchBlocks = 160;

/// Entries, peers, experts (a word each: rows received) and launches follow. Offsets count from the
/// start of the block. Of a group whose kernels count, another thread writes the counters of their
/// operations, launches and `kernel_*`. Peers and experts are there twice: as the calls of the
/// group count, then as its kernels do; both may, because a group can have kernels for one mode
/// only.
struct GroupBlock {
  Word world, pe, number, rank, ranks;
  Word hosts;  ///< of the ranks
  Word entries, entries_at, peers_at;
  Word first_expert, experts, experts_at, launches, launches_at;
  Word operations;  ///< begun so far
  // The wait in which a kernel is: rank + 1, or 0; Operation, Phase << 8.
  Word kernel_awaited, kernel_kind, kernel_epoch, kernel_since;
  Word kernels_done[kOperations];  ///< epoch of the last operation whose kernels have ended
  Text<64> failure;
  TotalsBlock totals[kOperations];
  HistogramBlock histograms[kOperations][kPhases];
};

/// Threads that count at once use add_shared.
struct WorldCountsBlock {
  Word failures, bytes, time;
  /// Calls by their durations. Those that are not measured are in the first bucket; then `time`
  /// is 0.
  Word buckets[observe::Histogram::kBuckets];
};
/// Totals of a PE's operations with another one outside of groups.
struct WorldPeerBlock {
  Word operations, bytes, waits, wait;
};

/// Peers follow, by PE, at an offset from the start of the block.
struct PeBlock {
  Word world, pe, n_pes, peers_at;
  Text<8> host;
  Text<8> activity;
  Word epoch, active, awaited;  ///< PE + 1, or 0
  Text<64> failure;
  WorldCountsBlock counts[kWorldOperations];
};

/// `map`: map.hpp.
enum class Kind : std::uint64_t { unused, pe, group, map };

struct Section {
  Word kind, offset, bytes;
};
inline constexpr std::size_t kSections = 4096;  ///< most sections of a process
/// Size of a record. Sparse: only touched pages take memory.
inline constexpr std::size_t kRecordBytes = std::size_t{1} << 30;

struct ProcessBlock {
  Word magic, version, pid;
  Word clock;  ///< real time minus steady time, in nanoseconds
  Section sections[kSections];
};

}  // namespace shoal::detail::record
