// SPDX-License-Identifier: Apache-2.0
// interfaces.hpp: which network interface the root of a bootstrap listens on.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bootstrap/tcp/socket.hpp"

namespace shoal::bootstrap {

/// One address of one interface.
struct Interface {
  std::string name;
  Address address;
  bool up = true;
  bool loopback = false;

  bool link_local() const;  ///< IPv6 fe80::/10
};

/// A selection: SHOAL_SOCKET_INTERFACE taken apart.
struct InterfacePattern {
  bool exclude = false;
  struct Item {
    std::string name;
    bool exact = false;
  };
  std::vector<Item> items;  ///< empty: no preference
};

/// "eth,=ib0" or "^docker,lo". Throws Error{invalid_argument} stating the form when an item is
/// empty.
InterfacePattern parse_interface_pattern(std::string_view text);

/// The address to use among those of the machine. Pure.
///
/// A list is tried item by item, in its order; without a list, or with one that excludes: networks
/// first, then bridges of containers and virtual machines, then loopback. IPv4 goes before IPv6
/// within one item or rank; a link-local IPv6 address only counts when its interface is listed and
/// has no other. Throws Error{unsupported} listing what exists when nothing fits.
const Interface& choose_interface(std::span<const Interface> interfaces, std::string_view pattern,
                                  std::string_view family);

/// The interfaces of this machine.
std::vector<Interface> list_interfaces();

}  // namespace shoal::bootstrap
