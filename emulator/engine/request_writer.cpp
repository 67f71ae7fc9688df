// SPDX-License-Identifier: Apache-2.0
#include "engine/request_writer.hpp"

#include <algorithm>
#include <cstring>

#include "engine/big_endian.hpp"

namespace shoal::emulator {

std::uint8_t modifier_of(const AtomicOperands& operands) {
  if (operands.opcode != Opcode::masked_compare_swap && operands.opcode != Opcode::masked_fetch_add)
    return 0;
  return operands.size == 4 ? 0x08 : 0x09;
}

std::byte* RequestWriter::segment() {
  const std::size_t ring_bytes = std::size_t{blocks_} * kBlockBytes;
  const std::size_t at = (next_ & (blocks_ - 1)) * kBlockBytes + segments_++ * kSegmentBytes;
  return ring_ + at % ring_bytes;
}

RequestWriter& RequestWriter::start(Opcode opcode, const RequestFlags& flags,
                                    std::uint8_t modifier) {
  segments_ = 0;
  (void)segment();  // the control segment, written by finish()
  opcode_ = opcode;
  modifier_ = modifier;
  immediate_ = flags.immediate;
  constexpr std::uint8_t kFence = 0x80;
  flags_ = static_cast<std::uint8_t>((flags.signalled ? ControlFlags::completion_always : 0) |
                                     (flags.solicited ? ControlFlags::solicited : 0) |
                                     (flags.fenced ? kFence : 0));
  return *this;
}

RequestWriter& RequestWriter::remote(std::uint64_t address, std::uint32_t key) {
  std::byte* const to = segment();
  store_be(to, address);
  store_be(to + 8, key);
  store_be(to + 12, std::uint32_t{0});
  return *this;
}

RequestWriter& RequestWriter::data(std::uint64_t address, std::uint32_t length, std::uint32_t key) {
  std::byte* const to = segment();
  store_be(to, length);
  store_be(to + 4, key);
  store_be(to + 8, address);
  return *this;
}

RequestWriter& RequestWriter::inline_data(std::span<const std::byte> bytes) {
  std::byte* to = segment();
  store_be(to, static_cast<std::uint32_t>(bytes.size()) | kInlineFlag);
  std::size_t room = kSegmentBytes - 4;
  to += 4;
  while (!bytes.empty()) {
    const std::size_t part = std::min(room, bytes.size());
    std::memcpy(to, bytes.data(), part);
    bytes = bytes.subspan(part);
    room = kSegmentBytes;
    if (!bytes.empty()) to = segment();
  }
  return *this;
}

RequestWriter& RequestWriter::atomic(const AtomicOperands& operands) {
  std::byte* to = segment();
  if (operands.size == 4) {
    const auto word = [&](int i, std::uint64_t value) {
      store_be(to + 4 * i, static_cast<std::uint32_t>(value));
    };
    word(0, operands.swap_or_add);
    const bool swaps = operands.opcode == Opcode::masked_compare_swap;
    word(1, swaps ? operands.compare : operands.compare_mask_or_boundary);
    word(2, swaps ? operands.swap_mask : 0);
    word(3, swaps ? operands.compare_mask_or_boundary : 0);
    return *this;
  }
  store_be(to, operands.swap_or_add);
  store_be(to + 8, operands.opcode == Opcode::masked_fetch_add ? operands.compare_mask_or_boundary
                                                               : operands.compare);
  if (operands.opcode != Opcode::masked_compare_swap) return *this;
  to = segment();
  store_be(to, operands.swap_mask);
  store_be(to + 8, operands.compare_mask_or_boundary);
  return *this;
}

std::uint16_t RequestWriter::finish() {
  std::byte* const control = ring_ + (next_ & (blocks_ - 1)) * kBlockBytes;
  store_be(control, std::uint32_t{modifier_} << 24 | std::uint32_t{next_} << 8 |
                        static_cast<std::uint32_t>(opcode_));
  store_be(control + 4, qp_number_ << 8 | segments_);
  store_be(control + 8, std::uint32_t{flags_});
  std::memcpy(control + 12, &immediate_, sizeof immediate_);
  const std::uint16_t index = next_;
  next_ = static_cast<std::uint16_t>(next_ + (segments_ + 3) / 4);
  return index;
}

}  // namespace shoal::emulator
