// SPDX-License-Identifier: Apache-2.0
// packet.hpp: what travels between two NICs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "engine/atomics.hpp"
#include "engine/types.hpp"

namespace shoal::emulator {

enum class PacketKind : std::uint8_t {
  send,
  write,
  read_request,
  atomic_request,
  acknowledge,
  read_response,
  atomic_response,
};

constexpr bool is_request(PacketKind kind) {
  return kind <= PacketKind::atomic_request;
}

/// Syndromes of an acknowledgement (IBTA, section 9.7.5.2.1). RNR holds a timer code in bits 4:0.
struct AckCode {
  static constexpr std::uint8_t ack = 0x00, rnr = 0x20, sequence_error = 0x60,
                                invalid_request = 0x61, access_error = 0x62, operation_error = 0x63,
                                kind_mask = 0x60;
};

/// Allocates elements without a value: they are written right after.
template <typename T>
struct Uninitialized : std::allocator<T> {
  template <typename U>
  struct rebind {
    using other = Uninitialized<U>;
  };
  Uninitialized() = default;
  template <typename U>
  Uninitialized(const Uninitialized<U>&) noexcept {}

  template <typename U>
  void construct(U* at) noexcept {
    ::new (static_cast<void*>(at)) U;
  }
  template <typename U, typename... Arguments>
  void construct(U* at, Arguments&&... arguments) {
    ::new (static_cast<void*>(at)) U(std::forward<Arguments>(arguments)...);
  }
};

using Payload = std::vector<std::byte, Uninitialized<std::byte>>;

/// The fields of all headers (BTH, RETH, AETH, AtomicETH, immediate) and the payload.
struct Packet {
  PacketKind kind = PacketKind::send;
  bool first = false, last = false;  ///< of its message
  bool ack_requested = false;
  bool solicited = false;
  bool has_immediate = false;
  bool invalidates = false;  ///< `immediate` is a key to invalidate
  bool any_path = false;     ///< may pass packets of the same queue pair
  std::uint8_t ack_code = 0;
  std::uint8_t path = 0;  ///< chosen by the network for any_path, else by the queue pair
  std::uint16_t source = 0, target = 0;  ///< local identifiers (LIDs) of the NICs
  std::uint32_t target_qp = 0;
  std::uint32_t psn = 0;
  std::uint32_t sequence = 0;    ///< MSN of an acknowledgement: messages completed
  std::uint32_t remote_key = 0;  ///< write, read_request, atomic_request
  std::uint32_t length = 0;      ///< read_request: bytes
  std::uint32_t immediate = 0;
  std::uint64_t address = 0;  ///< where this packet's bytes go, or come from
  AtomicOperands atomic;      ///< atomic_response: the old value in swap_or_add
  Payload payload;

  /// Bytes on the wire, with the headers of InfiniBand and its link.
  std::size_t wire_bytes() const;
};

}  // namespace shoal::emulator
