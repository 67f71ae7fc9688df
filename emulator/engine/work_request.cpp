// SPDX-License-Identifier: Apache-2.0
#include "engine/work_request.hpp"

#include <algorithm>
#include <array>

#include "engine/big_endian.hpp"

namespace shoal::emulator {
namespace {

/// Reads the segments of one request across the end of the ring.
class Segments {
 public:
  Segments(const SendRing& ring, std::uint16_t index, std::uint32_t count)
      : ring_(ring),
        first_(static_cast<std::size_t>(index & (ring.blocks - 1)) * kBlockBytes),
        count_(count) {}

  std::uint32_t left() const { return count_ - next_; }
  bool take(std::array<std::byte, kSegmentBytes>& segment) {
    if (left() == 0) return false;
    const std::size_t ring_bytes = static_cast<std::size_t>(ring_.blocks) * kBlockBytes;
    const std::size_t at = (first_ + std::size_t{next_++} * kSegmentBytes) % ring_bytes;
    std::copy_n(ring_.memory + at, kSegmentBytes, segment.begin());
    return true;
  }

 private:
  SendRing ring_;
  std::size_t first_;
  std::uint32_t count_, next_ = 0;
};

using Segment = std::array<std::byte, kSegmentBytes>;

bool decode_remote(Segments& segments, WorkRequest& request) {
  Segment segment;
  if (!segments.take(segment)) return false;
  request.remote_address = load_be<std::uint64_t>(segment.data());
  request.remote_key = load_be<std::uint32_t>(segment.data() + 8);
  return true;
}

bool decode_masked_four_bytes(const Segment& segment, WorkRequest& request) {
  AtomicOperands& atomic = request.atomic;
  const auto word = [&](int i) { return load_be<std::uint32_t>(segment.data() + 4 * i); };
  atomic.size = 4;
  atomic.swap_or_add = word(0);
  if (request.opcode == Opcode::masked_fetch_add) {
    atomic.compare_mask_or_boundary = word(1);
    return true;
  }
  atomic.compare = word(1);
  atomic.swap_mask = word(2);
  atomic.compare_mask_or_boundary = word(3);
  return true;
}

bool decode_atomic(Segments& segments, std::uint8_t modifier, WorkRequest& request) {
  Segment segment;
  AtomicOperands& atomic = request.atomic;
  atomic.opcode = request.opcode;
  if (!segments.take(segment)) return false;
  const bool masked =
      request.opcode == Opcode::masked_compare_swap || request.opcode == Opcode::masked_fetch_add;
  constexpr std::uint8_t kFourBytes = 0x08, kEightBytes = 0x09;
  if (masked && modifier == kFourBytes) return decode_masked_four_bytes(segment, request);
  if (masked && modifier != kEightBytes) return false;
  atomic.size = 8;
  atomic.swap_or_add = load_be<std::uint64_t>(segment.data());
  const auto second = load_be<std::uint64_t>(segment.data() + 8);
  if (request.opcode == Opcode::masked_fetch_add)
    atomic.compare_mask_or_boundary = second;
  else
    atomic.compare = second;
  if (request.opcode != Opcode::masked_compare_swap) return true;
  if (!segments.take(segment)) return false;
  atomic.swap_mask = load_be<std::uint64_t>(segment.data());
  atomic.compare_mask_or_boundary = load_be<std::uint64_t>(segment.data() + 8);
  return true;
}

/// The inline bytes follow the length word of `first` and continue in the next segments.
bool decode_inline(Segments& segments, const Segment& first, WorkRequest& request) {
  const std::uint32_t length = load_be<std::uint32_t>(first.data()) & ~kInlineFlag;
  std::vector<std::byte>& bytes = request.inline_data;
  bytes.assign(first.begin() + 4, first.end());
  Segment segment;
  while (bytes.size() < length && segments.take(segment))
    bytes.insert(bytes.end(), segment.begin(), segment.end());
  if (bytes.size() < length || segments.left() != 0) return false;
  bytes.resize(length);
  return true;
}

bool decode_data(Segments& segments, WorkRequest& request) {
  Segment segment;
  while (segments.take(segment)) {
    const auto length = load_be<std::uint32_t>(segment.data());
    if ((length & kInlineFlag) != 0)
      return request.data.empty() && !is_atomic(request.opcode) && request.opcode != Opcode::read &&
             decode_inline(segments, segment, request);
    request.data.push_back({.address = load_be<std::uint64_t>(segment.data() + 8),
                            .length = length,
                            .key = load_be<std::uint32_t>(segment.data() + 4)});
  }
  return true;
}

bool is_known(Opcode opcode) {
  return opcode == Opcode::nop || is_send(opcode) || is_write(opcode) || opcode == Opcode::read ||
         is_atomic(opcode);
}

bool decode_body(Segments& segments, std::uint8_t modifier, WorkRequest& request) {
  if (request.opcode == Opcode::nop) return true;
  if (!is_send(request.opcode) && !decode_remote(segments, request)) return false;
  if (is_atomic(request.opcode) && !decode_atomic(segments, modifier, request)) return false;
  if (!decode_data(segments, request)) return false;
  if (!is_atomic(request.opcode)) return true;
  return request.data.size() == 1 && request.data[0].length == request.atomic.size;
}

}  // namespace

std::uint64_t WorkRequest::length() const {
  if (is_atomic(opcode)) return atomic.size;
  std::uint64_t bytes = inline_data.size();
  for (const DataSegment& segment : data) bytes += segment.length;
  return bytes;
}

std::uint32_t blocks_at(const SendRing& ring, std::uint16_t index) {
  const std::byte* const control = ring.memory + (index & (ring.blocks - 1)) * kBlockBytes;
  const std::uint32_t segments = load_be<std::uint32_t>(control + 4) & 0x3f;
  return std::max(1U, (segments + 3) / 4);
}

Syndrome decode(const SendRing& ring, std::uint32_t qp_number, std::uint16_t index,
                WorkRequest& request) {
  request = {};
  request.index = index;
  request.blocks = blocks_at(ring, index);
  const std::byte* const control = ring.memory + (index & (ring.blocks - 1)) * kBlockBytes;
  const auto first = load_be<std::uint32_t>(control), second = load_be<std::uint32_t>(control + 4);
  const auto flags = static_cast<std::uint8_t>(control[11]);
  Segments segments(ring, index, second & 0x3f);
  request.opcode = static_cast<Opcode>(first & 0xff);
  request.signalled = (flags & ControlFlags::completion_always) != 0;
  request.solicited = (flags & ControlFlags::solicited) != 0;
  request.fenced = (flags & ControlFlags::fence_mask) != 0;
  std::copy_n(control + 12, 4, reinterpret_cast<std::byte*>(&request.immediate));
  Segment skipped;
  const bool good = second >> 8 == qp_number && (first >> 8 & 0xffff) == index &&
                    request.blocks <= ring.blocks && request.blocks <= 16 &&
                    segments.take(skipped) && is_known(request.opcode) &&
                    decode_body(segments, static_cast<std::uint8_t>(first >> 24), request);
  if (good) return Syndrome::none;
  const std::uint32_t blocks = std::min(request.blocks, 16U);
  request = {};
  request.index = index;
  request.blocks = blocks;
  return Syndrome::local_qp_operation;
}

std::vector<DataSegment> decode_receive(const std::byte* request, std::size_t stride) {
  std::vector<DataSegment> data;
  for (std::size_t at = 0; at + kSegmentBytes <= stride; at += kSegmentBytes) {
    const DataSegment segment{.address = load_be<std::uint64_t>(request + at + 8),
                              .length = load_be<std::uint32_t>(request + at),
                              .key = load_be<std::uint32_t>(request + at + 4)};
    if (segment.key == kEndOfListKey) break;
    data.push_back(segment);
  }
  return data;
}

}  // namespace shoal::emulator
