// SPDX-License-Identifier: Apache-2.0
#include "transport/message/apply.hpp"

namespace shoal::transport::message {
namespace {

bool fits(std::uint64_t offset, std::uint64_t length, std::size_t segment_bytes) noexcept {
  return offset <= segment_bytes && length <= segment_bytes - offset;
}

bool is_word_inside(std::uint64_t offset, std::uint64_t width, std::size_t segment_bytes) noexcept {
  return (width == 4 || width == 8) && offset % width == 0 && fits(offset, width, segment_bytes);
}

bool are_elements_inside(const Message& request, std::size_t most_bytes,
                         std::size_t segment_bytes) noexcept {
  const Message::Elements& elements = request.elements;
  if (elements.bytes == 0 || elements.count == 0) return false;
  if (std::uint64_t{elements.bytes} * elements.count > most_bytes) return false;
  const std::uint64_t gaps = elements.count - 1;
  if (gaps != 0 && elements.stride > segment_bytes / gaps) return false;
  return fits(request.offset, gaps * elements.stride + elements.bytes, segment_bytes);
}

}  // namespace

bool is_valid(const Message& request, std::size_t payload_bytes, std::size_t segment_bytes,
              std::size_t reply_bytes) noexcept {
  if (request.has_signal() && !is_word_inside(request.signal_offset, 8, segment_bytes))
    return false;
  switch (request.kind) {
    case Kind::nothing:
      return true;
    case Kind::store:
    case Kind::fetch:
    case Kind::update:
      return request.op <= AtomicOp::compare_swap &&
             is_word_inside(request.offset, request.width, segment_bytes);
    case Kind::put:
      return are_elements_inside(request, payload_bytes, segment_bytes);
    case Kind::get:
      return are_elements_inside(request, reply_bytes, segment_bytes);
    default:
      return false;
  }
}

std::uint64_t apply(const Message& request, const std::byte* payload, std::byte* segment) noexcept {
  std::byte* const target = segment + request.offset;
  std::uint64_t before = 0;
  switch (request.kind) {
    case Kind::store:
      store(target, &request.word.operand, request.width);
      break;
    case Kind::put: {
      const Message::Elements& elements = request.elements;
      for (std::size_t i = 0; i < elements.count; ++i)
        store(target + i * elements.stride, payload + i * elements.bytes, elements.bytes);
      break;
    }
    case Kind::fetch:
    case Kind::update:
      before = update_word(target, request.width, request.op, request.word.operand,
                           request.word.compare);
      break;
    default:
      break;
  }
  if (request.has_signal())
    update_signal(segment + request.signal_offset,
                  (request.flags & flag::signal_set) != 0 ? SignalOp::set : SignalOp::add,
                  request.signal_value);
  return before;
}

}  // namespace shoal::transport::message
