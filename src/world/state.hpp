// SPDX-License-Identifier: Apache-2.0
// state.hpp: the state behind a World handle, for the layers above (teams, collectives, EP).
//
// A world is composed of parts. Code that needs one part takes that part:
//
//   Placement  placement.hpp        the PEs, their nodes and hosts
//   Memory     memory/memory.hpp    control block, heap, staging, shared buffers
//   Fabric     fabric/fabric.hpp    transports and the choice per PE
//   Teams      teams/teams.hpp      predefined teams, free team indices
//   Health     health/health.hpp    failed PEs and first causes
//
// The members of WorldState combine them: waiting, exchanging, failing, closing.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/backoff.hpp"
#include "base/deadline.hpp"
#include "base/wait_point.hpp"
#include "memory/device.hpp"
#include "pe/cause.hpp"
#include "pe/closers.hpp"
#include "pe/control.hpp"
#include "pe/progress.hpp"
#include "pe/wait_times.hpp"
#include "record/recorder.hpp"
#include "shoal/world.hpp"
#include "team/team_state.hpp"

namespace shoal::detail {

class DeviceSide;
class Fabric;
class Health;
class Memory;
class Teams;
struct Placement;

using Clock = std::chrono::steady_clock;

enum class WaitOutcome {
  ready,
  timeout,
  peer_failed,
  interrupted,  ///< shoal/interrupt.hpp
};

class WorldState : public std::enable_shared_from_this<WorldState> {
 public:
  WorldState();
  /// Announces to the other PEs that this one left where the world is still open.
  ~WorldState();
  WorldState(const WorldState&) = delete;
  WorldState& operator=(const WorldState&) = delete;

  bool is_open() const noexcept { return open_; }
  const Settings& settings() const noexcept { return settings_; }
  Pe my_pe() const noexcept;
  Pe n_pes() const noexcept;

  // The parts.
  const Placement& placement() const noexcept { return *placement_; }
  Memory& memory() const noexcept { return *memory_; }
  Fabric& fabric() const noexcept { return *fabric_; }
  Teams& teams() const noexcept { return *teams_; }
  /// Objects to close before this world releases its memory.
  Closers& closers() noexcept { return closers_; }
  /// Operations on streams and in kernels; nullptr where the heap is on the host.
  DeviceSide* device_side() const noexcept { return device_side_.get(); }
  /// Returns the one before.
  std::shared_ptr<DeviceSide> set_device_side(std::shared_ptr<DeviceSide> side) noexcept;
  Bootstrap& bootstrap() const noexcept { return *bootstrap_; }
  const std::vector<InitPhase>& init_phases() const noexcept { return phases_; }

  SymmetricHeap& heap() noexcept { return heap_; }
  /// The GPU that holds this PE's heap; nullptr where the heap is on the host. Code that uses the
  /// GPU calls its activate() first, since calls may come from any thread.
  const memory::Device* cuda() const noexcept;
  /// Start of the heap of world PE `pe` in this address space, a GPU address where cuda() is not
  /// nullptr; nullptr where loads and stores (of this PE's GPU) do not reach it.
  std::byte* peer_base(Pe pe) const noexcept;
  /// The team of all PEs.
  TeamState& world_team() noexcept;

  // Waiting.

