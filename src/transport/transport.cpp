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
