// SPDX-License-Identifier: Apache-2.0
// expand.hpp: Group::expand: its arguments, for all backends, and its work on the host.
#pragma once

#include "ep/group/state.hpp"

namespace shoal::ep::detail {

/// Throws Error{invalid_argument} that names the argument, its value and what is allowed.
void check_expand(const GroupState& group, const ExpandOptions& options);
/// The call for arrays in host memory, checked.
void expand_on_host(const ExpandOptions& options);

}  // namespace shoal::ep::detail
