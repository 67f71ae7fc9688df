// SPDX-License-Identifier: Apache-2.0
// backend.hpp: the phases of the host backend as a Backend.
#pragma once

#include "ep/backend.hpp"

namespace shoal::ep::host {

std::unique_ptr<detail::Backend> make_backend(detail::GroupState& state);

}  // namespace shoal::ep::host
