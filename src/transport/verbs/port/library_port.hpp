// SPDX-License-Identifier: Apache-2.0
// library_port.hpp: a port whose queues libibverbs creates and drives.
#pragma once

#include "transport/verbs/port/port.hpp"

namespace shoal::transport::verbs {

/// Makes a completion queue for `completions` entries, or as many as the device has. Throws
/// Error{unsupported}.
std::unique_ptr<Port> open_library_port(const std::shared_ptr<const Library>& library,
                                        const PortOffer& offer, const Settings& settings,
                                        std::size_t completions);

}  // namespace shoal::transport::verbs