  /// Waits until `ready` returns true: polls it, then yields the core between polls, then blocks
  /// until another PE writes the word at offset `word()` of this PE's segment (wait_times.hpp). In
  /// worlds that use a network, and for kElsewhere, it polls with a backoff instead of blocking. It
  /// also checks the deadline, the health of the other PEs and for interrupts, at intervals of one
  /// millisecond per PE that shares the core, at most 20.
  ///
  /// `ready` may read other memory too: it is polled again at those intervals.
  ///
  /// `awaited` is the PE that this one waits for, where there is a single one: a PE that left
  /// without closing the world fails only waits for itself and waits for any PE.
  static constexpr Pe kAnyPe = -1;
  /// Results of `word`: whatever is written next to this PE's segment; nothing in it.
  static constexpr std::uint64_t kAnyWord = WaitPoint::kAnyWord, kElsewhere = 0;
  template <typename Ready, typename Word>
  WaitOutcome poll(Ready&& ready, Clock::time_point deadline, Pe awaited, Word&& word) {
    return spin(ready, awaited) ? WaitOutcome::ready : outlast(ready, deadline, awaited, word);
  }
  template <typename Ready>
  WaitOutcome poll(Ready&& ready, Clock::time_point deadline, Pe awaited = kAnyPe) {
    return poll(ready, deadline, awaited, [] { return kAnyWord; });
  }
  /// As poll, where `ready` reads memory that is not this PE's segment.
  template <typename Ready>
  WaitOutcome poll_elsewhere(Ready&& ready, Clock::time_point deadline, Pe awaited = kAnyPe) {
    return poll(ready, deadline, awaited, [] { return kElsewhere; });
  }
  /// After this PE has written `bytes` bytes at `offset` of the segment of `pe` by a store: wakes
  /// the threads that wait for them. The transports' operations do so themselves.
  void notify(Pe pe, std::size_t offset, std::size_t bytes) noexcept {
    if (WaitPoint* const point = wait_points_[static_cast<std::size_t>(pe)]) [[likely]]
      point->notify(offset, bytes);
  }
  /// Wakes all waiting threads of `pe`, after a write that ends waits for other words.
  void wake(Pe pe) noexcept;
  /// Whether PEs share cores: a PE that waits for several words then blocks until the last one.
  bool crowded() const noexcept { return wait_times_.crowded; }
  /// Whether waits yield before they block. False for a while after a yield has shown that other
  /// programs use the core.
  bool yields() const noexcept {
    return wait_times_.yield.count() > 0 && yield_watch_.may_yield(Clock::now());
  }
  /// Where this PE's threads block.
  WaitPoint& wait_point() const noexcept;
  /// The deadline of a wait that starts now: SHOAL_TIMEOUT_MS from now.
  Clock::time_point deadline() const { return Clock::now() + settings_.timeout; }
  /// Throws the Error for an outcome other than ready: Error{peer_failed} with the failure that
  /// ended a wait for `awaited`, Error{system} after an interrupt, or Error{timeout} with
  /// "<what> timed out after N ms on PE a of n: <detail>; Setting: SHOAL_TIMEOUT_MS."
  [[noreturn]] void throw_wait_failed(WaitOutcome outcome, const std::string& what,
                                      const std::string& detail, Pe awaited = kAnyPe) const;

  // Failures of PEs. All of these are empty, false or without effect once the world is closed.

  /// "PE 3: ..." where a PE of the world has failed, ended or left. Names the PE with which the
  /// failure began. Takes about a microsecond.
  std::optional<std::string> failure() noexcept;
  /// Whether world PE `pe` has ended, left or reported a failure.
  bool has_failed(Pe pe) noexcept;
  /// The failure that made the world fail, and the PE with which it began.
  std::optional<FailureCause> first_cause() noexcept;
  /// Publishes why this PE gives something up, such as a group, for published_cause on other PEs.
  /// Call it before any signal that makes other PEs give up too.
  void publish_cause(const FailureCause& cause) noexcept;
  /// The cause that world PE `by` published last.
  std::optional<FailureCause> published_cause(Pe by) noexcept;
  /// Announces to all other PEs that this one has failed: their waits end with Error{peer_failed}
  /// and `reason`, or with the first cause where another PE's failure is the cause. Waits of this
  /// PE end as well.
  void fail_world(const std::string& reason) noexcept;

  /// What other programs of this host see of this PE (shoal/observe.hpp).
  record::PeRecorder& recorder() noexcept { return recorder_; }

  // Progress (health/progress.hpp).

  /// Publishes the operation of this PE ("dispatch", epoch 1841, phase of at most 15 characters).
  void set_progress(Activity activity, std::uint64_t epoch, const char* phase) noexcept;
  /// "PE 6 last reported combine 1840, phase send".
  std::string describe_progress(Pe pe) const;
  /// Publishes the PE that this PE waits for. poll() calls it.
  void set_awaited(Pe pe) noexcept;
  /// The PE that `pe` waits for, as `pe` publishes it.
  Awaited awaited_by(Pe pe) const;

  /// Publishes that this PE refuses a collective call that other PEs may be in, and why.
  void publish_refusal(const CallId& call, std::string_view why) noexcept;
  /// "; PE 3 refused its call: all_gather: target is ...", to follow another text: for the first of
  /// `pes` that published a refusal of this call. Empty where there is none.
  std::string refusal(std::span<const Pe> pes, const CallId& call) const;
  std::string refusal(Pe pe, const CallId& call) const { return refusal(std::span(&pe, 1), call); }
  /// Runs `checks`, which precede `call`, and publishes what they throw as the refusal of it.
  template <typename Checks>
  auto checked(const CallId& call, Checks&& checks) {
    try {
      return checks();
    } catch (const Error& error) {
      publish_refusal(call, error.reason());
      throw;
    }
  }
  /// The same for the next operation of a team.
  template <typename Checks>
  auto checked(const TeamState& team, Checks&& checks) {
    return checked(team.call(team.epoch + 1), checks);
  }

  // Collective operations over a team (teams/exchange.cpp). After one has failed on this PE, later
  // ones on the same team throw the same error.

