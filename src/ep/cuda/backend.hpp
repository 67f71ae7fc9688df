// SPDX-License-Identifier: Apache-2.0
// backend.hpp: expert parallelism on tensors in GPU memory.
#pragma once

#include "ep/group/modes.hpp"

namespace shoal::ep::cuda {

/// For groups whose ranks one NVLink domain joins.
std::unique_ptr<detail::Backend> make_backend(detail::GroupState& state);
/// For other groups. A mode that has kernels for ranks that NVLink does not reach uses them; the
/// rows of the other one pass through the host backend (cuda/staged).
std::unique_ptr<detail::Backend> make_internode_backend(detail::GroupState& state);

}  // namespace shoal::ep::cuda
