// SPDX-License-Identifier: Apache-2.0
// backend.hpp: expert parallelism on tensors in GPU memory.
#pragma once

#include "ep/backend.hpp"

namespace shoal::ep::cuda {

/// For groups whose ranks one NVLink domain joins.
std::unique_ptr<detail::Backend> make_backend(detail::GroupState& state);
/// For groups whose memory is on the host (BackendKind::staged); `host` is the host backend.
std::unique_ptr<detail::Backend> make_staged_backend(detail::GroupState& state,
                                                     std::unique_ptr<detail::Backend> host);
/// The same, where a mode that has kernels for ranks that NVLink does not reach uses them, and the
/// other one uses `staged`.
std::unique_ptr<detail::Backend> make_internode_backend(detail::GroupState& state,
                                                        std::unique_ptr<detail::Backend> staged);

}  // namespace shoal::ep::cuda
