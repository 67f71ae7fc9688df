// SPDX-License-Identifier: Apache-2.0
// state.hpp: what stands behind a World handle, for the layers above (teams, collectives, EP) and
// the files of this folder.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/backoff.hpp"
#include "base/deadline.hpp"
#include "memory/device.hpp"
#include "shoal/world.hpp"
#include "world/closers.hpp"
#include "world/control.hpp"

namespace shoal::detail {

using Clock = std::chrono::steady_clock;

enum class WaitOutcome { ready, timeout, peer_failed };

/// What a PE publishes about itself so that others can say where it is when they wait for it in
/// vain.
enum class Activity : std::uint32_t {
  idle,
  opening,
  closing,
  allocating,
  team,
  barrier,
  collective,
  waiting,
  dispatch,
  combine,
  low_latency_dispatch,
  low_latency_combine,
};

struct TeamState;
struct WorldParts;

/// What a PE says of its waiting.
struct Awaited {
  bool answers = false;
  Pe pe = -1;  ///< negative: it waits for nobody in particular
};

class WorldState : public std::enable_shared_from_this<WorldState> {
 public:
  WorldState();
  ~WorldState();  ///< Tells the others when the world was not closed.
  WorldState(const WorldState&) = delete;
  WorldState& operator=(const WorldState&) = delete;

  Pe my_pe() const noexcept;
  Pe n_pes() const noexcept;
  const Settings& settings() const noexcept;
  SymmetricHeap& heap() noexcept;

  /// The GPU that holds this PE's heap (memory/device.hpp); nullptr where the heap is on the host.
  /// Whatever touches the GPU calls its activate() first: calls may come from any thread.
  const memory::Device* cuda() const noexcept;

  /// Start of the heap of world PE `pe` in this address space, a GPU's address where cuda() is not
  /// nullptr; nullptr when loads and stores (of this PE's GPU) do not reach it.
  std::byte* peer_base(Pe pe) const noexcept;

  /// Polls `ready` until it returns true: SHOAL_SPIN times at once, then yielding the core between
  /// polls. About once a millisecond it also looks at the clock and at the health of the other PEs.
  /// `awaited` is the PE that is waited for, where it is known: a PE that left without closing the
  /// world fails only waits for itself and waits for anybody.
  static constexpr Pe kAnyPe = -1;
  template <typename Ready>
  WaitOutcome poll(Ready&& ready, Clock::time_point deadline, Pe awaited = kAnyPe) {
    for (std::int64_t i = 0; i <= spin_; ++i) {
      if (ready()) return WaitOutcome::ready;
      pause();
    }
    Deadline end(deadline);
    Backoff backoff;
    Clock::time_point next_check = Clock::now() + std::chrono::milliseconds(1);
    for (int polls = 0;;) {
      backoff();
      if (networked_ && progress_networks()) backoff.reset();
      if (ready()) return WaitOutcome::ready;
      if (++polls % 16 != 0) continue;
      const Clock::time_point now = Clock::now();
      if (now < next_check) continue;
      // A PE may do its part and end before this one looks again: what it did counts.
      if (auto outcome = check_health(end.passed(now), awaited); outcome != WaitOutcome::ready)
        return ready() ? WaitOutcome::ready : outcome;
      next_check = now + std::chrono::milliseconds(1);
    }
  }

  /// The deadline of a wait that starts now: SHOAL_TIMEOUT_MS from now.
  Clock::time_point deadline() const { return Clock::now() + settings().timeout; }

  /// "PE 3: ..." when some PE of the world has failed or ended; nullopt otherwise. Cheap enough for
  /// once a millisecond.
  std::optional<std::string> failure() noexcept;
  /// Whether world PE `pe` is known to have ended or to have reported a failure.
  bool has_failed(Pe pe) noexcept;

  /// Throws the Error for an outcome other than ready: Error{peer_failed} with failure(), or
  /// Error{timeout} with
  /// "<what> timed out after N ms on PE a of n: <detail>; Setting: SHOAL_TIMEOUT_MS."
  [[noreturn]] void throw_wait_failed(WaitOutcome outcome, const std::string& what,
                                      const std::string& detail) const;

  /// Publishes what this PE is doing ("dispatch", epoch 1841, phase text of at most 15 characters);
  /// read by describe_progress of others.
  void set_progress(Activity activity, std::uint64_t epoch, const char* phase) noexcept;
  /// "PE 6 last reported combine 1840, phase send", as far as it is known here.
  std::string describe_progress(Pe pe) const;
  /// Publishes whom this PE depends on now; waits do that themselves.
  void set_awaited(Pe pe) noexcept;
  /// Whom `pe` waits for, by its own word.
  Awaited awaited_by(Pe pe) const;

