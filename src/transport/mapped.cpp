#include "transport/mapped.hpp"

#include <atomic>
#include <cstring>

namespace shoal::transport {
namespace {

template <typename T>
bool is_aligned(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % sizeof(T) == 0;
}

template <typename T>
void store_word(std::byte* target, const void* source) {
  T value;
  std::memcpy(&value, source, sizeof value);
  std::atomic_ref<T>(*reinterpret_cast<T*>(target)).store(value, std::memory_order_release);
}

template <typename T>
void load_word(void* target, std::byte* source) {
  const T value = std::atomic_ref<T>(*reinterpret_cast<T*>(source)).load(std::memory_order_acquire);
  std::memcpy(target, &value, sizeof value);
}

void copy_in(std::byte* target, const void* source, std::size_t bytes) {
  if (bytes == 8 && is_aligned<std::uint64_t>(target)) return store_word<std::uint64_t>(target, source);
  if (bytes == 4 && is_aligned<std::uint32_t>(target)) return store_word<std::uint32_t>(target, source);
  if (bytes != 0) std::memmove(target, source, bytes);  // a put to the own PE may overlap
}

void copy_out(void* target, std::byte* source, std::size_t bytes) {
  if (bytes == 8 && is_aligned<std::uint64_t>(source)) return load_word<std::uint64_t>(target, source);
  if (bytes == 4 && is_aligned<std::uint32_t>(source)) return load_word<std::uint32_t>(target, source);
  if (bytes != 0) std::memmove(target, source, bytes);
}

template <typename T>
T apply(T& word, AtomicOp op, T operand, T compare) {
  const std::atomic_ref<T> atomic(word);
  constexpr auto order = std::memory_order_acq_rel;
  switch (op) {
    case AtomicOp::fetch:
      return atomic.load(std::memory_order_acquire);
    case AtomicOp::set:
    case AtomicOp::swap:
      return atomic.exchange(operand, order);
    case AtomicOp::add:
      return atomic.fetch_add(operand, order);
    case AtomicOp::bit_and:
      return atomic.fetch_and(operand, order);
    case AtomicOp::bit_or:
      return atomic.fetch_or(operand, order);
    case AtomicOp::bit_xor:
      return atomic.fetch_xor(operand, order);
    case AtomicOp::compare_swap:
      atomic.compare_exchange_strong(compare, operand, order, std::memory_order_acquire);
      return compare;
  }
  return 0;
}

void full_fence() {
#pragma GCC diagnostic push
#if defined(__SANITIZE_THREAD__) && !defined(__clang__)
#pragma GCC diagnostic ignored \
    "-Wtsan"  // ThreadSanitizer ignores fences: it sees less order than there is, and no test relies on it
#endif
  std::atomic_thread_fence(std::memory_order_seq_cst);
#pragma GCC diagnostic pop
}

}  // namespace

void MappedTransport::put(Pe pe, std::size_t offset, const void* source, std::size_t bytes) {
  copy_in(mapping(pe) + offset, source, bytes);
}

void MappedTransport::get(void* target, Pe pe, std::size_t offset, std::size_t bytes) {
  copy_out(target, mapping(pe) + offset, bytes);
}

void MappedTransport::put_nbi(Pe pe, std::size_t offset, const void* source, std::size_t bytes) {
  put(pe, offset, source, bytes);
}

void MappedTransport::get_nbi(void* target, Pe pe, std::size_t offset, std::size_t bytes) {
  get(target, pe, offset, bytes);
}

void MappedTransport::put_strided(Pe pe, std::size_t offset, std::size_t target_stride, const void* source,
                                  std::size_t source_stride, std::size_t element, std::size_t count) {
  std::byte* const target = mapping(pe) + offset;
  const auto* const from = static_cast<const std::byte*>(source);
  for (std::size_t i = 0; i < count; ++i) copy_in(target + i * target_stride, from + i * source_stride, element);
}

void MappedTransport::get_strided(void* target, std::size_t target_stride, Pe pe, std::size_t offset,
                                  std::size_t source_stride, std::size_t element, std::size_t count) {
  std::byte* const source = mapping(pe) + offset;
  auto* const to = static_cast<std::byte*>(target);
  for (std::size_t i = 0; i < count; ++i) copy_out(to + i * target_stride, source + i * source_stride, element);
}

std::uint64_t MappedTransport::atomic(Pe pe, AtomicOp op, std::size_t offset, std::uint64_t operand,
                                      std::uint64_t compare, std::size_t width) {
  std::byte* const address = mapping(pe) + offset;
  if (width == 8) return apply(*reinterpret_cast<std::uint64_t*>(address), op, operand, compare);
  return apply(*reinterpret_cast<std::uint32_t*>(address), op, static_cast<std::uint32_t>(operand),
               static_cast<std::uint32_t>(compare));
}

void MappedTransport::signal(Pe pe, std::size_t offset, SignalOp op, std::uint64_t value) {
  const std::atomic_ref<std::uint64_t> word(*reinterpret_cast<std::uint64_t*>(mapping(pe) + offset));
  if (op == SignalOp::set) {
    word.store(value, std::memory_order_release);
  } else {
    word.fetch_add(value, std::memory_order_release);
  }
}

void MappedTransport::put_signal(Pe pe, std::size_t offset, const void* source, std::size_t bytes,
                                 std::size_t signal_offset, SignalOp op, std::uint64_t value) {
  put(pe, offset, source, bytes);
  signal(pe, signal_offset, op, value);
}

void MappedTransport::fence(Pe) {
  full_fence();
}
void MappedTransport::quiet() {
  full_fence();
}

}  // namespace shoal::transport
