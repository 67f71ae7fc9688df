// SPDX-License-Identifier: Apache-2.0
// expand.hpp: the arguments of Group::expand, for all backends.
#pragma once

#include "ep/group/state.hpp"

namespace shoal::ep::detail {

/// Throws Error{invalid_argument} that names the argument, its value and what is allowed.
void check_expand(const GroupState& group, const ExpandOptions& options);

}  // namespace shoal::ep::detail
