// SPDX-License-Identifier: Apache-2.0
// execute.hpp: queue pairs as the dispatcher keeps them, the execution of one request, and its
// completion entry. For host and device code.
#pragma once

#include "gpu/bits.hpp"
#include "gpu/request.hpp"

namespace shoal::emulator::gpu {

inline constexpr std::uint64_t kNoStop = ~std::uint64_t{0};

/// Numbers of requests: completed <= issued <= fetched <= completed + kWindow.
struct Pair {
  QueuePairConfig config;
  CompletionQueueConfig queue;
  KeyTable peer_keys;
  std::uint64_t completed = 0, issued = 0, fetched = 0;
  std::uint64_t stop = kNoStop;  ///< the first request that is refused: none from it on is executed
  std::uint32_t block = 0;       ///< after the requests that are fetched; 16 bits
  std::uint32_t posted = 0;      ///< the doorbell record; 16 bits
  std::uint32_t jobs = 0;        ///< handed out so far; modulo 2^32, as the next one
  std::uint32_t jobs_done = 0;   ///< of a strict queue pair, as last seen
  /// Where nothing goes on before workers are done: the counter of the first request that they
  /// move, what it has to come to, and when to look in any case.
  const std::uint64_t* awaited = nullptr;
  std::uint64_t look_again = 0;
  std::uint32_t awaited_jobs = 0;
  Ended ended = Ended::no;
  bool failed = false;    ///< in the error state
  bool unfenced = false;  ///< something was executed after the last fence
  QueuePairReport report;
  Request window[kWindow];

  SHOAL_HOST_DEVICE Request& at(std::uint64_t number) { return window[number % kWindow]; }
  SHOAL_HOST_DEVICE const Request& at(std::uint64_t number) const {
    return window[number % kWindow];
  }
};

/// A queue pair without requests. Its window may be anything.
SHOAL_HOST_DEVICE inline void initialize(const NicState& state, std::uint32_t number, Pair& pair) {
  pair.config = state.pairs[number];
  pair.queue = state.completions[pair.config.completions];
  pair.peer_keys = state.tables[pair.config.table];
  pair.completed = pair.issued = pair.fetched = 0;
  pair.block = pair.posted = pair.jobs = pair.jobs_done = 0;
  pair.awaited = nullptr;
  pair.look_again = pair.awaited_jobs = 0;
  pair.ended = Ended::no;
  pair.failed = pair.unfenced = false;
  pair.stop = kNoStop;
  pair.report = {};
}

SHOAL_HOST_DEVICE inline bool is_strict(const Pair& pair) {
  return pair.config.ordering == Ordering::strict;
}

/// Which of the kWindow counters of a queue pair counts the jobs of request `i` of the window that
/// are done. Strict queue pairs have one for all, which is never reset: a job is done when all
/// before it are, so the counter orders them.
SHOAL_HOST_DEVICE inline std::uint32_t counter_of(const Pair& pair, std::uint32_t i) {
  return is_strict(pair) ? 0 : static_cast<std::uint32_t>((pair.completed + i) % kWindow);
}

/// Whether a counter of jobs has come to `target`; modulo 2^32.
SHOAL_HOST_DEVICE inline bool has_reached(std::uint64_t counter, std::uint32_t target) {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(counter) - target) >= 0;
}

/// Adds `n` requests that were read, of `waiting` blocks, to the window. All but the last have one
/// block. By one lane.
SHOAL_HOST_DEVICE inline void take(Pair& pair, std::uint32_t n, std::uint32_t waiting) {
  Request& last = pair.at(pair.fetched + n - 1);
  const std::uint32_t left = waiting - (n - 1);
  if (last.blocks > left) {  // the doorbell record ends within it
    const std::uint16_t index = last.index;
    last = {};
    last.index = index;
    last.blocks = static_cast<std::uint8_t>(left);
    last.syndrome = Syndrome::local_qp_operation;
  }
  pair.fetched += n;
  pair.block = (pair.block + n - 1 + last.blocks) & 0xffff;
  pair.report.requests += n;
}

/// By which request `index` of queue pair `number` is late, if it is a write: from the seed.
SHOAL_HOST_DEVICE inline std::uint64_t lateness(const Timing& timing, const Pair& pair,
                                                const Request& request, std::uint64_t index,
                                                std::uint32_t number) {
  if (timing.reorder == 0 || is_strict(pair) || request.opcode != Opcode::write) return 0;
  std::uint64_t x = timing.seed + index * 0x9e3779b97f4a7c15 + (number + 1) * 0xd1b54a32d192ed03;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return (x ^ x >> 31) % timing.reorder;
}

