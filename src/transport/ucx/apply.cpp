// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/apply.hpp"

#include <cstring>

#include "transport/words.hpp"

namespace shoal::transport::ucx {
namespace {

bool fits(std::uint64_t offset, std::uint64_t length, std::size_t bytes) {
  return offset <= bytes && length <= bytes - offset;
}

bool is_word_inside(std::uint64_t offset, std::uint64_t width, std::size_t bytes) {
  return (width == 4 || width == 8) && offset % width == 0 && fits(offset, width, bytes);
}

bool are_elements_inside(const Header& message, std::size_t bytes) {
  const std::uint64_t packed = std::uint64_t{message.element} * message.count;
  if (packed > kPayloadBytes) return false;
  if (packed == 0) return message.count <= kPayloadBytes;
  const std::uint64_t gaps = message.count - 1;
  if (gaps != 0 && message.stride > bytes / gaps) return false;
  return fits(message.offset, gaps * message.stride + message.element, bytes);
}

}  // namespace

bool is_inside(const Header& message, std::size_t bytes) {
  switch (message.kind) {
    case Kind::put:
      return are_elements_inside(message, bytes) &&
             message.payload == message.element * message.count &&
             (!message.then_signal || is_word_inside(message.signal_offset, 8, bytes));
    case Kind::get:
      return are_elements_inside(message, bytes);
    case Kind::atomic:
      return is_word_inside(message.offset, message.width, bytes);
    case Kind::signal:
      return is_word_inside(message.signal_offset, 8, bytes);
    default:
      return true;
  }
}

void store(std::byte* symmetric, const void* source, std::size_t bytes) {
  if (!is_word(symmetric, bytes)) {
    std::memcpy(symmetric, source, bytes);
  } else if (bytes == 8) {
    store_word<std::uint64_t>(symmetric, source);
  } else {
    store_word<std::uint32_t>(symmetric, source);
  }
}

void load(void* target, std::byte* symmetric, std::size_t bytes) {
  if (!is_word(symmetric, bytes)) {
    std::memcpy(target, symmetric, bytes);
  } else if (bytes == 8) {
    load_word<std::uint64_t>(target, symmetric);
  } else {
    load_word<std::uint32_t>(target, symmetric);
  }
}

void apply_put(const Header& message, const std::byte* payload, std::byte* segment) {
  for (std::size_t i = 0; i < message.count; ++i)
    store(segment + message.offset + i * message.stride, payload + i * message.element,
          message.element);
}

void gather(const Header& message, std::byte* segment, std::byte* packed) {
  for (std::size_t i = 0; i < message.count; ++i)
    load(packed + i * message.element, segment + message.offset + i * message.stride,
         message.element);
}

void apply_signal(const Header& message, std::byte* segment) {
  update_signal(segment + message.signal_offset, message.signal, message.operand);
}

std::uint64_t apply_atomic(const Header& message, std::byte* segment) {
  return update_word(segment + message.offset, message.width, message.atomic, message.operand,
                     message.compare);
}

}  // namespace shoal::transport::ucx
