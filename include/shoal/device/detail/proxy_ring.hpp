// SPDX-License-Identifier: Apache-2.0
// proxy_ring.hpp: the ring through which kernels hand requests to a thread of their PE, for host
// and device.
//
// A request is 64 bytes in pinned host memory. Many producers (warps, or threads in tests) reserve
// positions by compare-and-swap; one consumer (src/transport/proxy/executor.hpp) reads them in the
// order of positions. Position p uses slot p % slots.
//
// Validity. The last word of a request holds the lap of its position. A producer stores the other
// words, then this one with release at system scope; the consumer acquires it. No other fence is
// needed, and what the producer stored before it posts, such as the source of a put, is visible to
// the consumer as well.
//
// Back-pressure. A position is reserved only when the request `slots` positions before it is
// finished (Control::completed). Nothing is reserved by a post that gives up, so a post has no
// partial effect. Producers keep a copy of Control::completed near them, and read the pinned word
// only when the copy says that the ring is full.
//
// Completion. The consumer stores p + 1 to the response of slot p % slots when request p is
// complete at its target. A response with a result is kept until its producer has taken the result.
//
// Failure. The first error ends the ring: Control::state leaves `running`, no further request is
// executed, and every wait for an incomplete request returns the outcome at once. Every wait, that
// for room in the ring included, ends after Ring::timeout_ns.
//
// A Platform has the loads, stores and clock of one kind of processor: ThreadPlatform in
// src/transport/proxy/thread_platform.hpp, GpuPlatform in proxied.cuh.
#pragma once

#include <cstdint>

#include <shoal/config.hpp>
#include <shoal/operation.hpp>
#include <shoal/pe.hpp>

namespace shoal::device::proxy {

enum class Kind : std::uint8_t {
  put = 1,    ///< `bytes` bytes at `source`; with kSignal, then a signal
  put_value,  ///< the low `width` bytes of `operand`
  atomic,     ///< on a word of `width` bytes; with kResult, the response has the value before
  signal,     ///< only the signal
  fence,      ///< orders earlier requests before later ones, to every PE
  get,        ///< `bytes` bytes of the heap to `source`
};

/// True if requests of this kind have `source` and `bytes`.
SHOAL_HOST_DEVICE constexpr bool moves_data(Kind kind) {
  return kind == Kind::put || kind == Kind::get;
}

/// Flags of a request.
inline constexpr std::uint8_t kSignalSet = 1, kSignalAdd = 2, kResult = 4;

/// A request as producers fill it in. Offsets count from the start of the heap of `pe`.
struct Request {
  Kind kind = Kind::fence;
  AtomicOp op = AtomicOp::fetch;
  std::uint8_t width = 0;
  std::uint8_t flags = 0;
  Pe pe = -1;
  std::uint64_t offset = 0;
  std::uint64_t source = 0;   ///< put, get: local address that the consumer can read or write
  std::uint64_t bytes = 0;    ///< put, get
  std::uint64_t operand = 0;  ///< put_value, atomic; the same word as `source`
  std::uint64_t compare = 0;  ///< atomic; the same word as `bytes`
  std::uint64_t signal_offset = 0;
  std::uint64_t signal_value = 0;
};

/// A request in the ring. Word 0: offset; 1: source or operand; 2: bytes or compare; 3: signal
/// offset; 4: signal value; 5: PE; 6: position; 7: tag.
struct alignas(64) Slot {
  std::uint64_t words[8];
};
static_assert(sizeof(Slot) == 64);
inline constexpr int kSourceWord = 1, kTagWord = 7;

/// Record that the consumer writes for the position that uses a slot.
struct alignas(32) Response {
  std::uint64_t done;   ///< position + 1 once the request is complete
  std::uint64_t value;  ///< of atomics with kResult
  std::uint64_t taken;  ///< position + 1 once the producer has read the value, or gave up
};

enum class State : std::uint32_t { running = 0, failed = 1, aborted = 2 };

/// Shared state in pinned memory. The consumer writes all of it.
struct Control {
  /// All earlier positions are finished: their slots are free.
  alignas(64) std::uint64_t completed;
  alignas(64) State state;
  // The first cause, complete before `state` is `failed`.
  Kind kind;
  Pe pe;
  std::int32_t code;  ///< shoal::Code
  std::uint64_t position;
  std::uint64_t offset;
  std::uint64_t bytes;
};

/// State that producers use. All pointers are addresses of the producers.
struct Ring {
  Slot* slots;
  Response* responses;
  Control* control;
  std::uint64_t* head;            ///< next position to reserve, in memory near the producers
  std::uint64_t* completed_copy;  ///< copy of Control::completed, next to `head`; may lag behind it
  std::uint64_t n_slots;
  std::uint64_t timeout_ns;
};

/// Outcome of a post or wait.
enum class Outcome : std::uint32_t { ok = 0, timeout, failed, aborted };

/// The position of a posted request.
using Ticket = std::uint64_t;

SHOAL_HOST_DEVICE constexpr std::uint32_t lap_of(std::uint64_t position, std::uint64_t n_slots) {
  return static_cast<std::uint32_t>(position / n_slots + 1);
}
SHOAL_HOST_DEVICE constexpr std::uint64_t tag_of(const Request& request, std::uint32_t lap) {
  return static_cast<std::uint64_t>(lap) << 32 |
         static_cast<std::uint64_t>(static_cast<std::uint8_t>(request.kind)) |
         static_cast<std::uint64_t>(static_cast<std::uint8_t>(request.op)) << 8 |
         static_cast<std::uint64_t>(request.width) << 16 |
         static_cast<std::uint64_t>(request.flags) << 24;
}

/// The producers' side.
template <typename Platform>
struct Producer {
  /// Waits until `ready` returns true.
  template <typename Ready>
  SHOAL_HOST_DEVICE static Outcome poll(const Ring& ring, Ready&& ready) {
    constexpr int kPollsPerCheck = 32;  // reading the state costs as much as a poll
    std::uint64_t start = 0;
    for (bool last = false;;) {
#if defined(__CUDA_ARCH__) && defined(__CUDACC_RDC__)  // fewer registers (failure.cuh)
#pragma unroll 1
#endif
      for (int i = 0; i < kPollsPerCheck; ++i) {
        if (ready()) return Outcome::ok;
        if (last) return Outcome::timeout;
        Platform::pause();
      }
      const Outcome state = outcome(ring);
      // A request that completed before the failure is complete.
      if (state != Outcome::ok) return ready() ? Outcome::ok : state;
      const std::uint64_t now = Platform::clock_ns();
      if (start == 0) start = now;
      last = now - start >= ring.timeout_ns;
    }
  }