/// What is left of the current part of a request, in jobs whose targets begin at 16 bytes.
class Chunks {
 public:
  SHOAL_HOST_DEVICE explicit Chunks(const Request& request) : Chunks(request, request.offset) {}
  /// From `offset` on.
  SHOAL_HOST_DEVICE Chunks(const Request& request, std::uint32_t offset)
      : first_(offset),
        end_(request.part_bytes),
        log_size_(request.bytes >= kLongMessageBytes ? kLogLongChunk : kLogChunk) {
    const std::byte* const to =
        request.opcode == Opcode::read ? request.local : request.remote + request.moved;
    skew_ = detail::offset_in(to + first_, sizeof(Vector));
  }
  SHOAL_HOST_DEVICE std::uint32_t count() const {
    return (end_ - first_ + (end_ == first_ ? 0 : skew_) + (1U << log_size_) - 1) >> log_size_;
  }
  /// In the part; offset(count()) is its end.
  SHOAL_HOST_DEVICE std::uint32_t offset(std::uint32_t i) const {
    if (i == 0) return first_;
    return i >= count() ? end_ : first_ + (i << log_size_) - skew_;
  }
  SHOAL_HOST_DEVICE std::uint32_t bytes(std::uint32_t i) const { return offset(i + 1) - offset(i); }
  /// How many of them begin within the first `bytes` bytes, or right after them.
  SHOAL_HOST_DEVICE std::uint32_t begun(std::uint32_t bytes) const {
    return 1 + static_cast<std::uint32_t>((std::uint64_t{bytes} + skew_) >> log_size_);
  }

 private:
  std::uint32_t first_, end_, log_size_, skew_ = 0;
};

/// Whether the dispatcher executes the request itself.
SHOAL_HOST_DEVICE inline bool is_direct(const Request& request) {
  return request.bytes <= kDirectBytes || is_atomic(request.opcode);
}

/// Finds the memory at the peer, or says why the peer refuses the request.
template <typename Platform>
SHOAL_HOST_DEVICE Syndrome find_remote(const Platform& platform, const Pair& pair, KeyCache& cache,
                                       Request& request) {
  std::uint32_t access = Access::remote_atomic;
  if (request.opcode == Opcode::write) access = Access::remote_write;
  if (request.opcode == Opcode::read) access = Access::remote_read;
  if ((pair.config.peer_access & access) == 0) return Syndrome::remote_access;
  const auto address = reinterpret_cast<std::uint64_t>(request.remote);
  if (is_atomic(request.opcode) && address % request.bytes != 0)
    return Syndrome::remote_invalid_request;
  if (request.bytes == 0) return Syndrome::none;
  request.remote = translate(platform, {pair.peer_keys, &cache}, request.remote_key,
                             pair.config.peer_domain, address, request.bytes, access);
  return request.remote == nullptr ? Syndrome::remote_access : Syndrome::none;
}

namespace detail {

template <typename T, typename Platform>
SHOAL_HOST_DEVICE std::uint64_t exchange(const Platform& platform, std::byte* at,
                                         const AtomicOperands& operands) {
  T* const word = reinterpret_cast<T*>(at);
  if (operands.opcode == Opcode::fetch_add)
    return platform.add_far(word, static_cast<T>(operands.swap_or_add));
  T seen = platform.template load<T>(at);
  while (!platform.replace_far(word, seen, static_cast<T>(apply_atomic(operands, seen)))) {
  }
  return seen;
}

/// Results of 8 bytes are in host order, those of 4 in network order, as on ConnectX-7.
template <typename Platform>
SHOAL_HOST_DEVICE SHOAL_RARE void run_atomic(Platform platform, const QueuePairConfig& pair,
                                             Request& request) {
  const AtomicOperands operands = operands_of(platform, pair, request);
  const bool is_wide = operands.size == 8;
  const std::uint64_t before = is_wide
                                   ? exchange<std::uint64_t>(platform, request.remote, operands)
                                   : exchange<std::uint32_t>(platform, request.remote, operands);
  const std::uint64_t result = is_wide ? before : mlx5::big(static_cast<std::uint32_t>(before));
  if (is_wide && offset_in(request.local, 8) == 0)
    return platform.template store<std::uint64_t>(request.local, result);
  if (!is_wide && offset_in(request.local, 4) == 0)
    return platform.template store<std::uint32_t>(request.local,
                                                  static_cast<std::uint32_t>(result));
  for (std::uint32_t i = 0; i < request.bytes; ++i)
    platform.template store<std::uint8_t>(request.local + i,
                                          static_cast<std::uint8_t>(result >> 8 * i));
}

template <typename Platform>
SHOAL_HOST_DEVICE SHOAL_RARE void run_copy(Platform platform, const QueuePairConfig& pair,
                                           Keys own_keys, Request& request) {
  do {
    std::byte* const remote = request.remote + request.moved;
    const bool reads = request.opcode == Opcode::read;
    copy<4>(platform, reads ? request.local : remote, reads ? remote : request.local,
            request.part_bytes, 0, 1);
  } while (next_part(platform, pair, own_keys, request) && request.syndrome == Syndrome::none);
}

}  // namespace detail

