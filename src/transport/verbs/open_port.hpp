// SPDX-License-Identifier: Apache-2.0
// open_port.hpp: the choice of the interface that makes the queues of a port.
#pragma once

#include "transport/verbs/devx/port.hpp"
#include "transport/verbs/port/library_port.hpp"

namespace shoal::transport::verbs {

/// Opens a port by SHOAL_VERBS_INTERFACE. Throws Error{unsupported}.
inline std::unique_ptr<Port> open_port(const std::shared_ptr<const Library>& library,
                                       const PortOffer& offer, const Settings& settings,
                                       std::size_t completions) {
  if (settings.verbs_interface == "devx")
    return std::make_unique<devx::CommandPort>(library, offer, settings, completions);
  return open_library_port(library, offer, settings, completions);
}

}  // namespace shoal::transport::verbs
