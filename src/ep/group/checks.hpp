// SPDX-License-Identifier: Apache-2.0
// checks.hpp: argument checks of Group's calls. Each throws Error{invalid_argument} that names the
// argument, its value and the allowed values.
#pragma once

#include "ep/group/state.hpp"
#include "shoal/detail/ep_layouts.hpp"

namespace shoal::ep::detail {

/// Requires a contiguous tensor of the given shape and of one of the dtypes, on the device of the
/// group's memory.
void check_tensor(const GroupState& group, const char* call, const char* name,
                  const ConstTensorView& tensor, std::initializer_list<std::int64_t> shape,
                  std::initializer_list<DataType> dtypes);

/// Requires `tiles` to be room for the scales `words` of `rows` rows in tiles (ScaleLayout).
void check_tiles(const GroupState& group, const char* call, const char* name,
                 const ConstTensorView& tiles, const ConstTensorView& words, std::int64_t rows);

/// Requires rows in GPU memory to start at a multiple of 16 bytes (aligned_rows.hpp).
void check_row_address(const char* call, const char* name, const ConstTensorView& rows);

/// The arrays of a route of so many tokens.
void check_route_options(const GroupState& group, std::int64_t tokens, const RouteOptions& options);

/// Requires a routing that dispatch can use: made by a group of the same ranks, experts, top_k and
/// kind of backend, with at most max_tokens tokens. Reads only the routing's state; its public
/// fields are copies for the caller.
void check_routing(const GroupState& group, const Routing& routing);
void check_launch(const GroupState& group, const char* call, const Launch& launch);
/// `cached`, here and below: the handle whose layout is reused, if any.
void check_rows(const GroupState& group, const ConstTensorView& x, std::int64_t tokens,
                const AnyDispatchOptions& options, const HandleState* cached = nullptr);
void check_dispatch_options(const GroupState& group, const ConstTensorView& x,
                            const AnyDispatchOptions& options, const HandleState* cached = nullptr);
void check_combine(const GroupState& group, const ConstTensorView& y, const HandleState& handle,
                   const CombineOptions& options);
/// Requires room for the rows of a combine that encodes `rows` rows of y, or sums of them: `room`
/// bytes, as for copies.
void check_room_for_encoded(const GroupState& group, Quantize quantize, const ConstTensorView& y,
                            std::int64_t rows, std::size_t room);
void check_low_latency_mode(const GroupState& group, const char* call);
/// The values of global_scale, where the host can read them.
void check_global_scale(const char* call, const ConstTensorView& given);
void check_low_latency_dispatch(const GroupState& group, const ConstTensorView& x,
                                const ConstTensorView& topk_idx,
                                const LowLatencyDispatchOptions& options);
void check_low_latency_combine(const GroupState& group, const ConstTensorView& y,
                               const ConstTensorView& topk_idx, const ConstTensorView& weights,
                               const LowLatencyHandleState* handle,
                               const LowLatencyCombineOptions& options);

/// Throws Error{exhausted}: the receive area of a PE has no room for a result of up to `rows` rows.
[[noreturn]] void fail_no_room(const GroupState& group, Pe pe, std::int64_t rows);

}  // namespace shoal::ep::detail