  /// All-gather of a blob of at most kExchangeBytes bytes, of the same length on all PEs of the
  /// team. Collective. `what` names the call in messages. Result: size() blobs, by PE.
  ///
  /// `declared`: compared among the PEs in place of `bytes`. For blobs whose length follows from
  /// what their start says: on a disagreement every PE still gets the start of each blob.
  static constexpr std::size_t kExchangeBytes = 512;
  std::vector<std::byte> exchange(TeamState& team, const void* mine, std::size_t bytes,
                                  const char* what, std::size_t declared = 0);
  /// Waits for all PEs of the team. Does not complete outstanding operations. In teams of at most
  /// kDirectPes PEs, what other PEs have put to this one before they called is there.
  static constexpr std::size_t kDirectPes = ControlLayout::kDirectPes;
  void sync(TeamState& team, const char* what);
  /// Bytes for the heap of another PE.
  struct Delivery {
    std::size_t offset = 0;
    const void* source = nullptr;
    std::size_t bytes = 0;
  };
  /// As sync, but writes deliveries[i] to PE i of the team first; that of this PE itself is
  /// ignored. On return what the other PEs deliver to this one is there, and the sources may be
  /// reused. Heaps are on the host. Half a round trip, where a get takes a whole one.
  void deliver(TeamState& team, std::span<const Delivery> deliveries, const char* what);

  // One-sided operations on ranges that the caller has checked.

  /// Starts a get. `target` stays in use until quiet.
  void get_nbi(void* target, RemoteAddress source, std::size_t bytes);
  void put(RemoteAddress target, const void* source, std::size_t bytes);
  /// Returns when all earlier operations of this PE are complete at their targets. After a throw,
  /// incomplete ones may access their local memory until the world is released.
  void quiet();
  /// Keeps such memory until then.
  void keep(std::shared_ptr<const void> memory) noexcept;

  // Host memory of every PE: its segment, which holds the control block, then the heap or, where
  // that is in GPU memory, staging. Offsets are from its start and checked by the caller. Semantics
  // are those of transport.hpp.

  /// In this address space; nullptr where loads and stores do not reach.
  std::byte* host_base(Pe pe) const noexcept;
  /// Offset of a byte of a heap on the host.
  std::size_t host_offset(std::size_t heap_offset) const noexcept;
  void host_put(Pe pe, std::size_t offset, const void* source, std::size_t bytes);
  void host_put_nbi(Pe pe, std::size_t offset, const void* source, std::size_t bytes);
  void host_signal(Pe pe, std::size_t offset, SignalOp op, std::uint64_t value);
  /// As load_store_domains, of this memory.
  std::vector<std::int32_t> host_domains() const;
  /// By PE: equal numbers where loads and stores reach the heap, numbered by first appearance; the
  /// same on all PEs.
  std::vector<std::int32_t> load_store_domains() const;

  /// Offset of `bytes` bytes of staging, the same on all PEs. Collective over the world. Throws
  /// Error{exhausted} on all PEs, naming SHOAL_STAGING_SIZE.
  std::size_t allocate_staging(std::size_t bytes);
  /// Collective.
  void release_staging(std::size_t offset);

  /// Ends this PE's part of the world after a barrier. Closes the registered objects first.
  /// Everything is released before this returns or throws, even when the barrier fails.
  void close();
  /// Makes close() warn in place of throwing where other PEs do not come to its barrier: they may
  /// run on without this PE.
  void let_leave_early() noexcept { may_leave_early_ = true; }

  /// Where the next wait for any of several variables starts (rma/wait.cpp).
  std::size_t wait_rotation = 0;

 private:
  friend class Opening;  // startup/open.cpp

  static void pause() noexcept;
  /// The polls of memory with which a wait begins; a single one for what a network brings, since
  /// they do not make progress.
  template <typename Ready>
  bool spin(Ready& ready, Pe awaited) {
    const bool remote =
        networked_ && awaited >= 0 && wait_points_[static_cast<std::size_t>(awaited)] == nullptr;
    const std::int64_t polls = remote ? 0 : wait_times_.polls;
    for (std::int64_t i = 0; i <= polls; ++i) {
      if (ready()) return true;
      pause();
    }
    return false;
  }
  /// The rest of a wait.
  template <typename Ready, typename Word>
  WaitOutcome outlast(Ready& ready, Clock::time_point deadline, Pe awaited, Word& word) {
    if (networked_ || word() == kElsewhere) return back_off(ready, deadline, awaited);
    return block(ready, deadline, awaited, word);
  }
  struct LongWait {
    Clock::time_point start;
    bool reported = false;
  };
  template <typename Ready>
  WaitOutcome back_off(Ready& ready, Clock::time_point deadline, Pe awaited);
  template <typename Ready, typename Word>
  WaitOutcome block(Ready& ready, Clock::time_point deadline, Pe awaited, Word& word);
  /// `late`: the deadline has passed. Warns where the wait has become long (SHOAL_WARN_AFTER_MS).
  WaitOutcome check_health(bool late, Pe awaited, LongWait& wait, Clock::time_point now) noexcept;
  void warn_of(Pe awaited, Clock::duration waited) const noexcept;
  bool progress_networks() noexcept;
  template <typename Operation>
  void run_operation(TeamState& team, const char* what, Operation&& operation);
  void wait_flag(const TeamState& team, std::size_t flag, std::uint64_t value, std::size_t from,
                 const char* what);
  template <typename Seen, typename Word>
  void wait_for(const TeamState& team, std::uint64_t value, std::size_t from, const char* what,
                Seen&& seen, Word&& word);
  void wait_flags(TeamState& team, std::uint64_t value, std::uint64_t parity, const char* what);
  void meet_at_first(TeamState& team, std::uint64_t value, std::uint64_t parity, const char* what);
  void release() noexcept;

