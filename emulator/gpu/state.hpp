// SPDX-License-Identifier: Apache-2.0
// state.hpp: what the NIC on a GPU shares with its host and with its clients, all of it in memory
// of that GPU except Control. For host and device code.
//
// The host writes everything before the NIC starts, and regions of memory also while it runs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/types.hpp"
#include "shoal/config.hpp"

namespace shoal::emulator::gpu {

/// Requests of a queue pair that the NIC has read and that are not complete.
inline constexpr std::uint32_t kWindow = 32;
inline constexpr std::uint32_t kMostPairs = 64;
inline constexpr std::uint32_t kMostDispatchers = 8;
/// Bytes of a job, except the first and the last of a message: those of long messages are larger,
/// since a worker spends as much time on what is around a copy as on 8 KiB.
inline constexpr std::uint32_t kLogChunk = 13, kLogLongChunk = 14;
inline constexpr std::uint32_t kChunkBytes = 1U << kLogChunk;
inline constexpr std::uint32_t kLongMessageBytes = 64 * 1024;
/// Dispatchers move messages up to this size themselves.
inline constexpr std::uint32_t kDirectBytes = 256;
inline constexpr std::uint64_t kMostMessageBytes = 1U << 30;
/// Most jobs of a strict queue pair that are handed out and not done.
inline constexpr std::uint32_t kStrictJobs = 256;
/// Index of the first memory key; small keys have meanings of their own.
inline constexpr std::uint32_t kFirstKey = 0x10;

/// Registered memory. All fields are read while the host may write them; `key` is written last.
struct Region {
  std::uint64_t key = 0;  ///< 0: none
  std::uint64_t domain = 0;
  std::uint64_t access = 0;   ///< Access bits (engine/memory_keys.hpp)
  std::uint64_t address = 0;  ///< of the first byte, as requests name it
  std::uint64_t length = 0;
  std::uint64_t memory = 0;  ///< the first byte, as this GPU reaches it
};

/// The keys of one NIC as another reaches them: region i has the key (i + kFirstKey) << 8.
struct KeyTable {
  const Region* regions = nullptr;
  std::uint32_t count = 0;
  std::uint32_t number = 0;  ///< of the table; 0 is the NIC's own
};

struct CompletionQueueConfig {
  std::byte* entries = nullptr;
  std::uint32_t log_size = 0;
  bool collapsed = false;
  bool is_near = false;  ///< in memory of this GPU, for clients on it
};

/// Why a queue pair ends without a request of its own that fails: the word `ended`.
enum class Ended : std::uint64_t {
  no,
  peer_is_gone,  ///< no request is acknowledged any more
  refused,       ///< it has refused a request of the peer
};

struct QueuePairConfig {
  std::uint32_t number = 0;
  std::uint32_t blocks = 0;               ///< of the send ring; a power of two
  const std::byte* ring = nullptr;        ///< of 64-byte blocks
  const std::uint32_t* record = nullptr;  ///< the send counter of its doorbell record, big endian
  std::uint32_t completions = 0;          ///< its completion queue: an index
  std::uint32_t domain = 0;
  std::uint32_t user_index = 0;
  Ordering ordering = Ordering::strict;
  // Of the peer.
  std::uint32_t table = 0;  ///< its key table: an index; 0 is the NIC's own
  std::uint32_t peer_number = 0;
  std::uint32_t peer_domain = 0;
  std::uint32_t peer_access = 0;        ///< Access bits that it grants
  std::uint64_t* ended = nullptr;       ///< Ended
  std::uint64_t* peer_ended = nullptr;  ///< that of the peer; nullptr: out of reach
};

/// What a queue pair did, for the host.
struct QueuePairReport {
  std::uint64_t failed = 0;  ///< 1: in the error state
  std::uint64_t requests = 0, completions = 0, errors = 0, bytes = 0;
};

/// A copy for one worker. Jobs are numbered from 0 on.
struct alignas(64) Job {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  std::uint64_t* counter = nullptr;  ///< counts jobs that are done
  std::uint64_t start = 0;           ///< when the link is free for it
  std::uint32_t bytes = 0;
  std::uint32_t after = 0;  ///< is_ordered: it stores nothing before the counter is there
  std::uint32_t is_ordered = 0;
  std::uint64_t ready = 0;  ///< its number plus one, written last
};

/// Jobs from the dispatchers to the workers. Each worker takes the next number and waits for the
/// job with that number.
struct JobRing {
  alignas(128) std::uint64_t taken = 0;    ///< numbers given to workers
  alignas(128) std::uint64_t end = kOpen;  ///< all jobs there will be, once that is known
  alignas(128) Job* jobs = nullptr;
  /// Number of the last job done in the slot, plus one.
  std::uint64_t* done = nullptr;
  std::uint32_t size = 0;  ///< a power of two

  static constexpr std::uint64_t kOpen = ~std::uint64_t{0};
};

/// Why the NIC has stopped.
enum class Stopped : std::uint64_t { no, by_owner, owner_silent, lifetime };

/// In memory of the host that the GPU reaches.
struct Control {
  alignas(64) std::uint64_t stop = 0;     ///< 1: the NIC has to stop
  std::uint64_t heartbeat = 0;            ///< the owner counts
  alignas(64) std::uint64_t stopped = 0;  ///< Stopped
  std::uint64_t slices = 0;               ///< that have ended
};

/// Times in nanoseconds.
struct Timing {
  std::uint64_t byte_cost = 0;        ///< 2^-16 ns of a byte; 0: not throttled
  std::uint64_t cost_inverse = 0;     ///< 2^32 / byte_cost, set by begin() (common.hpp)
  std::uint64_t burst = 8000;         ///< idle time that may be made up for
  std::uint64_t ahead = 16'000;       ///< by which jobs may be handed out before they start
  std::uint64_t delay = 0;            ///< one way
  std::uint64_t reorder = 0;          ///< most by which writes are late, unless the order is strict
  std::uint64_t retry = 500'000'000;  ///< until a silent peer is given up
  std::uint64_t owner_timeout = 2'000'000'000;  ///< without a heartbeat; 0: never
  std::uint64_t lifetime = 3600'000'000'000;
  /// After which the kernel saves its state and ends, so that calls which wait for the GPU return;
  /// the next one goes on. 0: never.
  std::uint64_t slice = 0;
  std::uint64_t seed = 1;
};

struct NicState {
  Timing timing;
  /// May grow while the NIC runs; what belongs to the new ones is written before.
  std::uint64_t n_pairs = 0;
  const QueuePairConfig* pairs = nullptr;
  const CompletionQueueConfig* completions = nullptr;
  const KeyTable* tables = nullptr;
  std::uint64_t key_changes = 0;      ///< the host counts, after it has changed a region
  std::uint64_t* counters = nullptr;  ///< of jobs that are done: kWindow for each queue pair
  QueuePairReport* reports = nullptr;
  Control* control = nullptr;
  std::byte* saved = nullptr;  ///< of the dispatchers, between two slices
  std::uint64_t resumes = 0;   ///< 1: the dispatchers go on with what is saved
  JobRing ring;
};

/// Between two slices: the next workers take the jobs from the first that is not written on.
SHOAL_HOST_DEVICE inline void resume(NicState& state) {
  state.ring.taken = state.ring.end;
  state.ring.end = JobRing::kOpen;
  state.resumes = 1;
}

}  // namespace shoal::emulator::gpu
