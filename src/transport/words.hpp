// SPDX-License-Identifier: Apache-2.0
// words.hpp: atomic access to the words of a segment. Every transport that touches a segment with
// the processor uses these functions: a peer that maps it and the target's progress thread then
// agree on each word.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "shoal/operation.hpp"

namespace shoal::transport {

template <typename T>
bool is_aligned(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % sizeof(T) == 0;
}

/// True if `bytes` bytes at `pointer` are an aligned word of 4 or 8 bytes.
inline bool is_word(const void* pointer, std::size_t bytes) {
  return (bytes == 8 && is_aligned<std::uint64_t>(pointer)) ||
         (bytes == 4 && is_aligned<std::uint32_t>(pointer));
}

template <typename T>
void store_word(std::byte* target, const void* source) {
  T value;
  std::memcpy(&value, source, sizeof value);
  std::atomic_ref<T>(*reinterpret_cast<T*>(target)).store(value, std::memory_order_release);
}

template <typename T>
void load_word(void* target, const std::byte* source) {
  T& word = *reinterpret_cast<T*>(const_cast<std::byte*>(source));  // atomic_ref takes no const
  const T value = std::atomic_ref<T>(word).load(std::memory_order_acquire);
  std::memcpy(target, &value, sizeof value);
}

/// Copies `bytes` bytes into a segment. An aligned word is one store, so that no reader sees half
/// of it; other ranges may overlap the source.
inline void store(std::byte* target, const void* source, std::size_t bytes) {
  if (bytes == 8 && is_aligned<std::uint64_t>(target)) {
    store_word<std::uint64_t>(target, source);
  } else if (bytes == 4 && is_aligned<std::uint32_t>(target)) {
    store_word<std::uint32_t>(target, source);
  } else if (bytes != 0) {
    std::memmove(target, source, bytes);
  }
}

/// Copies `bytes` bytes out of a segment. An aligned word is one load.
inline void load(void* target, const std::byte* source, std::size_t bytes) {
  if (bytes == 8 && is_aligned<std::uint64_t>(source)) {
    load_word<std::uint64_t>(target, source);
  } else if (bytes == 4 && is_aligned<std::uint32_t>(source)) {
    load_word<std::uint32_t>(target, source);
  } else if (bytes != 0) {
    std::memmove(target, source, bytes);
  }
}

/// Applies `op` to the word atomically. Returns the value before.
template <typename T>
T update_word(T& word, AtomicOp op, T operand, T compare) {
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

/// Atomic on the word of `width` (4 or 8) bytes at `address`. Returns the value before.
inline std::uint64_t update_word(std::byte* address, std::size_t width, AtomicOp op,
                                 std::uint64_t operand, std::uint64_t compare) {
  if (width == 8)
    return update_word(*reinterpret_cast<std::uint64_t*>(address), op, operand, compare);
  return update_word(*reinterpret_cast<std::uint32_t*>(address), op,
                     static_cast<std::uint32_t>(operand), static_cast<std::uint32_t>(compare));
}

/// Updates a signal word. A PE that acquires the new value sees all writes before this call.
inline void update_signal(std::byte* address, SignalOp op, std::uint64_t value) {
  const std::atomic_ref<std::uint64_t> word(*reinterpret_cast<std::uint64_t*>(address));
  if (op == SignalOp::set) {
    word.store(value, std::memory_order_release);
  } else {
    word.fetch_add(value, std::memory_order_release);
  }
}

}  // namespace shoal::transport
