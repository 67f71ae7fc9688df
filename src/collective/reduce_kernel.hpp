// SPDX-License-Identifier: Apache-2.0
// reduce_kernel.hpp: the arithmetic of reductions, without communication.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "collective/elementwise.hpp"

namespace shoal::collective {

std::string_view name_of(ReduceOp op) noexcept;

/// True if `op` is defined for `dtype`: int32, int64, float32, float64, bfloat16, float16; bit
/// operations on integers only.
bool supports(DataType dtype, ReduceOp op) noexcept;

/// The kernel of `op` for `dtype`; nullptr where it is not defined.
ElementKernel kernel_of(DataType dtype, ReduceOp op);

/// target[i] = sources[0][i] op sources[1][i] op ..., from left to right, for i < count. All arrays
/// are aligned to the element size; `target` may be one of the sources. Integers wrap around.
/// bfloat16 and float16 are accumulated in float32 and rounded once. Floating-point min and max are
/// NaN where an operand is. Requires supports(dtype, op) and at least one source.
void reduce_elements(DataType dtype, ReduceOp op, void* target,
                     std::span<const void* const> sources, std::size_t count);

}  // namespace shoal::collective
