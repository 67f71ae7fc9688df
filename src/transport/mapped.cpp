// SPDX-License-Identifier: Apache-2.0
#include "transport/mapped.hpp"

#include <atomic>

#include "transport/words.hpp"

namespace shoal::transport {
namespace {

void thread_fence(std::memory_order order) {
#pragma GCC diagnostic push
#if defined(__SANITIZE_THREAD__) && !defined(__clang__)
// ThreadSanitizer does not model fences. No test relies on the order that these fences add.
#pragma GCC diagnostic ignored "-Wtsan"
#endif
  std::atomic_thread_fence(order);
#pragma GCC diagnostic pop
}

}  // namespace

void MappedTransport::put(Pe pe, std::size_t offset, const void* source, std::size_t bytes) {
  store(mapping(pe) + offset, source, bytes);
  notify(pe, offset, bytes);
}

void MappedTransport::get(void* target, Pe pe, std::size_t offset, std::size_t bytes) {
  load(target, mapping(pe) + offset, bytes);
}

void MappedTransport::put_strided(Pe pe, std::size_t offset, std::size_t target_stride,
                                  const void* source, std::size_t source_stride,
                                  std::size_t element, std::size_t count) {
  std::byte* const target = mapping(pe) + offset;
  const auto* const from = static_cast<const std::byte*>(source);
  for (std::size_t i = 0; i < count; ++i)
    store(target + i * target_stride, from + i * source_stride, element);
  if (count != 0) notify(pe, offset, (count - 1) * target_stride + element);
}

void MappedTransport::get_strided(void* target, std::size_t target_stride, Pe pe,
                                  std::size_t offset, std::size_t source_stride,
                                  std::size_t element, std::size_t count) {
  const std::byte* const source = mapping(pe) + offset;
  auto* const to = static_cast<std::byte*>(target);
  for (std::size_t i = 0; i < count; ++i)
    load(to + i * target_stride, source + i * source_stride, element);
}

std::uint64_t MappedTransport::atomic(Pe pe, AtomicOp op, std::size_t offset, std::uint64_t operand,
                                      std::uint64_t compare, std::size_t width) {
  const std::uint64_t before = update_word(mapping(pe) + offset, width, op, operand, compare);
  if (op != AtomicOp::fetch) notify(pe, offset, width);
  return before;
}

void MappedTransport::update(Pe pe, AtomicOp op, std::size_t offset, std::uint64_t operand,
                             std::size_t width) {
  std::byte* const word = mapping(pe) + offset;
  if (op == AtomicOp::set) {       // a store, where atomic() exchanges
    store(word, &operand, width);  // the low bytes come first
  } else {
    update_word(word, width, op, operand, 0);
  }
  notify(pe, offset, width);
}

void MappedTransport::signal(Pe pe, std::size_t offset, SignalOp op, std::uint64_t value) {
  update_signal(mapping(pe) + offset, op, value);
  notify(pe, offset, sizeof value);
}

void MappedTransport::fence(Pe) {
  thread_fence(std::memory_order_release);  // between stores; gets are not ordered
}
void MappedTransport::quiet() {
  thread_fence(std::memory_order_seq_cst);
}
void MappedTransport::wake(Pe pe) noexcept {
  if (wait_point_ && mapping(pe) != nullptr) wait_point(pe).notify_all();
}

}  // namespace shoal::transport
