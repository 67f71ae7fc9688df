// SPDX-License-Identifier: Apache-2.0
// Context, and the optional operations of Transport in terms of the others.
#include "transport/transport.hpp"

namespace shoal::transport {

bool Context::loopback_reaches_wanted() const noexcept {
  const auto& networks = network_of.empty() ? host_of : network_of;
  const std::int32_t mine = networks[static_cast<std::size_t>(my_pe)];
  for (std::size_t pe = 0; pe < wanted.size(); ++pe)
    if (wanted[pe] && networks[pe] != mine) return false;
  return true;
}

void Transport::put_nbi(Pe pe, std::size_t offset, const void* source, std::size_t bytes) {
  put(pe, offset, source, bytes);
}

void Transport::get_nbi(void* target, Pe pe, std::size_t offset, std::size_t bytes) {
  get(target, pe, offset, bytes);
}

void Transport::put_strided(Pe pe, std::size_t offset, std::size_t target_stride,
                            const void* source, std::size_t source_stride, std::size_t element,
                            std::size_t count) {
  const auto* const from = static_cast<const std::byte*>(source);
  for (std::size_t i = 0; i < count; ++i)
    put(pe, offset + i * target_stride, from + i * source_stride, element);
}

void Transport::get_strided(void* target, std::size_t target_stride, Pe pe, std::size_t offset,
                            std::size_t source_stride, std::size_t element, std::size_t count) {
  auto* const to = static_cast<std::byte*>(target);
  for (std::size_t i = 0; i < count; ++i)
    get(to + i * target_stride, pe, offset + i * source_stride, element);
}

void Transport::raise_flag(Pe pe, std::size_t offset, SignalOp op, std::uint64_t value) {
  signal(pe, offset, op, value);
}

void Transport::put_signal(Pe pe, std::size_t offset, const void* source, std::size_t bytes,
                           std::size_t signal_offset, SignalOp op, std::uint64_t value) {
  put(pe, offset, source, bytes);
  signal(pe, signal_offset, op, value);
}

void Transport::update(Pe pe, AtomicOp op, std::size_t offset, std::uint64_t operand,
                       std::size_t width) {
  atomic(pe, op, offset, operand, 0, width);
}

void Transport::atomic_nbi(Pe pe, AtomicOp op, std::size_t offset, std::uint64_t operand,
                           std::uint64_t compare, std::size_t width, std::uint64_t* before) {
  *before = atomic(pe, op, offset, operand, compare, width);
}

bool Transport::reached(Pe /*pe*/, Point& /*point*/) {
  quiet();
  return true;
}

std::string describe(Capabilities capabilities) {
  static constexpr struct {
    Capabilities bit;
    std::string_view name;
  } names[] = {{capability::load_store, "load-store"},
               {capability::put, "put"},
               {capability::get, "get"},
               {capability::atomics, "atomics"},
               {capability::signals, "signals"}};
  std::string text;
  for (const auto& [bit, name] : names) {
    if ((capabilities & bit) == 0) continue;
    if (!text.empty()) text += ' ';
    text += name;
  }
  return text.empty() ? "nothing" : text;
}

}  // namespace shoal::transport
