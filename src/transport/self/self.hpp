// SPDX-License-Identifier: Apache-2.0
// self.hpp: a PE's operations on itself.
#pragma once

#include "transport/transport.hpp"

namespace shoal::transport {

std::unique_ptr<Transport> make_self(const Context& context);

}  // namespace shoal::transport