  Settings settings_;
  std::shared_ptr<Bootstrap> bootstrap_;
  std::vector<InitPhase> phases_;
  WaitTimes wait_times_;
  YieldWatch yield_watch_;
  std::vector<WaitPoint*> wait_points_;  ///< by PE; nullptr: out of reach
  bool networked_ = false;               ///< poll has to progress networks
  int polls_per_yield_ = 1;              ///< of back_off
  std::atomic<bool> open_ = false;
  std::atomic<bool> may_leave_early_ = false;

  // In the order of creation; each part refers only to earlier ones.
  std::unique_ptr<Placement> placement_;
  std::unique_ptr<Memory> memory_;
  std::unique_ptr<Fabric> fabric_;
  std::unique_ptr<Teams> teams_;
  std::unique_ptr<ProgressBoard> progress_;
  std::unique_ptr<Health> health_;
  record::PeRecorder recorder_;
  std::shared_ptr<DeviceSide> device_side_;
  SymmetricHeap heap_;
  Closers closers_;
};

template <typename Ready>
WaitOutcome WorldState::back_off(Ready& ready, Clock::time_point deadline, Pe awaited) {
  Deadline end(deadline);
  Backoff backoff;
  LongWait wait{Clock::now()};
  Clock::time_point next_check = wait.start + std::chrono::milliseconds(1);
  for (int polls = 0;;) {
    if (networked_ && progress_networks()) backoff.reset();
    if (ready()) return WaitOutcome::ready;
    if (++polls % polls_per_yield_ == 0 || backoff.sleeps()) backoff();
    if (polls % 16 != 0) continue;
    const Clock::time_point now = Clock::now();
    if (now < next_check) continue;
    // A PE may finish its part and end before this one looks again: its part counts.
    if (auto outcome = check_health(end.passed(now), awaited, wait, now);
        outcome != WaitOutcome::ready)
      return ready() ? WaitOutcome::ready : outcome;
    next_check = now + std::chrono::milliseconds(1);
  }
}

template <typename Ready, typename Word>
WaitOutcome WorldState::block(Ready& ready, Clock::time_point deadline, Pe awaited, Word& word) {
  // Polls after the announcement. They take longer than a writer's store needs to become visible,
  // which therefore is seen here or sees the announcement (wait_point.hpp).
  constexpr int kPollsAfterAnnouncement = 16;
  const Clock::time_point start = Clock::now();
  Deadline end(deadline, start);
  WaitPoint::Waiter waiter(wait_point());
  LongWait wait{start};
  Clock::time_point now = start, next_check = start + wait_times_.longest_block;
  for (;;) {
    if (now - start < wait_times_.yield && (!crowded() || yield_watch_.may_yield(now))) {
      sched_yield();
      if (crowded()) yield_watch_.yielded(wait_times_, now, Clock::now());
      if (ready()) return WaitOutcome::ready;
    } else {
      waiter.announce(word());
      for (int i = 0; i < kPollsAfterAnnouncement; ++i) {
        if (ready()) return WaitOutcome::ready;
        pause();
      }
      const Clock::duration shortest = wait_times_.shortest_block;
      const Clock::duration bound =
          std::clamp<Clock::duration>((now - start) / 2, shortest, wait_times_.longest_block);
      waiter.block(std::clamp(deadline - now, shortest, bound));
      if (ready()) return WaitOutcome::ready;
    }
    now = Clock::now();
    if (now < next_check && now < deadline) continue;
    // As in back_off.
    if (auto outcome = check_health(end.passed(now), awaited, wait, now);
        outcome != WaitOutcome::ready)
      return ready() ? WaitOutcome::ready : outcome;
    next_check = now + wait_times_.longest_block;
  }
}

}  // namespace shoal::detail
