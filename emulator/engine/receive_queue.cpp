// SPDX-License-Identifier: Apache-2.0
#include "engine/receive_queue.hpp"

#include "engine/big_endian.hpp"

namespace shoal::emulator {

std::optional<ReceiveQueue::Request> ReceiveQueue::take() {
  if (attributes_.size == 0) return std::nullopt;
  const auto posted = static_cast<std::uint16_t>(load_shared_be32(attributes_.doorbell_record));
  if (posted == taken_) return std::nullopt;
  const std::uint32_t mask = attributes_.size - 1;
  if (!attributes_.shared) {
    const std::uint16_t index = taken_++;
    const std::byte* const at =
        attributes_.memory + static_cast<std::size_t>(index & mask) * attributes_.stride;
    return Request{index, decode_receive(at, attributes_.stride)};
  }
  ++taken_;
  const std::uint16_t index = head_;
  const std::byte* const at =
      attributes_.memory + static_cast<std::size_t>(index & mask) * attributes_.stride;
  head_ = load_be<std::uint16_t>(at + 2);
  return Request{index, decode_receive(at + kSegmentBytes, attributes_.stride - kSegmentBytes)};
}

}  // namespace shoal::emulator