/// Executes a request, by one lane. Its syndrome says whether the peer has refused it. What signals
/// consist of comes first, in little code: the dispatcher waits for instructions most of all.
template <typename Platform>
SHOAL_HOST_DEVICE void run_direct(const Platform& platform, const Pair& pair, const Keys& own_keys,
                                  Request& request) {
  if (request.opcode == Opcode::nop) return;
  request.syndrome = find_remote(platform, pair, *own_keys.cache, request);
  if (request.syndrome != Syndrome::none) return;
  const bool is_word = request.bytes == 8 && detail::offset_in(request.remote, 8) == 0;
  if (is_word && request.is_small())
    return platform.template store<std::uint64_t>(request.remote, request.value);
  if (request.opcode == Opcode::fetch_add && detail::offset_in(request.local, 8) == 0)
    return platform.template store<std::uint64_t>(
        request.local,
        platform.add_far(reinterpret_cast<std::uint64_t*>(request.remote), request.value));
  if (is_atomic(request.opcode)) return detail::run_atomic(platform, pair.config, request);
  if (request.bytes != 0) detail::run_copy(platform, pair.config, own_keys, request);
}

SHOAL_HOST_DEVICE inline std::byte* entry_at(const CompletionQueueConfig& queue,
                                             std::uint64_t number) {
  const std::uint64_t size = std::uint64_t{1} << queue.log_size;
  return queue.entries + (number & (size - 1)) * sizeof(mlx5::CompletionEntry);
}

/// Writes all of entry `number` of a completion queue but its last word.
template <typename Platform>
SHOAL_HOST_DEVICE void write_entry(const Platform& platform, const Pair& pair, std::uint64_t number,
                                   const Request& request, Syndrome syndrome, std::uint64_t now) {
  constexpr std::uint32_t kNumberMask = 0xffffff;
  const bool failed = syndrome != Syndrome::none;
  std::byte* const to = entry_at(pair.queue, number);
  const auto two = [](std::uint32_t first, std::uint32_t second) {
    return std::uint64_t{mlx5::big(second)} << 32 | mlx5::big(first);
  };
  const auto time = static_cast<std::uint32_t>(now);
  const std::uint32_t last = failed ? (time & ~0xffU) | static_cast<std::uint32_t>(syndrome) : time;
  platform.template store<Vector>(to, {0, 0});
  platform.template store<Vector>(to + 16, {0, two(pair.config.peer_number & kNumberMask, 0)});
  platform.template store<Vector>(
      to + 32, {two(pair.config.user_index, 0), two(0, failed ? 0 : request.bytes)});
  platform.template store<std::uint64_t>(to + 48, two(static_cast<std::uint32_t>(now >> 32), last));
  platform.template store<std::uint32_t>(
      to + 56, mlx5::big(std::uint32_t{static_cast<std::uint8_t>(request.opcode)} << 24 |
                         (pair.config.number & kNumberMask)));
}

/// Writes the last word, which clients look at.
template <typename Platform>
SHOAL_HOST_DEVICE void finish_entry(const Platform& platform, const CompletionQueueConfig& queue,
                                    std::uint64_t number, const Request& request,
                                    Syndrome syndrome) {
  std::byte* const to = entry_at(queue, number);
  const std::uint32_t opcode = syndrome == Syndrome::none ? 0 : mlx5::kCompletionError;
  const std::uint32_t owner = queue.collapsed ? 0 : (number >> queue.log_size) & 1;
  platform.template store<std::uint32_t>(
      to + 60, mlx5::big(std::uint32_t{request.index} << 16 | opcode << 4 | owner));
}

}  // namespace shoal::emulator::gpu
