#include "transport/ucx/apply.hpp"

#include <atomic>
#include <cstring>

namespace shoal::transport::ucx {
namespace {

template <typename T>
bool is_word(const std::byte* symmetric, std::size_t bytes) {
  return bytes == sizeof(T) && reinterpret_cast<std::uintptr_t>(symmetric) % sizeof(T) == 0;
}

template <typename T>
std::atomic_ref<T> word(std::byte* symmetric) {
  return std::atomic_ref<T>(*reinterpret_cast<T*>(symmetric));
}

template <typename T>
void store_word(std::byte* symmetric, const void* source) {
  T value;
  std::memcpy(&value, source, sizeof value);
  word<T>(symmetric).store(value, std::memory_order_release);
}

template <typename T>
void load_word(void* target, std::byte* symmetric) {
  const T value = word<T>(symmetric).load(std::memory_order_acquire);
  std::memcpy(target, &value, sizeof value);
}

template <typename T>
T update(std::atomic_ref<T> at, AtomicOp op, T operand, T compare) {
  constexpr auto order = std::memory_order_acq_rel;
  switch (op) {
    case AtomicOp::fetch:
      return at.load(std::memory_order_acquire);
    case AtomicOp::set:
    case AtomicOp::swap:
      return at.exchange(operand, order);
    case AtomicOp::add:
      return at.fetch_add(operand, order);
    case AtomicOp::bit_and:
      return at.fetch_and(operand, order);
    case AtomicOp::bit_or:
      return at.fetch_or(operand, order);
    case AtomicOp::bit_xor:
      return at.fetch_xor(operand, order);
    case AtomicOp::compare_swap:
      at.compare_exchange_strong(compare, operand, order, std::memory_order_acquire);
      return compare;
  }
  return 0;
}

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
      return are_elements_inside(message, bytes) && message.payload == message.element * message.count &&
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
  if (is_word<std::uint64_t>(symmetric, bytes)) return store_word<std::uint64_t>(symmetric, source);
  if (is_word<std::uint32_t>(symmetric, bytes)) return store_word<std::uint32_t>(symmetric, source);
  if (bytes != 0) std::memcpy(symmetric, source, bytes);
}

void load(void* target, std::byte* symmetric, std::size_t bytes) {
  if (is_word<std::uint64_t>(symmetric, bytes)) return load_word<std::uint64_t>(target, symmetric);
  if (is_word<std::uint32_t>(symmetric, bytes)) return load_word<std::uint32_t>(target, symmetric);
  if (bytes != 0) std::memcpy(target, symmetric, bytes);
}

void apply_put(const Header& message, const std::byte* payload, std::byte* segment) {
  for (std::size_t i = 0; i < message.count; ++i)
    store(segment + message.offset + i * message.stride, payload + i * message.element, message.element);
}

void gather(const Header& message, std::byte* segment, std::byte* packed) {
  for (std::size_t i = 0; i < message.count; ++i)
    load(packed + i * message.element, segment + message.offset + i * message.stride, message.element);
}

void apply_signal(const Header& message, std::byte* segment) {
  const auto at = word<std::uint64_t>(segment + message.signal_offset);
  if (message.signal == SignalOp::set) {
    at.store(message.operand, std::memory_order_release);
  } else {
    at.fetch_add(message.operand, std::memory_order_release);
  }
}

std::uint64_t apply_atomic(const Header& message, std::byte* segment) {
  std::byte* const at = segment + message.offset;
  if (message.width == 8) return update(word<std::uint64_t>(at), message.atomic, message.operand, message.compare);
  return update(word<std::uint32_t>(at), message.atomic, static_cast<std::uint32_t>(message.operand),
                static_cast<std::uint32_t>(message.compare));
}

}  // namespace shoal::transport::ucx
