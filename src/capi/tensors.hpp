// SPDX-License-Identifier: Apache-2.0
// tensors.hpp: shoal_tensor to TensorView and back.
#pragma once

#include "capi/guard.hpp"
#include "shoal/tensor.hpp"

namespace shoal::capi {

/// Throws Error{invalid_argument}, naming call and argument, for NULL; for a dtype, rank, shape or
/// device outside its range; for more than 2^63 - 1 bytes; and for data that is NULL although the
/// tensor has elements. Each operation checks the rest itself.
TensorView view_of(const shoal_tensor* tensor, const char* call, const char* name);
/// Like view_of; NULL: undefined.
TensorView optional_view_of(const shoal_tensor* tensor, const char* call, const char* name);

shoal_tensor tensor_of(const TensorView& view);

}  // namespace shoal::capi
