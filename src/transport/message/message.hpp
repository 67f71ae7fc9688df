// SPDX-License-Identifier: Apache-2.0
// message.hpp: the wire format of messages between the PEs of a network.
//
// Long data travel by RMA. Everything that a processor must apply travels in messages: single
// words, atomics, signals, short and strided data. The target applies them with the same atomic
// instructions that PEs of its host use on that memory.
//
// Requests are numbered from 1 by sender and target, and the target applies them in that order. A
// sender has at most `window` requests without acknowledgement. Acknowledgements are cumulative,
// every message carries one, and the sender asks for one at least every half window.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "shoal/heap.hpp"
#include "shoal/operation.hpp"
#include "transport/words.hpp"

namespace shoal::transport::message {

enum class Kind : std::uint8_t {
  // Requests: numbered and applied in order. Each may carry a signal, which is applied last.
  nothing,  ///< carries a signal, or asks for an acknowledgement
  store,    ///< stores the word of `width` bytes in `word.operand`
  put,      ///< stores `elements`, whose bytes follow the message
  fetch,    ///< atomic on a word of `width` bytes; the reply has the value before
  get,      ///< the bytes of `elements` follow the reply
  update,   ///< atomic on a word of `width` bytes, without a reply
  // Not numbered.
  acknowledge,
  reply,    ///< to request `sequence`; repeats its fields, `word.operand` is the value before
  hello,    ///< of the handshake on rail `offset`: the sender has put its pattern
  welcome,  ///< reply to hello; `word.operand`: 1 if the pattern was there, else 0
  probe,    ///< answered by acknowledge, or by an error of the network: is the peer alive?
  goodbye,  ///< the sender closes its world and sends nothing more
};

constexpr bool is_request(Kind kind) noexcept {
  return kind < Kind::acknowledge;
}
constexpr bool has_reply(Kind kind) noexcept {
  return kind == Kind::fetch || kind == Kind::get;
}

namespace flag {
inline constexpr std::uint8_t acknowledge = 1;  ///< send an acknowledgement soon
inline constexpr std::uint8_t signal_set = 2;
inline constexpr std::uint8_t signal_add = 4;
}  // namespace flag

/// The header in front of every message. All PEs of a world have the same byte order.
struct Message {
  struct Word {
    std::uint64_t operand = 0;
    std::uint64_t compare = 0;
  };
  /// `count` elements of `bytes` bytes from `offset` on, `stride` bytes apart.
  struct Elements {
    std::uint32_t bytes;
    std::uint32_t count;
    std::uint64_t stride;
  };

  std::uint64_t world = 0;  ///< part of the world's secret; messages of other worlds are dropped
  Kind kind = Kind::nothing;
  AtomicOp op = AtomicOp::fetch;
  std::uint8_t width = 0;
  std::uint8_t flags = 0;
  std::int32_t source = 0;  ///< the sending PE
  std::uint32_t sequence = 0;
  std::uint32_t acknowledged = 0;  ///< newest request of the receiver that the sender has applied
  std::uint64_t offset = 0;
  union {
    Word word{};
    Elements elements;
  };
  std::uint64_t signal_offset = 0;
  std::uint64_t signal_value = 0;

  bool has_signal() const noexcept { return (flags & (flag::signal_set | flag::signal_add)) != 0; }
  void set_signal(std::uint64_t at, SignalOp operation, std::uint64_t value) noexcept {
    flags |= operation == SignalOp::set ? flag::signal_set : flag::signal_add;
    signal_offset = at;
    signal_value = value;
  }
};
static_assert(sizeof(Message) == 64);

/// The bytes that follow a message, as the sender finds them.
struct Payload {
  const std::byte* start = nullptr;
  std::size_t element = 0, count = 0, stride = 0;

  std::size_t bytes() const noexcept { return element * count; }
  /// Packs the elements one after the other. Aligned 4- and 8-byte words are read whole.
  void pack(std::byte* to) const noexcept {
    for (std::size_t i = 0; i < count; ++i) load(to + i * element, start + i * stride, element);
  }
};

/// Does `a` equal `b` or come after it? Numbers wrap around; windows are far smaller than half of
/// their range.
constexpr bool not_before(std::uint32_t a, std::uint32_t b) noexcept {
  return static_cast<std::int32_t>(a - b) >= 0;
}

}  // namespace shoal::transport::message
