// SPDX-License-Identifier: Apache-2.0
// ep/options.hpp: keyword arguments of Python as the option structs of shoal::ep.
#pragma once

#include <nanobind/nanobind.h>

#include <string_view>

#include "../arrays/arrays.hpp"
#include "shoal/ep/group.hpp"

namespace shoal::python {

class Group;

/// The options of Group and size_hint. Throws TypeError for an unknown name,
/// Error{invalid_argument} for a value of the wrong type.
ep::GroupOptions group_options_from(std::string_view call, const nb::kwargs& given);
/// The same options as a dict.
nb::dict to_dict(const ep::GroupOptions& options);

/// "host" or "cuda". Throws Error{invalid_argument} for other values.
DeviceKind heap_from(std::string_view call, nb::handle given);

/// "none", "fp8", "fp8_power_of_two", "fp8_ue8m0", "mxfp8" or "nvfp4". Throws
/// Error{invalid_argument} for others.
ep::Quantize quantize_from(std::string_view call, nb::handle given);
/// "automatic", "rows", "columns" or "tiles". Likewise.
ep::ScaleLayout scale_layout_from(std::string_view call, nb::handle given);

/// Sets what stream=, after=, done= or sms= of a call gives. Streams and events are numbers or
/// objects of torch. Throws Error{invalid_argument} for an event that has no cudaEvent_t yet and
/// for values of other types, TypeError for other names.
void read_launch(std::string_view call, std::string_view name, nb::handle value,
                 ep::Launch& launch);
ep::Launch launch_from(std::string_view call, const nb::kwargs& given);

/// If a call names no stream, sets the one on which its first argument `main` is ready, so that
/// the call runs after the work that produces its arguments. No effect on the host, and where the
/// stream of `main` is unknown; the call then runs on the group's own stream.
void follow(ep::Launch& launch, const Group& group, const Input& main);

}  // namespace shoal::python
