// SPDX-License-Identifier: Apache-2.0
// request.hpp: work requests as the NIC on a GPU reads them from a ring (format:
// engine/work_request.hpp), and the memory that they name. For host and device code.
//
// Unlike the engine, this NIC executes neither sends nor writes with immediate data.
#pragma once

#include "engine/atomics.hpp"
#include "engine/memory_keys.hpp"
#include "gpu/bits.hpp"
#include "gpu/keys.hpp"
#include "shoal/device/detail/mlx5/format.hpp"

namespace shoal::emulator::gpu {

enum class RequestState : std::uint8_t { fetched, issued, started, executed };

/// A request in the window of its queue pair.
struct Request {
  std::uint64_t time = 0;       ///< of arrival at the peer, the earliest; then of execution
  std::byte* remote = nullptr;  ///< its address as the request names it; then (find_remote) as the
                                ///< GPU does
  std::byte* local = nullptr;   ///< memory of the current part
  std::uint64_t value = 0;      ///< inline bytes, if is_small(); what a fetch-and-add adds
  std::uint32_t remote_key = 0;
  std::uint32_t bytes = 0;
  std::uint32_t part_bytes = 0;  ///< of the current part
  std::uint32_t offset = 0;      ///< in the current part: handed to workers
  std::uint32_t moved = 0;       ///< bytes of the parts before it
  // Modulo 2^32, on the counter of its jobs (counter_of()):
  std::uint32_t before = 0;  ///< its jobs wait until the counter is there
  std::uint32_t jobs = 0;    ///< what the counter is when all that were handed out are done
  std::uint16_t index = 0;   ///< of the first block
  std::uint8_t blocks = 1;
  std::uint8_t segments = 1;
  std::uint8_t segment = 0;  ///< of the current part
  Opcode opcode = Opcode::nop;
  Syndrome syndrome = Syndrome::none;
  RequestState state = RequestState::fetched;
  bool signalled = false, fenced = false, is_inline = false;

  SHOAL_HOST_DEVICE bool fetches() const { return opcode == Opcode::read || is_atomic(opcode); }
  SHOAL_HOST_DEVICE bool all_handed_out() const { return moved + offset >= bytes; }
  SHOAL_HOST_DEVICE bool is_small() const { return is_inline && bytes <= sizeof value; }
};

/// A segment with its words in host order.
struct Words {
  std::uint32_t at[4];
  SHOAL_HOST_DEVICE std::uint64_t wide(int i) const {
    return std::uint64_t{at[2 * i]} << 32 | at[2 * i + 1];
  }
};

/// Segment `i` of the request whose first block is `index`; requests wrap at the end of the ring.
SHOAL_HOST_DEVICE inline const std::byte* segment_at(const QueuePairConfig& pair,
                                                     std::uint16_t index, std::uint32_t i) {
  const std::uint32_t segments = pair.blocks * mlx5::kBlockSegments;
  const std::uint32_t number = (index * mlx5::kBlockSegments + i) & (segments - 1);
  return pair.ring + std::size_t{number} * mlx5::kSegmentBytes;
}

template <typename Platform>
SHOAL_HOST_DEVICE Words read_segment(const Platform& platform, const QueuePairConfig& pair,
                                     std::uint16_t index, std::uint32_t i) {
  const Vector value = platform.template load<Vector>(segment_at(pair, index, i));
  return {{mlx5::big(static_cast<std::uint32_t>(value.low)),
           mlx5::big(static_cast<std::uint32_t>(value.low >> 32)),
           mlx5::big(static_cast<std::uint32_t>(value.high)),
           mlx5::big(static_cast<std::uint32_t>(value.high >> 32))}};
}

/// The segments of one request. Those of its first block are loaded together.
template <typename Platform>
class Segments {
 public:
  SHOAL_HOST_DEVICE Segments(const Platform& platform, const QueuePairConfig& pair,
                             std::uint16_t index)
      : platform_(platform), pair_(pair), index_(index) {
    for (std::uint32_t i = 0; i < mlx5::kBlockSegments; ++i)
      first_[i] = read_segment(platform, pair, index, i);
  }
  SHOAL_HOST_DEVICE Words at(std::uint32_t i) const {
    if (i == 1) return first_[1];
    if (i == 2) return first_[2];
    if (i == 3) return first_[3];
    return i == 0 ? first_[0] : read_segment(platform_, pair_, index_, i);
  }

