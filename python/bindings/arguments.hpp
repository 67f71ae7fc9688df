// SPDX-License-Identifier: Apache-2.0
// arguments.hpp: keyword arguments of Python, with errors that name the call and the argument.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <chrono>
#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "check.hpp"

namespace shoal::python {

/// repr(value), shortened to 60 characters.
std::string shown(nanobind::handle value);

/// Throws Error{invalid_argument}: "<call>: <name>=<value> has the wrong type, <type>; allowed:
/// <allowed>".
[[noreturn]] void wrong_type(std::string_view call, std::string_view name, nanobind::handle value,
                             std::string_view allowed);

/// `value` as a T: bool, an integer, float, double or std::string. Throws Error{invalid_argument},
/// as wrong_type, where it is none.
template <typename T>
T argument(std::string_view call, std::string_view name, nanobind::handle value) {
  T result{};
  if (nanobind::try_cast(value, result)) return result;
  wrong_type(call, name, value,
             std::same_as<T, bool>    ? "True or False"
             : std::integral<T>       ? (sizeof(T) == 4 ? "an int of 32 bits" : "an int of 64 bits")
             : std::floating_point<T> ? "a number"
             : std::same_as<T, std::string> ? "a str"
                                            : "another type");
}

/// `value` as an object of a class of this module; `allowed` names it, and where to get one. Throws
/// Error{invalid_argument}, as wrong_type, for other objects, None included, and for an object that
/// no constructor has filled: of __new__ alone, or of a subclass without a call of its constructor.
template <typename T>
T& object_from(std::string_view call, std::string_view name, nanobind::handle value,
               std::string_view allowed) {
  if (!nanobind::isinstance<T>(value)) wrong_type(call, name, value, allowed);
  require(nanobind::inst_ready(value), Code::invalid_argument,
          "{}: {} is an object that no constructor has filled; allowed: {}", call, name, allowed);
  return *nanobind::inst_ptr<T>(value);
}

/// The text of a str, in its memory.
std::string_view text_of(nanobind::handle str);

/// The seconds of a duration: an int, a float or a datetime.timedelta.
double seconds_of(std::string_view call, std::string_view name, nanobind::handle value);

/// Like seconds_of, rounded up to milliseconds. Allowed: 0 to 1,000,000 s.
std::chrono::milliseconds duration_of(std::string_view call, std::string_view name,
                                      nanobind::handle value);

/// The extents of a shape: an int, or a sequence of ints.
std::vector<std::int64_t> shape_of(std::string_view call, nanobind::handle value);

}  // namespace shoal::python