  SHOAL_HOST_DEVICE static Outcome outcome(const Ring& ring) {
    switch (static_cast<State>(
        Platform::load_acquire_system(reinterpret_cast<std::uint32_t*>(&ring.control->state)))) {
      case State::running:
        return Outcome::ok;
      case State::failed:
        return Outcome::failed;
      case State::aborted:
        break;
    }
    return Outcome::aborted;
  }

  /// True if `position` may be written: the request before it in the same slot is finished.
  SHOAL_HOST_DEVICE static bool has_room(const Ring& ring, std::uint64_t position) {
    if (position - Platform::load_acquire_local(ring.completed_copy) < ring.n_slots) return true;
    const std::uint64_t completed = Platform::load_acquire_system(&ring.control->completed);
    Platform::raise_local(ring.completed_copy, completed);
    return position - completed < ring.n_slots;
  }

  /// Posts a request. `ticket` is set when the outcome is ok; otherwise nothing has happened. While
  /// the ring has room, a post does not read the state, which is in memory of the host: it may
  /// succeed after a failure, and the wait for the ticket returns the failure.
  SHOAL_HOST_DEVICE static Outcome post(const Ring& ring, const Request& request, Ticket& ticket) {
    const Outcome reserved = poll(ring, [&] {
      std::uint64_t position = Platform::load_acquire_local(ring.head);
      return has_room(ring, position) &&
             Platform::compare_exchange_local(ring.head, position, position + 1) &&
             (ticket = position, true);
    });
    if (reserved != Outcome::ok) return reserved;
    const bool data = moves_data(request.kind);
    std::uint64_t* const words = ring.slots[ticket % ring.n_slots].words;
    Platform::store_relaxed_system(words + 0, request.offset);
    Platform::store_relaxed_system(words + 1, data ? request.source : request.operand);
    Platform::store_relaxed_system(words + 2, data ? request.bytes : request.compare);
    Platform::store_relaxed_system(words + 3, request.signal_offset);
    Platform::store_relaxed_system(words + 4, request.signal_value);
    Platform::store_relaxed_system(words + 5, static_cast<std::uint32_t>(request.pe));
    Platform::store_relaxed_system(words + 6, ticket);
    Platform::store_release_system(words + kTagWord, tag_of(request, lap_of(ticket, ring.n_slots)));
    return Outcome::ok;
  }

  /// Waits until the request is complete: at its target, a put's source may then be reused; the
  /// data of a get are in `source`.
  SHOAL_HOST_DEVICE static Outcome wait(const Ring& ring, Ticket ticket) {
    Response& response = ring.responses[ticket % ring.n_slots];
    return poll(ring, [&] { return Platform::load_acquire_system(&response.done) >= ticket + 1; });
  }

  /// wait() for a request with kResult, whose producer calls this once. `value` is set when the
  /// outcome is ok.
  SHOAL_HOST_DEVICE static Outcome wait_value(const Ring& ring, Ticket ticket,
                                              std::uint64_t& value) {
    Response& response = ring.responses[ticket % ring.n_slots];
    const Outcome result = wait(ring, ticket);
    if (result == Outcome::ok) value = Platform::load_relaxed_system(&response.value);
    Platform::store_release_system(&response.taken, ticket + 1);
    return result;
  }

  /// A ticket for wait_all: all requests that were posted before the call, by any producer.
  SHOAL_HOST_DEVICE static Ticket quiet_ticket(const Ring& ring) {
    return Platform::load_acquire_local(ring.head);
  }
  /// Waits until all requests before the ticket are complete at their targets.
  SHOAL_HOST_DEVICE static Outcome wait_all(const Ring& ring, Ticket ticket) {
    if (Platform::load_acquire_local(ring.completed_copy) >= ticket) return Outcome::ok;
    return poll(ring, [&] {
      const std::uint64_t completed = Platform::load_acquire_system(&ring.control->completed);
      if (completed < ticket) return false;
      Platform::raise_local(ring.completed_copy, completed);
      return true;
    });
  }
};

}  // namespace shoal::device::proxy
