// SPDX-License-Identifier: Apache-2.0
// unpack.hpp: what Group::unpack copies, for all backends.
#pragma once

#include <vector>

#include <shoal/detail/ep_layouts.hpp>

#include "ep/group/state.hpp"

namespace shoal::ep::detail {

struct ArrayCopy {
  TensorView from, to;  ///< of the same shape and dtype, or `to` has tiles of scales
};

/// The copies that the call asks for. Throws Error{invalid_argument} where `received` lacks the
/// array, or where dtype, shape or device differ.
std::vector<ArrayCopy> unpacked_arrays(const GroupState& group, const AnyDispatched& received,
                                       const UnpackOptions& to);
/// Host memory, one or two dimensions, any strides.
void copy_array(const ArrayCopy& copy);

}  // namespace shoal::ep::detail