  /// The team of all PEs.
  TeamState& world_team() noexcept;

  /// All-gather of a small blob (at most kExchangeBytes, the same length on all members) among the
  /// members of a team, over symmetric memory. Collective. `what` names it in errors. Result:
  /// size() blobs, concatenated in member order.
  static constexpr std::size_t kExchangeBytes = 512;
  std::vector<std::byte> exchange(TeamState& team, const void* mine, std::size_t bytes,
                                  const char* what);
  /// Waits for all members of the team without completing outstanding operations.
  void sync(TeamState& team, const char* what);

  /// Starts a get of `bytes` bytes from the heap of `source.pe`, which the caller has checked, into
  /// local memory that stays in use until quiet.
  void get_nbi(void* target, RemoteAddress source, std::size_t bytes);
  /// As World::put_bytes for a range that the caller has checked.
  void put(RemoteAddress target, const void* source, std::size_t bytes);

  // Host memory of every PE: its segment, which holds the control block, then the heap, or, where
  // that is in GPU memory, staging. Offsets are from its start and checked by the caller; semantics
  // are those of transport.hpp.
  std::byte* host_base(Pe pe)
      const noexcept;  ///< in this address space; nullptr where loads and stores do not reach
  std::size_t host_offset(
      std::size_t heap_offset) const noexcept;  ///< of a byte of a heap on the host
  void host_put(Pe pe, std::size_t offset, const void* source, std::size_t bytes);
  void host_put_nbi(Pe pe, std::size_t offset, const void* source, std::size_t bytes);
  void host_signal(Pe pe, std::size_t offset, SignalOp op, std::uint64_t value);
  std::vector<std::int32_t> host_domains() const;  ///< as load_store_domains, of this memory

  /// Offset of `bytes` bytes of staging, the same on all PEs. Collective over the world. Throws
  /// Error{exhausted} on all PEs, naming SHOAL_STAGING_SIZE.
  std::size_t allocate_staging(std::size_t bytes);
  void release_staging(std::size_t offset);  ///< collective

  /// By PE: equal numbers where loads and stores reach the heap, numbered by first appearance; the
  /// same on all PEs.
  std::vector<std::int32_t> load_store_domains() const;
  /// Returns when all earlier operations of this PE are complete at their targets. When it throws,
  /// those that are not may still read and write their local memory until the world is released.
  void quiet();
  /// Keeps such memory until then.
  void keep(std::shared_ptr<const void> memory) noexcept;

  /// Tells all other PEs that this one has failed: their waits end with Error{peer_failed} and
  /// `reason`.
  void fail_world(const std::string& reason) noexcept;

  /// Objects to close before this world releases its memory (closers.hpp).
  Closers& closers() noexcept { return closers_; }

  /// Ends this PE's part of the world after a barrier. Closes the registered objects first.
  /// Everything is released before this returns or throws, even when the barrier fails.
  void close();
  bool is_open() const noexcept;

  /// What the world is made of, for the files of this folder.
  WorldParts& parts() noexcept { return *parts_; }
  const WorldParts& parts() const noexcept { return *parts_; }

 private:
  static void pause() noexcept;
  WaitOutcome check_health(bool late, Pe awaited) noexcept;
  std::string read_progress(Pe pe) const;
  void announce(PeerStatus status, const std::string& message) noexcept;
  void release() noexcept;
  void wait_flag(const TeamState& team, std::size_t flag, std::uint64_t value, std::size_t from,
                 const char* what);

  std::unique_ptr<WorldParts> parts_;
  SymmetricHeap heap_;
  Closers closers_;
  bool progress_networks() noexcept;

  std::int64_t spin_ = 0;
  bool networked_ = false;  ///< some transport is a network, which a waiting PE moves along
  friend class Opening;     // world/startup/init.cpp
};

/// Members, and the signals that the team owns in every member's control block.
struct TeamState {
  /// Keeps the world alive, except in predefined teams: those belong to the world, and their
  /// handles keep it alive.
  std::shared_ptr<WorldState> world;
  std::int32_t index = 0;
  Pe my_pe = 0;             ///< in the team
  std::vector<Pe> members;  ///< as numbered in the world
  bool predefined = false;
  bool destroyed = false;
  std::uint64_t epoch =
      0;  ///< number of the last collective operation of this team on this PE; only grows
  /// Number of the team among all that its members ever made: signals of an earlier owner of the
  /// same index are older than any of this one.
  std::uint64_t generation = 1;
};

}  // namespace shoal::detail
