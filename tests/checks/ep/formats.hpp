// SPDX-License-Identifier: Apache-2.0
// formats.hpp: dispatches of normal mode whose rows are encoded as they are sent. Throws on a
// difference.
#pragma once

#include "checks/ep/expert_major.hpp"

namespace shoal::test {

/// Dispatches of bfloat16 rows in all formats that they can have, new and cached, in both layouts
/// (expert-major where the rows fit into the room of rank-major ones). Codes and scales are
/// compared with those of the rows that a plain dispatch receives. Returns the number of layouts.
int check_normal_formats(ep::Group& group, const EpCase& c,
                         const TensorMover& move = host_tensors());
/// Ranks whose formats or global scales differ get Error{mismatch}, and a global scale that is not
/// positive and finite Error{invalid_argument}; the group stays usable.
void check_refused_formats(ep::Group& group, const EpCase& c,
                           const TensorMover& move = host_tensors());

}  // namespace shoal::test
