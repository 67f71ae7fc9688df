// SPDX-License-Identifier: Apache-2.0
// interfaces.hpp: selects the network interface at which the root of a bootstrap listens.
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

/// The parsed form of SHOAL_SOCKET_INTERFACE.
struct InterfacePattern {
  bool exclude = false;
  struct Item {
    std::string name;
    bool exact = false;
  };
  std::vector<Item> items;  ///< empty: no preference
};

/// Parses "eth,=ib0" or "^docker,lo". Throws Error{invalid_argument} stating the form if an item is
/// empty.
InterfacePattern parse_interface_pattern(std::string_view text);

/// Chooses one of the machine's addresses. Pure.
///
/// A list is tried item by item. Without a list, or with a list of exclusions, the order is:
/// networks, bridges of containers and virtual machines, loopback. Within one item or kind, IPv4
/// precedes IPv6. A link-local IPv6 address is chosen only if its interface is listed and has no
/// other address. Throws Error{unsupported} with the existing interfaces if none fits.
const Interface& choose_interface(std::span<const Interface> interfaces, std::string_view pattern,
                                  std::string_view family);

/// The interfaces of this machine.
std::vector<Interface> list_interfaces();

}  // namespace shoal::bootstrap
