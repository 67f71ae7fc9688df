// SPDX-License-Identifier: Apache-2.0
#include "transport/mapped.hpp"

#include <atomic>
#include <cstring>

#include "transport/words.hpp"

namespace shoal::transport {
namespace {

void copy_in(std::byte* target, const void* source, std::size_t bytes) {
  if (bytes == 8 && is_aligned<std::uint64_t>(target))
    return store_word<std::uint64_t>(target, source);
  if (bytes == 4 && is_aligned<std::uint32_t>(target))
    return store_word<std::uint32_t>(target, source);
  if (bytes != 0) std::memmove(target, source, bytes);  // a put to the own PE may overlap
}

void copy_out(void* target, std::byte* source, std::size_t bytes) {
  if (bytes == 8 && is_aligned<std::uint64_t>(source))
    return load_word<std::uint64_t>(target, source);
  if (bytes == 4 && is_aligned<std::uint32_t>(source))
    return load_word<std::uint32_t>(target, source);
  if (bytes != 0) std::memmove(target, source, bytes);
}

void full_fence() {
#pragma GCC diagnostic push
#if defined(__SANITIZE_THREAD__) && !defined(__clang__)
// ThreadSanitizer does not model fences. No test relies on the order that this one adds.
#pragma GCC diagnostic ignored "-Wtsan"
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

void MappedTransport::put_strided(Pe pe, std::size_t offset, std::size_t target_stride,
                                  const void* source, std::size_t source_stride,
                                  std::size_t element, std::size_t count) {
  std::byte* const target = mapping(pe) + offset;
  const auto* const from = static_cast<const std::byte*>(source);
  for (std::size_t i = 0; i < count; ++i)
    copy_in(target + i * target_stride, from + i * source_stride, element);
}

void MappedTransport::get_strided(void* target, std::size_t target_stride, Pe pe,
                                  std::size_t offset, std::size_t source_stride,
                                  std::size_t element, std::size_t count) {
  std::byte* const source = mapping(pe) + offset;
  auto* const to = static_cast<std::byte*>(target);
  for (std::size_t i = 0; i < count; ++i)
    copy_out(to + i * target_stride, source + i * source_stride, element);
}

std::uint64_t MappedTransport::atomic(Pe pe, AtomicOp op, std::size_t offset, std::uint64_t operand,
                                      std::uint64_t compare, std::size_t width) {
  return update_word(mapping(pe) + offset, width, op, operand, compare);
}

void MappedTransport::signal(Pe pe, std::size_t offset, SignalOp op, std::uint64_t value) {
  update_signal(mapping(pe) + offset, op, value);
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
