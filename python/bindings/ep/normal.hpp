// SPDX-License-Identifier: Apache-2.0
// ep/normal.hpp: arguments and results of normal mode, shared by its calls and their asynchronous
// forms.
#pragma once

#include <shoal/detail/ep_layouts.hpp>

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "../arrays/arrays.hpp"
#include "group.hpp"

namespace shoal::python {

/// Keyword arguments of dispatch and combine, with what keeps their arrays.
struct NormalOptions {
  ep::detail::AnyDispatchOptions dispatch;
  ep::CombineOptions combine;
  std::optional<DataType> dtype;
  Inputs arrays;
};
NormalOptions dispatch_options_from(std::string_view call, const nb::kwargs& given);
NormalOptions combine_options_from(std::string_view call, const nb::kwargs& given);

/// For refuse_gradient.
inline constexpr const char* kDispatchWithGradient = "shoal.torch.dispatch";
inline constexpr const char* kCombineWithGradient = "shoal.torch.combine";

struct Routing {
  ep::Routing routing;
  Result topk_idx, rank_counts, expert_counts, node_counts;
};

struct Dispatched {
  Result x, scales, topk_idx, topk_weights, source_token, expert_first_row, row_count,
      expert_counts;
  std::vector<std::int64_t> rows_per_source, tokens_per_expert;
  std::int64_t rows = 0;
  ep::Handle handle;
};

struct Combined {
  Result x, topk_weights;
};

/// `library`: of the rows of the call.
Dispatched to_python(const Group& group, const Library* library, ep::detail::AnyDispatched result,
                     Stream stream);
/// `out`: the array that the caller passed for the result, or None.
Combined to_python(const Group& group, const Library* library, ep::Combined result, Stream stream,
                   nb::handle out);

/// The handle of a normal dispatch. Throws Error{invalid_argument} for anything else.
const ep::Handle& handle_from(std::string_view call, nb::handle given);

/// The Routing, or nullptr for a Handle. Throws Error{invalid_argument} for anything else.
const Routing* routing_from(nb::handle layout);

}  // namespace shoal::python
