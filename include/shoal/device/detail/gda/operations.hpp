// SPDX-License-Identifier: Apache-2.0
// operations.hpp: puts, signals and atomics on a shared queue (queue.hpp). For host and device
// code.
//
//   std::uint64_t ticket;
//   Outcome outcome = put_signal(queue, source, remote, bytes, signal, deadline, platform, ticket);
//   ...
//   outcome = wait(queue, ticket, deadline, platform);  // the source may be changed
//
// Operations are for one thread each; post_each() is for the lanes of a warp. Operations of one
// thread on one queue reach the peer in this order:
//   signals and atomics   after everything posted before them, in every ordering
//   puts                  after everything posted before them in Ordering::strict, else in any
//                         order: call fence() before a put that must arrive later
// A peer that sees a signal sees the data of all earlier puts of its queue.
//
// Functions return Outcome::refused, and post nothing, for words that are not aligned to 8 bytes.
#pragma once

#include <shoal/device/detail/gda/queue.hpp>

namespace shoal::device::gda {

/// Inline bytes of a request of one block.
inline constexpr std::uint32_t kInlineBytes =
    mlx5::kBlockBytes - 2 * mlx5::kSegmentBytes - mlx5::kInlineHeader;

/// Local memory as this code and the NIC name it. Without `bytes` (memory that this code cannot
/// read) nothing is sent inline.
struct Source {
  const std::byte* bytes = nullptr;
  mlx5::Memory memory;
};

enum class SignalKind : std::uint8_t { add, set };

/// A change to a word of 8 bytes at the peer.
struct Signal {
  mlx5::Memory word;
  std::uint64_t value = 0;
  SignalKind kind = SignalKind::add;
};

/// Word in which the NIC stores the previous value of an atomic. One thread at a time may use it.
struct Result {
  const std::uint64_t* word = nullptr;
  mlx5::Memory memory;
};

namespace detail {

SHOAL_HOST_DEVICE constexpr bool is_aligned(const mlx5::Memory& word) {
  return word.address % sizeof(std::uint64_t) == 0;
}

/// Requests of a signal. A write may pass the writes before it unless the queue is strict. There,
/// an atomic that adds 0 waits for them, and the write waits for the atomic.
SHOAL_HOST_DEVICE constexpr std::uint32_t requests_of(const Queue& queue, const Signal& signal) {
  return signal.kind == SignalKind::set && queue.ordering != Ordering::strict ? 2 : 1;
}

SHOAL_HOST_DEVICE inline void write_word(const Queue& queue, std::uint64_t index,
                                         const Signal& signal, mlx5::Flags flags) {
  mlx5::write_inline(queue.sends, static_cast<std::uint32_t>(index), signal.word,
                     reinterpret_cast<const std::byte*>(&signal.value), sizeof signal.value, flags);
}
SHOAL_HOST_DEVICE inline void write_add(const Queue& queue, std::uint64_t index,
                                        const Signal& signal, std::uint64_t value,
                                        mlx5::Flags flags) {
  mlx5::write_atomic(queue.sends, static_cast<std::uint32_t>(index), mlx5::Opcode::fetch_add,
                     signal.word, value, 0, queue.sink, flags);
}

/// Writes `signal` as the last requests of a reservation of `n` requests from `first` on.
SHOAL_HOST_DEVICE inline void write_signal(const Queue& queue, std::uint64_t first, std::uint32_t n,
                                           const Signal& signal) {
  const std::uint64_t last = first + n - 1;
  if (signal.kind == SignalKind::add) return write_add(queue, last, signal, signal.value, {true});
  const bool strict = queue.ordering == Ordering::strict;
  if (!strict) write_add(queue, last - 1, signal, 0, {queue.is_signalled(n - 2, n)});
  write_word(queue, last, signal, {.signalled = true, .fenced = !strict});
}

SHOAL_HOST_DEVICE inline void write_put(const Queue& queue, std::uint64_t index,
                                        const Source& source, const mlx5::Memory& remote,
                                        std::uint32_t bytes, mlx5::Flags flags) {
  const auto block = static_cast<std::uint32_t>(index);
  if (source.bytes != nullptr && bytes <= kInlineBytes) {
    mlx5::write_inline(queue.sends, block, remote, source.bytes, bytes, flags);
    return;
  }
  const mlx5::Part part{source.memory, bytes};
  mlx5::write_data(queue.sends, block, mlx5::Opcode::write, remote, &part, 1, flags);
}

SHOAL_HOST_DEVICE constexpr mlx5::Memory advance(const mlx5::Memory& memory, std::uint64_t bytes) {
  return {memory.address + bytes, memory.key};
}
SHOAL_HOST_DEVICE constexpr Source advance(const Source& source, std::uint64_t bytes) {
  return {source.bytes == nullptr ? nullptr : source.bytes + bytes, advance(source.memory, bytes)};
}

/// Posts the messages of a put, as many as fit into the ring at once, until at most `left` are
/// left. Moves `source`, `remote` and `bytes` on.
template <typename Platform>
SHOAL_HOST_DEVICE Outcome post_messages(const Queue& queue, Source& source, mlx5::Memory& remote,
                                        std::uint64_t& bytes, std::uint64_t left,
                                        std::uint64_t deadline, Platform& platform,
                                        std::uint64_t& ticket) {
  const std::uint64_t largest = queue.largest_message;
  for (;;) {
    const std::uint64_t messages = bytes / largest + (bytes % largest != 0);
    if (messages <= left) return Outcome::ok;
    const std::uint64_t room = queue.sends.blocks / 2, more = messages - left;
    const auto n = static_cast<std::uint32_t>(more < room ? more : room);
    Reservation mine;
    const Outcome outcome = reserve(queue, n, deadline, platform, mine);
    if (outcome != Outcome::ok) return outcome;
    const std::uint64_t first = mine.first;
    for (std::uint32_t i = 0; i < n; ++i) {
      const auto now = static_cast<std::uint32_t>(bytes < largest ? bytes : largest);
      write_put(queue, first + i, source, remote, now, {queue.is_signalled(i, n)});
      source = advance(source, now);
      remote = advance(remote, now);
      bytes -= now;
    }
    ticket = first + n;
    const Outcome published = publish(queue, mine, {}, deadline, platform);
    if (published != Outcome::ok) return published;
  }
}

/// Posts one atomic and waits for its result.
template <typename Platform>
SHOAL_HOST_DEVICE Outcome run_atomic(const Queue& queue, mlx5::Opcode opcode,
                                     const mlx5::Memory& word, std::uint64_t swap_or_add,
                                     std::uint64_t compare, const Result& result,
                                     std::uint64_t deadline, Platform& platform,
                                     std::uint64_t& before) {
  if (!is_aligned(word)) return Outcome::refused;
  Reservation mine;
  Outcome outcome = reserve(queue, 1, deadline, platform, mine);
  if (outcome != Outcome::ok) return outcome;
  const std::uint64_t first = mine.first;
  mlx5::write_atomic(queue.sends, static_cast<std::uint32_t>(first), opcode, word, swap_or_add,
                     compare, result.memory, {.signalled = true});
  outcome = publish(queue, mine, {.ring = true}, deadline, platform);
  if (outcome == Outcome::ok) outcome = wait(queue, first + 1, deadline, platform);
  if (outcome == Outcome::ok) before = platform.load(result.word);
  return outcome;
}

}  // namespace detail

/// Writes `bytes` bytes to the peer. `ticket` is for wait(): before it returns, `source` must not
/// change, except up to kInlineBytes bytes that this code can read.
template <typename Platform>
SHOAL_HOST_DEVICE Outcome put(const Queue& queue, Source source, mlx5::Memory remote,
                              std::uint64_t bytes, std::uint64_t deadline, Platform& platform,
                              std::uint64_t& ticket) {
  ticket = 0;  // nothing to wait for
  return detail::post_messages(queue, source, remote, bytes, 0, deadline, platform, ticket);
}

/// Changes a word of the peer after everything posted before on this queue.
template <typename Platform>
SHOAL_HOST_DEVICE Outcome signal(const Queue& queue, const Signal& signal, std::uint64_t deadline,
                                 Platform& platform, std::uint64_t& ticket) {
  if (!detail::is_aligned(signal.word)) return Outcome::refused;
  const std::uint32_t n = detail::requests_of(queue, signal);
  Reservation mine;
  const Outcome outcome = reserve(queue, n, deadline, platform, mine);
  if (outcome != Outcome::ok) return outcome;
  detail::write_signal(queue, mine.first, n, signal);
  ticket = mine.first + n;
  return publish(queue, mine, {}, deadline, platform);
}

/// Writes `bytes` bytes, then changes a word of the peer: a reader of the new word sees the bytes.
/// The last message and the signal are handed to the NIC together.
template <typename Platform>
SHOAL_HOST_DEVICE Outcome put_signal(const Queue& queue, Source source, mlx5::Memory remote,
                                     std::uint64_t bytes, const Signal& signal,
                                     std::uint64_t deadline, Platform& platform,
                                     std::uint64_t& ticket) {
  if (!detail::is_aligned(signal.word)) return Outcome::refused;
  Outcome outcome =
      detail::post_messages(queue, source, remote, bytes, 1, deadline, platform, ticket);
  if (outcome != Outcome::ok) return outcome;
  const std::uint32_t data = bytes != 0 ? 1 : 0;
  const std::uint32_t n = data + detail::requests_of(queue, signal);
  Reservation mine;
  outcome = reserve(queue, n, deadline, platform, mine);
  if (outcome != Outcome::ok) return outcome;
  const std::uint64_t first = mine.first;
  if (data != 0)
    detail::write_put(queue, first, source, remote, static_cast<std::uint32_t>(bytes),
                      {queue.is_signalled(0, n)});
  detail::write_signal(queue, first, n, signal);
  ticket = first + n;
  return publish(queue, mine, {}, deadline, platform);
}

/// Adds to a word of the peer, atomic among operations of its NIC. `before` is its value before.
template <typename Platform>
SHOAL_HOST_DEVICE Outcome fetch_add(const Queue& queue, const mlx5::Memory& word,
                                    std::uint64_t value, const Result& result,
                                    std::uint64_t deadline, Platform& platform,
                                    std::uint64_t& before) {
  return detail::run_atomic(queue, mlx5::Opcode::fetch_add, word, value, 0, result, deadline,
                            platform, before);
}

/// Stores `value` in a word of the peer that is `expected`. `before` is its value before.
template <typename Platform>
SHOAL_HOST_DEVICE Outcome compare_swap(const Queue& queue, const mlx5::Memory& word,
                                       std::uint64_t expected, std::uint64_t value,
                                       const Result& result, std::uint64_t deadline,
                                       Platform& platform, std::uint64_t& before) {
  return detail::run_atomic(queue, mlx5::Opcode::compare_swap, word, value, expected, result,
                            deadline, platform, before);
}

/// Orders all puts that were published before this call before everything posted after it.
template <typename Platform>
SHOAL_HOST_DEVICE Outcome fence(const Queue& queue, std::uint64_t deadline, Platform& platform) {
  return queue.ordering == Ordering::strict ? Outcome::ok : quiet(queue, deadline, platform);
}

/// Requests of one lane: a put of at most one message if `bytes` is not 0, and a signal if that is
/// not nullptr.
struct LanePost {
  Source source;
  mlx5::Memory remote;
  std::uint32_t bytes = 0;
  const Signal* signal = nullptr;
};

/// The puts of all lanes of a group, then their signals, with one reservation and one doorbell. The
/// signals have no order among themselves unless the queue is strict: then that of the lanes. All
/// lanes call; all get the same outcome and ticket. The queue has a slot for each put and signal,
/// and one more.
///
/// A Group has rank(), size(), sync() (which orders the memory accesses of its lanes), broadcast(v)
/// of rank 0, and count_before(flag, total): lanes of a lower rank whose flag is set, and of all.
template <typename Group, typename Platform>
SHOAL_HOST_DEVICE Outcome post_each(const Group& group, const Queue& queue, const LanePost& mine,
                                    std::uint64_t deadline, Platform& platform,
                                    std::uint64_t& ticket) {
  const bool is_leader = group.rank() == 0, has_signal = mine.signal != nullptr;
  const bool sets = has_signal && mine.signal->kind == SignalKind::set;
  std::uint32_t puts = 0, signals = 0, refused = 0, set = 0;
  const std::uint32_t my_put = group.count_before(mine.bytes != 0, puts);
  const std::uint32_t my_signal = group.count_before(has_signal, signals);
  group.count_before(
      mine.bytes > queue.largest_message || (has_signal && !detail::is_aligned(mine.signal->word)),
      refused);
  const std::uint32_t my_set = group.count_before(sets, set);
  ticket = 0;
  if (refused != 0) return Outcome::refused;
  if (puts + signals == 0) return Outcome::ok;
  // An addition of 0 waits for the puts, and the words that are set wait for it.
  const bool strict = queue.ordering == Ordering::strict;
  const std::uint32_t before = puts + (set != 0 && !strict ? 1 : 0), n = before + signals;
  Outcome outcome = Outcome::ok;
  Reservation ours;  // of the leader
  if (is_leader) outcome = reserve(queue, n, deadline, platform, ours);
  outcome = static_cast<Outcome>(group.broadcast(static_cast<std::uint64_t>(outcome)));
  if (outcome != Outcome::ok) return outcome;
  const std::uint64_t first = group.broadcast(ours.first);
  if (mine.bytes != 0)
    detail::write_put(queue, first + my_put, mine.source, mine.remote, mine.bytes,
                      {queue.is_signalled(my_put, n)});
  if (before != puts && sets && my_set == 0)
    detail::write_add(queue, first + puts, *mine.signal, 0, {queue.is_signalled(puts, n)});
  if (has_signal) {
    const std::uint32_t at = before + my_signal;
    const mlx5::Flags flags{.signalled = queue.is_signalled(at, n), .fenced = sets && !strict};
    if (sets)
      detail::write_word(queue, first + at, *mine.signal, flags);
    else
      detail::write_add(queue, first + at, *mine.signal, mine.signal->value, flags);
  }
  group.sync();  // the leader publishes for all
  if (is_leader) outcome = publish(queue, ours, {}, deadline, platform);
  ticket = first + n;
  return static_cast<Outcome>(group.broadcast(static_cast<std::uint64_t>(outcome)));
}

}  // namespace shoal::device::gda