 private:
  const Platform& platform_;
  const QueuePairConfig& pair_;
  std::uint16_t index_;
  Words first_[mlx5::kBlockSegments];
};

namespace detail {

inline constexpr std::uint32_t kInlineBit = 1U << 31;
inline constexpr std::uint32_t kMaskedFour = 0x08, kMaskedEight = 0x09;

SHOAL_HOST_DEVICE constexpr bool is_masked(Opcode opcode) {
  return opcode == Opcode::masked_compare_swap || opcode == Opcode::masked_fetch_add;
}
SHOAL_HOST_DEVICE constexpr bool is_executed(Opcode opcode) {
  return opcode == Opcode::nop || opcode == Opcode::write || opcode == Opcode::read ||
         is_atomic(opcode);
}
/// Segments of the operands; 0: the modifier is none of this operation.
SHOAL_HOST_DEVICE constexpr std::uint32_t operand_segments(Opcode opcode, std::uint32_t modifier) {
  if (!is_masked(opcode)) return 1;
  if (modifier != kMaskedFour && modifier != kMaskedEight) return 0;
  return opcode == Opcode::masked_compare_swap && modifier == kMaskedEight ? 2 : 1;
}

/// The first inline bytes of `request` that follow each other in memory.
SHOAL_HOST_DEVICE inline void set_inline_part(const QueuePairConfig& pair, Request& request) {
  const std::byte* const from =
      segment_at(pair, request.index, request.segment) + mlx5::kInlineHeader;
  const auto to_end =
      static_cast<std::uint64_t>(pair.ring + std::size_t{pair.blocks} * mlx5::kBlockBytes - from);
  request.local = const_cast<std::byte*>(from);
  request.part_bytes = request.bytes < to_end ? request.bytes : static_cast<std::uint32_t>(to_end);
}

/// Reads the inline segment `first`, whose words are `words`.
SHOAL_HOST_DEVICE inline Syndrome read_inline(const QueuePairConfig& pair, const Words& words,
                                              std::uint32_t first, Request& request) {
  request.bytes = words.at[0] & ~kInlineBit;
  const std::uint32_t needed =
      (mlx5::kInlineHeader + request.bytes + mlx5::kSegmentBytes - 1) / mlx5::kSegmentBytes;
  if (request.opcode != Opcode::write || needed != request.segments - first)
    return Syndrome::local_qp_operation;
  request.is_inline = true;
  request.value = std::uint64_t{mlx5::big(words.at[2])} << 32 | mlx5::big(words.at[1]);
  request.segment = static_cast<std::uint8_t>(first);
  set_inline_part(pair, request);
  return Syndrome::none;
}

/// What the data segments of a request come to.
struct Data {
  std::uint64_t bytes = 0;
  bool is_covered = true;  ///< by keys with the right access
};

/// Adds data segment `i`, whose words are `words`. The first with bytes becomes the current part.
template <typename Platform>
SHOAL_HOST_DEVICE void add_data(const Platform& platform, const QueuePairConfig& pair,
                                const Keys& keys, const Words& words, std::uint32_t i,
                                Request& request, Data& data) {
  const std::uint32_t length = words.at[0];
  data.bytes += length;
  if (length == 0) return;
  const std::uint32_t access = request.fetches() ? Access::local_write : 0;
  std::byte* const at =
      translate(platform, keys, words.at[1], pair.domain, words.wide(1), length, access);
  data.is_covered = data.is_covered && at != nullptr;
  if (request.part_bytes != 0) return;
  request.segment = static_cast<std::uint8_t>(i);
  request.local = at;
  request.part_bytes = length;
}

/// Adds the data segments from number `first` on. False: one of them is inline.
template <typename Platform>
SHOAL_HOST_DEVICE SHOAL_RARE bool add_further(Platform platform, const QueuePairConfig& pair,
                                              Keys keys, std::uint32_t first, Request& request,
                                              Data& data) {
  for (std::uint32_t i = first; i < request.segments; ++i) {
    const Words words = read_segment(platform, pair, request.index, i);
    if ((words.at[0] & kInlineBit) != 0) return false;
    add_data(platform, pair, keys, words, i, request, data);
  }
  return true;
}

/// Reads and checks the data segments from number `first` on.
template <typename Platform>
SHOAL_HOST_DEVICE Syndrome read_data(const Platform& platform, const Segments<Platform>& segments,
                                     const QueuePairConfig& pair, const Keys& keys,
                                     std::uint32_t first, std::uint32_t atomic_bytes,
                                     Request& request) {
  Data data;
  if (request.segments > first) {
    const Words words = segments.at(first);
    if ((words.at[0] & kInlineBit) != 0) return read_inline(pair, words, first, request);
    add_data(platform, pair, keys, words, first, request, data);
    if (request.segments > first + 1 &&
        !add_further(platform, pair, keys, first + 1, request, data))
      return Syndrome::local_qp_operation;
  }
  if (atomic_bytes != 0 && (request.segments != first + 1 || data.bytes != atomic_bytes))
    return Syndrome::local_qp_operation;
  if (data.bytes > kMostMessageBytes) return Syndrome::local_length;
  request.bytes = static_cast<std::uint32_t>(data.bytes);
  return data.is_covered ? Syndrome::none : Syndrome::local_protection;
}

template <typename Platform>
SHOAL_HOST_DEVICE Syndrome read_body(const Platform& platform, const Segments<Platform>& segments,
                                     const QueuePairConfig& pair, const Keys& keys,
                                     std::uint32_t modifier, Request& request) {
  if (request.opcode == Opcode::nop) return Syndrome::none;
  std::uint32_t next = 2, atomic_bytes = 0;
  if (request.segments < next) return Syndrome::local_qp_operation;
  const Words remote = segments.at(1);
  request.remote = reinterpret_cast<std::byte*>(remote.wide(0));
  request.remote_key = remote.at[2];
  if (is_atomic(request.opcode)) {
    const std::uint32_t operands = operand_segments(request.opcode, modifier);
    if (operands == 0) return Syndrome::local_qp_operation;
    next += operands;
    atomic_bytes = is_masked(request.opcode) && modifier == kMaskedFour ? 4 : 8;
    if (request.opcode == Opcode::fetch_add) request.value = segments.at(2).wide(0);
  }
  return read_data(platform, segments, pair, keys, next, atomic_bytes, request);
}

}  // namespace detail

/// Reads and checks the request whose first block has the free-running number `index`: its format
/// and its local memory. One that no NIC executes has only index, blocks and syndrome.
template <typename Platform>
SHOAL_HOST_DEVICE void decode(const Platform& platform, const QueuePairConfig& pair,
                              const Keys& keys, std::uint16_t index, Request& request) {
  constexpr std::uint32_t kMostRequestBlocks = 16, kSignalled = 0x08, kFences = 0xe0;
  const Segments<Platform> all(platform, pair, index);
  const Words control = all.at(0);
  const std::uint32_t segments = control.at[1] & mlx5::kMostSegments;
  const std::uint32_t blocks = mlx5::blocks_of(segments);
  request = {};
  request.index = index;
  request.segments = static_cast<std::uint8_t>(segments);
  request.blocks = static_cast<std::uint8_t>(blocks);
  request.opcode = static_cast<Opcode>(control.at[0] & 0xff);
  request.signalled = (control.at[2] & kSignalled) != 0;
  request.fenced = (control.at[2] & kFences) != 0;
  const bool good = control.at[1] >> 8 == pair.number && (control.at[0] >> 8 & 0xffff) == index &&
                    blocks <= pair.blocks && blocks <= kMostRequestBlocks && segments != 0 &&
                    detail::is_executed(request.opcode);
  request.syndrome =
      good ? detail::read_body(platform, all, pair, keys, control.at[0] >> 24, request)
           : Syndrome::local_qp_operation;
  if (request.syndrome != Syndrome::local_qp_operation) return;
  request = {};
  request.index = index;
  request.blocks = static_cast<std::uint8_t>(blocks);
  request.syndrome = Syndrome::local_qp_operation;
}

/// Makes the next part of `request` the current one. False after the last one. Syndrome
/// local_protection where its memory is no longer registered.
template <typename Platform>
SHOAL_HOST_DEVICE SHOAL_RARE bool next_part(Platform platform, const QueuePairConfig& pair,
                                            Keys keys, Request& request) {
  request.moved += request.part_bytes;
  request.offset = 0;
  request.part_bytes = 0;
  if (request.moved >= request.bytes) return false;
  if (request.is_inline) {
    request.local = const_cast<std::byte*>(pair.ring);
    request.part_bytes = request.bytes - request.moved;
    return true;
  }
  const std::uint32_t access = request.fetches() ? Access::local_write : 0;
  while (++request.segment < request.segments) {
    const Words words = read_segment(platform, pair, request.index, request.segment);
    if (words.at[0] == 0) continue;
    request.part_bytes = words.at[0];
    request.local =
        translate(platform, keys, words.at[1], pair.domain, words.wide(1), words.at[0], access);
    if (request.local == nullptr) {
      request.part_bytes = 0;
      request.syndrome = Syndrome::local_protection;
    }
    return true;
  }
  return false;
}

/// The operands of an atomic that was decoded.
template <typename Platform>
SHOAL_HOST_DEVICE AtomicOperands operands_of(const Platform& platform, const QueuePairConfig& pair,
                                             const Request& request) {
  AtomicOperands operands;
  operands.opcode = request.opcode;
  operands.size = static_cast<std::uint8_t>(request.bytes);
  if (request.opcode == Opcode::fetch_add) {
    operands.swap_or_add = request.value;
    return operands;
  }
  const Words first = read_segment(platform, pair, request.index, 2);
  const bool swaps = request.opcode == Opcode::masked_compare_swap;
  if (operands.size == 4) {
    operands.swap_or_add = first.at[0];
    operands.compare = swaps ? first.at[1] : 0;
    operands.swap_mask = swaps ? first.at[2] : ~std::uint64_t{0};
    operands.compare_mask_or_boundary = swaps ? first.at[3] : first.at[1];
    return operands;
  }
  operands.swap_or_add = first.wide(0);
  if (request.opcode == Opcode::masked_fetch_add)
    operands.compare_mask_or_boundary = first.wide(1);
  else
    operands.compare = first.wide(1);
  if (!swaps) return operands;
  const Words second = read_segment(platform, pair, request.index, 3);
  operands.swap_mask = second.wide(0);
  operands.compare_mask_or_boundary = second.wide(1);
  return operands;
}

}  // namespace shoal::emulator::gpu
