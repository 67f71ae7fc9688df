// SPDX-License-Identifier: Apache-2.0
#include "topology/machine.hpp"

#include <algorithm>
#include <charconv>
#include <tuple>

#include "base/check.hpp"

namespace shoal::topology {
namespace {

/// A hexadecimal field of at most `most`; -1 if it is malformed.
std::int64_t hex(std::string_view text, std::int64_t most) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  const bool good =
      error == std::errc{} && end == text.data() + text.size() && value >= 0 && value <= most;
  return good ? value : -1;
}

}  // namespace

std::string_view name_of(Distance distance) noexcept {
  constexpr std::string_view names[] = {"PIX", "PXB", "PHB", "NODE", "SYS"};
  return names[static_cast<std::size_t>(distance)];
}

std::string Nic::label() const {
  return kind == Kind::rdma ? fmt::format("{}:{}", name, port) : name;
}

Distance distance(const Location& a, const Location& b) noexcept {
  const std::size_t shorter = std::min(a.path.size(), b.path.size());
  std::size_t common = 0;
  while (common < shorter && a.path[common] == b.path[common]) ++common;
  if (common == 0) return a.numa >= 0 && a.numa == b.numa ? Distance::node : Distance::sys;
  if (common == shorter && a.path.size() == b.path.size()) return Distance::pix;  // the same device
  if (common == 1) return Distance::phb;
  // Below the shared bridge, a device has at most its port of one switch; more is a second switch.
  return std::max(a.path.size(), b.path.size()) - common <= 2 ? Distance::pix : Distance::pxb;
}

std::string normal_pci_address(std::string_view text) {
  const std::size_t dot = text.rfind('.');
  const std::size_t colon = text.rfind(':', dot);
  const std::size_t first =
      colon == std::string_view::npos || colon == 0 ? colon : text.rfind(':', colon - 1);
  if (dot != std::string_view::npos && colon != std::string_view::npos && colon > 0) {
    const bool has_domain = first != std::string_view::npos;
    const std::size_t bus_start = has_domain ? first + 1 : 0;
    const std::int64_t domain = has_domain ? hex(text.substr(0, first), 0xffffffff) : 0;
    const std::int64_t bus = hex(text.substr(bus_start, colon - bus_start), 0xff);
    const std::int64_t device = hex(text.substr(colon + 1, dot - colon - 1), 0x1f);
    const std::int64_t function = hex(text.substr(dot + 1), 7);
    if (domain >= 0 && bus >= 0 && device >= 0 && function >= 0)
      return fmt::format("{:04x}:{:02x}:{:02x}.{:x}", domain, bus, device, function);
  }
  fail(Code::invalid_argument,
       "SHOAL-N226: \"{}\" is no PCI address; allowed: domain:bus:device.function, such as "
       "0000:19:00.0",
       text);
}

void put_in_order(Machine& machine) {
  if (machine.numa_nodes == 1) {
    for (Gpu& gpu : machine.gpus) gpu.at.numa = 0;
    for (Nic& nic : machine.nics) nic.at.numa = 0;
  }
  std::ranges::sort(machine.gpus, {}, [](const Gpu& gpu) { return gpu.at.pci(); });
  std::ranges::sort(machine.nics, {}, [](const Nic& nic) {
    return std::tuple(nic.kind, nic.at.pci(), nic.name.size(), std::string_view(nic.name),
                      nic.port);
  });
}

}  // namespace shoal::topology
