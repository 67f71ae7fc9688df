// SPDX-License-Identifier: Apache-2.0
// backend.hpp: expert parallelism on the host.
#pragma once

#include "ep/group/modes.hpp"

namespace shoal::ep::host {

/// `default_threads`: threads of the backend when neither GroupOptions.threads nor SHOAL_EP_THREADS
/// is set.
std::unique_ptr<detail::Backend> make_backend(detail::GroupState& state,
                                              std::int32_t default_threads);

}  // namespace shoal::ep::host
