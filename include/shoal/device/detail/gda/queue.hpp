// SPDX-License-Identifier: Apache-2.0
// queue.hpp: a send queue of an mlx5 NIC that many threads share: warps of a GPU, or threads of a
// processor. For host and device code; operations.hpp has the operations on top of it.
//
//   Reservation mine;                                     // 1. reserve n slots
//   if (reserve(queue, n, deadline, platform, mine) != Outcome::ok) ...
//   mlx5::write_data(queue.sends, mine.first + i, ...);   // 2. write each request at its own index
//   publish(queue, mine, {}, deadline, platform);         // 3. publish, ring the doorbell if due
//   wait(queue, mine.first + n, deadline, platform);      // 4. until the NIC has completed them
//
// A slot is one block of 64 bytes and every request takes one, so an index is a number of requests.
// Counters have 64 bits and never wrap; the NIC sees 16 bits of them. They follow
//   completed <= rung <= published <= reserved,   and written requests - completed <= slots,
// except that a thread which keeps the lock stores the record first: until it has stored the
// counters, `completed` and `rung` may be ahead of `published`.
//
// A Platform is a Bus (../mlx5/work_queue.hpp) plus access to the words that threads share
// (cuda_platform.cuh; of tests: support/gda/host_platform.hpp):
//   load(word)                  loads before all later accesses of this thread (acquire)
//   peek(word)                  loads in any order: accesses after it need not wait for it
//   store(word, value)          stores after all earlier accesses of this thread (release)
//   store_ordered(word, value)  stores after what the last order_requests() has ordered
//   add(word, value)            adds; returns the value before
//   raise(word, value)          stores the larger of both; acquire and release
//   replace(word, seen, value)  stores if the word is `seen`, else loads it into `seen`; acquire
//                               and release
//   try_lock(word)              makes the word 1 if it is 0 (acquire); whether it was
//   load_early(word), try_lock_early(word)
//                               the same in any order: order_requests() acquires
//   order_requests()            orders all earlier accesses, and requests that this thread has seen
//                               as published, before what it stores later with store_ordered()
//                               or store_record()
//   load_cause(word)            loads a part of a completion that may be overwritten meanwhile
//   now(), aborted(), pause()   nanoseconds; whether the abort word is set; between two looks
//
// docs/internals/gda.md gives the reasons and the order of memory accesses.
#pragma once

#include <shoal/device/detail/gda/failure.hpp>
#include <shoal/device/detail/mlx5/work_queue.hpp>

namespace shoal::device::gda {

/// Order that a queue pair guarantees for the data of its requests (docs/internals/gda.md).
enum class Ordering : std::uint8_t { strict, adaptive, unordered };

/// Words that the users of a queue share. Zero at first.
struct alignas(64) Shared {
  std::uint64_t reserved = 0;   ///< slots given to threads
  std::uint64_t published = 0;  ///< requests that are written, without a gap
  std::uint64_t rung = 0;       ///< requests that a doorbell covers
  std::uint64_t completed = 0;  ///< requests known to be complete
  std::uint64_t lock = 0;       ///< 1: a thread stores record and doorbell, or is going to
  std::uint64_t failure = 0;    ///< encode(Failure); not 0: the queue has ended
};

struct Queue {
  mlx5::SendQueue sends;  ///< at least 4 slots
  /// With one entry for each slot of the ring, every request has its own, and the cause of an error
  /// is found. With a single entry (collapsed), the NIC overwrites it, and flushed requests may
  /// hide the cause.
  mlx5::CompletionQueue completions;
  Shared* shared = nullptr;
  Ordering ordering = Ordering::strict;
  std::uint32_t batch = 32;  ///< requests after which the doorbell is rung at the latest
  std::uint32_t largest_message = 1U << 30;  ///< bytes of one request
  mlx5::Memory sink;                         ///< 8 bytes for results of atomics without a reader
  std::uint32_t peer = 0;                    ///< for failure reports

