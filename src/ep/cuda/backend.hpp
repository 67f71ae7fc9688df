// SPDX-License-Identifier: Apache-2.0
// backend.hpp: expert parallelism on GPUs: of one NVLink domain, and staged through the host
// beyond.
#pragma once

#include "ep/backend.hpp"

namespace shoal::ep::cuda {

std::unique_ptr<detail::Backend> make_backend(detail::GroupState& state);
/// Tensors in GPU memory over a group whose memory is on the host (BackendKind::staged), with `host`
/// for its backend.
std::unique_ptr<detail::Backend> make_staged_backend(detail::GroupState& state,
                                                     std::unique_ptr<detail::Backend> host);

}  // namespace shoal::ep::cuda
