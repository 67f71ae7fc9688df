// SPDX-License-Identifier: Apache-2.0
// caller_arrays.hpp: the arrays that a caller passes to the calls of normal mode, to be filled
// (RouteOptions, UnpackOptions, CombineOptions::out and out_weights) or read
// (CombineOptions::topk_idx and topk_rows), on any backend, against the naive reference of
// case.hpp. Arrays without elements have no data. Every difference throws.
#pragma once

#include <vector>

#include "checks/ep/expert_major.hpp"

namespace shoal::test {

/// options_for(c), with room for the scales that check_unpack sends.
ep::GroupOptions caller_array_options(const EpCase& c);

/// Ranks without tokens, ranks without rows, and ranks with neither.
std::vector<EpCase> caller_array_cases(std::int32_t ranks);

/// Every subset of the arrays of RouteOptions.
void check_route_arrays(ep::Group& group, const EpCase& c, const TensorMover& tensors);

/// UnpackOptions: each array alone and all together, in memory of several strides, for rank-major
/// and expert-major results, with exact sizes, worst_case_rows and a cached handle.
void check_unpack(ep::Group& group, const EpCase& c, const TensorMover& tensors);

/// DispatchOptions::all_weights of a new and of a cached dispatch. The weights return to their
/// tokens by a combine with CombineOptions::topk_idx.
void check_all_weights(ep::Group& group, const EpCase& c, const TensorMover& tensors);

/// CombineOptions::topk_idx, topk_rows, weights, out and out_weights, in every combination.
void check_combine_arrays(ep::Group& group, const EpCase& c, const TensorMover& tensors);

/// topk_rows of only -1 with a y that has no rows and no data: sums and their weights are 0, also
/// where other values were staged before.
void check_combine_without_rows(ep::Group& group, const EpCase& c, const TensorMover& tensors);

/// topk_rows with a row that y does not have, on GPUs: it is reported once and counts as -1.
void check_row_outside(ep::Group& group, const EpCase& c, const TensorMover& tensors);

/// Refused arrays of all these calls: wrong shapes, dtypes, strides and devices, no data, fields
/// that the result lacks. No refused call writes to an array. Every rank must have tokens and rows.
void check_refused_arrays(ep::Group& group, const EpCase& c, const TensorMover& tensors);

}  // namespace shoal::test
