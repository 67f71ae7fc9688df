// backend.hpp: expert parallelism on GPUs of one NVLink domain.
#pragma once

#include "ep/backend.hpp"

namespace shoal::ep::cuda {

std::unique_ptr<detail::Backend> make_backend(detail::GroupState& state);

}  // namespace shoal::ep::cuda