  SHOAL_HOST_DEVICE bool collapsed() const { return completions.log_size == 0; }
  /// True if request `i` of a reservation of `n` has a completion of its own.
  SHOAL_HOST_DEVICE bool is_signalled(std::uint32_t i, std::uint32_t n) const {
    return !collapsed() || i + 1 == n;
  }
};

/// Records why the queue ended. The first cause stays, except that an error of flushed requests is
/// replaced by the error that flushed them.
template <typename Platform>
SHOAL_HOST_DEVICE void end(const Queue& queue, const Failure& failure, Platform& platform) {
  const std::uint64_t word = encode(failure);
  const bool is_cause = failure.cause == Cause::nic && !is_flushed(word);
  std::uint64_t seen = platform.load(&queue.shared->failure);
  while (seen == 0 || (is_cause && is_flushed(seen)))
    if (platform.replace(&queue.shared->failure, seen, word)) return;
}

/// Why the queue has ended; Cause::none if it has not.
template <typename Platform>
SHOAL_HOST_DEVICE Failure failure_of(const Queue& queue, Platform& platform) {
  return decode(platform.load(&queue.shared->failure), queue.peer, queue.sends.number);
}

/// Outcome::ok while there is nothing to end a wait.
template <typename Platform>
SHOAL_HOST_DEVICE Outcome check(const Queue& queue, std::uint64_t deadline, Platform& platform) {
  if (platform.load(&queue.shared->failure) != 0) return Outcome::failed;
  if (platform.aborted()) return Outcome::aborted;
  return platform.now() < deadline ? Outcome::ok : Outcome::timeout;
}

/// Ends the queue for a thread that leaves slots unwritten: no other thread may wait for them.
template <typename Platform>
SHOAL_HOST_DEVICE Outcome abandon(const Queue& queue, Outcome outcome, Step step,
                                  std::uint64_t index, Platform& platform) {
  Failure failure;
  failure.cause = outcome == Outcome::aborted ? Cause::aborted : Cause::timeout;
  failure.step = step;
  failure.index = static_cast<std::uint32_t>(index) & kIndexMask;
  if (outcome != Outcome::failed) end(queue, failure, platform);
  return outcome;
}

namespace detail {

SHOAL_HOST_DEVICE constexpr bool is_error(std::uint32_t state) {
  return (state >> 4 & 0xf) == mlx5::kCompletionError;
}
SHOAL_HOST_DEVICE constexpr bool is_unused(std::uint32_t state) {
  return (state >> 4 & 0xf) == mlx5::kCompletionInvalid;
}

/// Ends the queue with the error in `entry`, of request `index`.
template <typename Platform>
SHOAL_HOST_DEVICE void end_with(const Queue& queue, const mlx5::CompletionEntry& entry,
                                std::uint64_t index, Platform& platform) {
  // Bytes 52 to 55: the last two are vendor code and syndrome.
  const std::uint32_t cause =
      mlx5::big(platform.load_cause(reinterpret_cast<const std::uint32_t*>(entry.unused + 52)));
  const std::uint32_t operation = mlx5::big(platform.load_cause(&entry.operation));
  Failure failure;
  failure.cause = Cause::nic;
  failure.syndrome = static_cast<mlx5::Syndrome>(cause & 0xff);
  failure.vendor = static_cast<std::uint8_t>(cause >> 8);
  failure.opcode = static_cast<mlx5::Opcode>(operation >> 24);
  failure.index = static_cast<std::uint32_t>(index) & kIndexMask;
  end(queue, failure, platform);
}

/// Reads the only entry of a collapsed queue. `completed` was loaded before the entry, which
/// is therefore that of the last request in `completed` or of a later one.
template <typename Platform>
SHOAL_HOST_DEVICE void poll_collapsed(const Queue& queue, std::uint64_t completed,
                                      Platform& platform) {
  const mlx5::CompletionEntry& entry = *queue.completions.entries;
  const std::uint32_t state = mlx5::big(platform.load_entry(&entry.index_state));
  if (is_unused(state)) return;
  // 65535 if the entry is that of the last request in `completed`.
  const auto ahead = static_cast<std::uint16_t>((state >> 16) - completed);
  if (is_error(state)) return end_with(queue, entry, completed + ahead, platform);
  if (ahead < queue.sends.blocks) platform.raise(&queue.shared->completed, completed + ahead + 1);
}

/// Reads the entry of request `target - 1`. It completes all requests before it.
template <typename Platform>
SHOAL_HOST_DEVICE void poll_entry(const Queue& queue, std::uint64_t completed, std::uint64_t target,
                                  Platform& platform) {
  const std::uint32_t slots = queue.sends.blocks;
  const mlx5::CompletionEntry* const entries = queue.completions.entries;
  // Its slot still belongs to an earlier request: the thread that waits for that one reads it.
  if (target - completed > slots) return;
  const std::uint64_t last = target - 1;
  std::uint32_t state = mlx5::big(platform.load_entry(&entries[last & (slots - 1)].index_state));
  // The owner bit of an entry changes from lap to lap.
  if (is_unused(state) || (state & 1) != (last >> queue.completions.log_size & 1)) return;
  if (!is_error(state)) {
    platform.raise(&queue.shared->completed, target);
    return;
  }
  for (std::uint64_t i = completed; i <= last; ++i) {  // the first error is the cause
    const mlx5::CompletionEntry& entry = entries[i & (slots - 1)];
    state = mlx5::big(platform.load_entry(&entry.index_state));
    if (is_error(state)) return end_with(queue, entry, i, platform);
  }
}

}  // namespace detail

/// Looks once whether the requests before `target` are complete.
template <typename Platform>
SHOAL_HOST_DEVICE bool poll(const Queue& queue, std::uint64_t target, Platform& platform) {
  const std::uint64_t completed = platform.load(&queue.shared->completed);
  if (completed >= target) return true;
  if (queue.collapsed())
    detail::poll_collapsed(queue, completed, platform);
  else
    detail::poll_entry(queue, completed, target, platform);
  return platform.load(&queue.shared->completed) >= target;
}

namespace detail {

/// Hands the requests before `end` to the NIC. The queue is locked: records never go back.
template <typename Platform>
SHOAL_HOST_DEVICE void store_record(const Queue& queue, std::uint64_t end, Platform& platform) {
  const auto next = static_cast<std::uint32_t>(end & 0xffff);
  platform.store_record(queue.sends.record, mlx5::big(next));
  platform.order_record();
  // The next index, without a size: a thread that rings for others does not know their requests.
  platform.ring(queue.sends.doorbell,
                std::uint64_t{mlx5::big(queue.sends.number << 8)} << 32 | mlx5::big(next << 8));
}

}  // namespace detail

/// Hands all published requests to the NIC, unless another thread is about to: then it returns
/// false.
///
/// `ordered`: the value of `published` that this thread has stored since its last order_requests().
template <typename Platform>
SHOAL_HOST_DEVICE bool try_ring(const Queue& queue, Platform& platform, std::uint64_t ordered = 0) {
  Shared& shared = *queue.shared;
  if (!platform.try_lock(&shared.lock)) return false;
  // Loaded under the lock: records never go back. Both loads are under way together.
  const std::uint64_t rung = platform.peek(&shared.rung);
  const std::uint64_t published = platform.load(&shared.published);
  if (published > rung) {
    if (published != ordered) platform.order_requests();
    detail::store_record(queue, published, platform);
    platform.store_ordered(&shared.rung, published);
  }
  platform.store(&shared.lock, 0);
  return true;
}

/// Waits until the requests before `target`, which are published, are complete. A deadline that
/// passes does not end the queue.
template <typename Platform>
SHOAL_HOST_DEVICE Outcome wait(const Queue& queue, std::uint64_t target, std::uint64_t deadline,
                               Platform& platform) {
  while (!poll(queue, target, platform)) {
    // Their doorbell may have been left to a thread that publishes later, or never.
    if (platform.load(&queue.shared->rung) < target) try_ring(queue, platform);
    const Outcome outcome = check(queue, deadline, platform);
    if (outcome != Outcome::ok) return outcome;
    platform.pause();
  }
  return Outcome::ok;
}

/// The report of a wait() that ended with Outcome::timeout or aborted. The queue stays usable.
SHOAL_HOST_DEVICE inline Failure failure_of_wait(const Queue& queue, Outcome outcome,
                                                 std::uint64_t target) {
  Failure failure;
  failure.cause = outcome == Outcome::aborted ? Cause::aborted : Cause::timeout;
  failure.step = Step::completion;
  failure.index = static_cast<std::uint32_t>(target - 1) & kIndexMask;
  failure.peer = queue.peer;
  failure.queue_pair = queue.sends.number;
  return failure;
}

/// Slots of the calling thread.
struct Reservation {
  std::uint64_t first = 0;
  std::uint32_t n = 0;
  /// The queue is locked, and nothing else is to be published before these slots.
  bool is_locked = false;
};

/// Gives the calling thread `n` slots, at most all, when the requests that held them are complete.
/// A deadline that passes while it waits ends the queue: others may have reserved the slots after
/// these, so they cannot be returned. After Outcome::ok, publish() has to follow.
template <typename Platform>
SHOAL_HOST_DEVICE Outcome reserve(const Queue& queue, std::uint32_t n, std::uint64_t deadline,
                                  Platform& platform, Reservation& mine) {
  Shared& shared = *queue.shared;
  if (n == 0 || n > queue.sends.blocks) return Outcome::refused;
  // Under way together. Slots of a queue that has ended are not missed.
  const std::uint64_t failure = platform.peek(&shared.failure);
  const std::uint64_t first = platform.add(&shared.reserved, n);
  bool is_locked = platform.try_lock_early(&shared.lock);
  const std::uint64_t published = platform.load_early(&shared.published);
  const std::uint64_t completed = platform.load(&shared.completed);
  const std::uint64_t end = first + n, slots = queue.sends.blocks;
  const bool has_room = end <= completed + slots;
  if (is_locked && (failure != 0 || !has_room || published != first)) {
    // Not a store: what the last holder has released is still released to the next one.
    platform.add(&shared.lock, ~std::uint64_t{0});
    is_locked = false;
  }
  mine = {first, n, is_locked};
  if (failure != 0) return Outcome::failed;
  if (has_room) return Outcome::ok;
  while (!poll(queue, end - slots, platform)) {
    // The room may be that of requests whose doorbell was left to this thread.
    if (platform.load(&shared.rung) < platform.load(&shared.published)) try_ring(queue, platform);
    const Outcome outcome = check(queue, deadline, platform);
    if (outcome != Outcome::ok) return abandon(queue, outcome, Step::room, first, platform);
    platform.pause();
  }
  return Outcome::ok;
}

struct PublishOptions {
  bool ring = false;  ///< rings in any case
};

/// Publishes the requests of a reservation, after all that were reserved earlier. Rings the
/// doorbell if it has kept the lock; else when no other thread has reserved slots after them, when
/// a batch is full, or when `options` say so. Where it has to wait, it fails if the queue has
/// ended, and ends the queue if the wait fails.
template <typename Platform>
SHOAL_HOST_DEVICE Outcome publish(const Queue& queue, const Reservation& mine,
                                  PublishOptions options, std::uint64_t deadline,
                                  Platform& platform) {
  Shared& shared = *queue.shared;
  const std::uint64_t first = mine.first, end = first + mine.n;
  if (mine.is_locked) {  // one fence for the requests, the record and the counters
    platform.order_requests();
    detail::store_record(queue, end, platform);
    platform.store_ordered(&shared.published, end);
    platform.store_ordered(&shared.rung, end);
    platform.store(&shared.lock, 0);
    return Outcome::ok;
  }
  // A thread that reserves slots after this load rings as well, or leaves it to a later one.
  std::uint64_t reserved = platform.peek(&shared.reserved);
  while (platform.load(&shared.published) != first) {
    const Outcome outcome = check(queue, deadline, platform);
    if (outcome != Outcome::ok) return abandon(queue, outcome, Step::order, first, platform);
    platform.pause();
    reserved = platform.peek(&shared.reserved);
  }
  platform.order_requests();
  platform.store_ordered(&shared.published, end);
  const bool is_last = reserved == end;
  if (!options.ring && !is_last && first / queue.batch == end / queue.batch) return Outcome::ok;
  while (!try_ring(queue, platform, end)) {
    if (platform.load(&shared.rung) >= end) break;
    const Outcome outcome = check(queue, deadline, platform);
    if (outcome != Outcome::ok) return abandon(queue, outcome, Step::doorbell, first, platform);
    platform.pause();
  }
  return Outcome::ok;
}

/// Waits until all requests that were published before this call are complete: their sources may
/// be changed, and their data are at the peer.
template <typename Platform>
SHOAL_HOST_DEVICE Outcome quiet(const Queue& queue, std::uint64_t deadline, Platform& platform) {
  return wait(queue, platform.load(&queue.shared->published), deadline, platform);
}

}  // namespace shoal::device::gda
