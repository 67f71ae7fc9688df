// SPDX-License-Identifier: Apache-2.0
// wire.hpp: what the PEs of this transport send each other: how to reach a PE, and messages.
//
// Data goes by RMA. Everything that must be applied by a processor goes in messages, which the
// receiver's progress thread applies with the same atomic instructions that PEs of its host use on
// that memory: single words, atomics and signals.
//
// Flow control. Requests are numbered from 1 by pair of PEs and stay in order (FI_ORDER_SAS). A
// sender has at most `window` of them not acknowledged. Acknowledgements are cumulative and each
// message carries one; a request makes its receiver send at most one message. So a receiver that
// posts 2 * window buffers for a peer, and kSpareMessages for what is not numbered, is never
// overrun.
#pragma once

#include <cstddef>
#include <cstdint>

#include "shoal/operation.hpp"

namespace shoal::transport::ofi {

inline constexpr std::size_t kMaxRails = 16;
inline constexpr std::size_t kMaxName = 256;  ///< bytes of an endpoint's address
inline constexpr std::size_t kSpareMessages = 4;
inline constexpr std::size_t kInlineBytes = 192;  ///< data that a message carries itself

enum class Kind : std::uint8_t {
  // Requests; each may have a signal, which is applied last.
  nothing,  ///< for its signal or its acknowledgement
  store,    ///< one store of `width` bytes
  data,     ///< `compare` bytes, which follow the message
  atomic,   ///< without an answer
  fetch,    ///< answered by `reply`
  // Not numbered.
  acknowledge,
  reply,    ///< `sequence`: of the request, `operand`: the value before
  hello,    ///< of a handshake, on rail `offset`, which has put a pattern
  welcome,  ///< its answer; `operand`: 1 when the pattern was there
  probe,    ///< answered by acknowledge, or by an error of the provider: finds out whether a silent
            ///< peer lives
};

namespace flag {
inline constexpr std::uint8_t acknowledge = 1;  ///< soon, please
inline constexpr std::uint8_t signal_set = 2;
inline constexpr std::uint8_t signal_add = 4;
inline constexpr std::uint8_t eager =
    8;  ///< not sent: becomes `acknowledge` where none is on its way
}  // namespace flag

struct Message {
  std::uint64_t world = 0;  ///< part of the world's secret: what does not have it is dropped
  Kind kind = Kind::nothing;
  AtomicOp op = AtomicOp::fetch;
  std::uint8_t width = 0;
  std::uint8_t flags = 0;
  std::int32_t source = 0;
  std::uint32_t sequence = 0;
  std::uint32_t acknowledged =
      0;  ///< the newest request of the receiver that the source has applied
  std::uint64_t offset = 0;
  std::uint64_t operand = 0;
  std::uint64_t compare = 0;
  std::uint64_t signal_offset = 0;
  std::uint64_t signal_value = 0;
};
static_assert(sizeof(Message) == 64);

inline constexpr std::size_t kMessageBytes = sizeof(Message) + kInlineBytes;

/// Numbers wrap around; windows are far smaller than half of them.
constexpr bool not_before(std::uint32_t a, std::uint32_t b) noexcept {
  return static_cast<std::int32_t>(a - b) >= 0;
}

/// Memory of a PE as RMA names it.
struct RemoteMemory {
  std::uint64_t base = 0;  ///< 0 where the provider counts from the start of the region
  std::uint64_t key = 0;
};

/// One endpoint.
struct RailAddress {
  RemoteMemory segment;
  RemoteMemory scratch;
  std::uint64_t name_bytes = 0;
  std::uint8_t name[kMaxName] = {};
  char domain[64] = {};  ///< for people
};

/// What address() hands out, followed by `rails` times RailAddress.
struct AddressHeader {
  std::uint64_t rails = 0;
  std::uint64_t segment_bytes = 0;
  std::uint64_t window = 0;  ///< requests that each sender may have on the way to this PE
  char provider[64] = {};
};

}  // namespace shoal::transport::ofi
