// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/tcp/interfaces.hpp"

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <tuple>

#include "base/check.hpp"

namespace shoal::bootstrap {
namespace {

std::string_view trim(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

bool matches(const InterfacePattern::Item& item, const Interface& interface) {
  return item.exact ? interface.name == item.name : interface.name.starts_with(item.name);
}

/// 0 for networks, 1 for bridges, 2 for loopback.
int rank_of(const Interface& interface) {
  if (interface.loopback) return 2;
  constexpr std::string_view bridges[] = {"docker", "br-", "virbr", "veth", "cni", "lxc"};
  return std::ranges::any_of(bridges,
                             [&](auto prefix) { return interface.name.starts_with(prefix); })
             ? 1
             : 0;
}

/// Position in the order of preference, best first; -1 if the interface is not allowed.
int preference(const InterfacePattern& pattern, const Interface& interface) {
  const auto item = std::ranges::find_if(
      pattern.items, [&](const auto& entry) { return matches(entry, interface); });
  const bool listed = item != pattern.items.end();
  if (pattern.items.empty() || pattern.exclude)
    return listed || interface.link_local() ? -1 : rank_of(interface);
  return listed ? static_cast<int>(item - pattern.items.begin()) : -1;
}

std::string list_of(std::span<const Interface> interfaces) {
  std::string text;
  for (const auto& interface : interfaces)
    text += fmt::format("{}{} {}{}", text.empty() ? "" : ", ", interface.name,
                        interface.address.host(), interface.up ? "" : " (down)");
  return text.empty() ? "none" : text;
}

}  // namespace

bool Interface::link_local() const {
  return address.family() == AF_INET6 &&
         IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6&>(address.storage).sin6_addr);
}

InterfacePattern parse_interface_pattern(std::string_view text) {
  InterfacePattern pattern;
  std::string_view left = trim(text);
  if (left.empty()) return pattern;
  if (left.front() == '^') {
    pattern.exclude = true;
    left.remove_prefix(1);
  }
  while (true) {
    const std::size_t comma = left.find(',');
    std::string_view item = trim(left.substr(0, comma));
    const bool exact = item.starts_with('=');
    if (exact) item = trim(item.substr(1));
    require(
        !item.empty() && item.find_first_of("^=") == std::string_view::npos, Code::invalid_argument,
        "SHOAL-N142: SHOAL_SOCKET_INTERFACE is \"{}\"; allowed: a comma list of name prefixes, "
        "=name for an exact name, a leading ^ to exclude the whole list, such as \"eth,=ib0\" or "
        "\"^docker,lo\"",
        text);
    pattern.items.push_back({std::string(item), exact});
    if (comma == std::string_view::npos) return pattern;
    left.remove_prefix(comma + 1);
  }
}

const Interface& choose_interface(std::span<const Interface> interfaces, std::string_view pattern,
                                  std::string_view family) {
  const InterfacePattern parsed = parse_interface_pattern(pattern);
  const Interface* best = nullptr;
  std::tuple<int, bool, bool> best_score;
  for (const auto& interface : interfaces) {
    const int wanted = interface.address.family();
    if (!interface.up || (family == "AF_INET" && wanted != AF_INET) ||
        (family == "AF_INET6" && wanted != AF_INET6))
      continue;
    const int place = preference(parsed, interface);
    if (place < 0) continue;
    const std::tuple score(place, interface.link_local(), wanted == AF_INET6);
    if (best == nullptr || score < best_score) {
      best = &interface;
      best_score = score;
    }
  }
  require(best != nullptr, Code::unsupported,
          "SHOAL-N142: no network interface fits \"{}\" with address family {}; there are: {}. "
          "Settings: SHOAL_SOCKET_INTERFACE, SHOAL_SOCKET_FAMILY",
          pattern, family, list_of(interfaces));
  return *best;
}

std::vector<Interface> list_interfaces() {
  ifaddrs* found = nullptr;
  if (getifaddrs(&found) != 0) fail_errno("SHOAL-N145: the network interfaces could not be listed");
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(found, freeifaddrs);
  std::vector<Interface> interfaces;
  for (const ifaddrs* entry = found; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    Interface interface;
    interface.name = entry->ifa_name;
    interface.address.size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    std::memcpy(&interface.address.storage, entry->ifa_addr, interface.address.size);
    interface.up = (entry->ifa_flags & IFF_UP) != 0;
    interface.loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0;
    interfaces.push_back(std::move(interface));
  }
  return interfaces;
}

}  // namespace shoal::bootstrap
