// SPDX-License-Identifier: Apache-2.0
// check.hpp: checks of arguments, which throw Error with a formatted message.
#pragma once

#include <fmt/format.h>

#include <utility>

#include "shoal/error.hpp"

namespace shoal::python {

template <typename... Args>
[[noreturn]] void fail(Code code, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}

/// Throws Error{code} with the formatted message unless `condition` holds.
template <typename... Args>
void require(bool condition, Code code, fmt::format_string<const Args&...> format,
             const Args&... args) {
  if (!condition) [[unlikely]]
    throw Error(code, fmt::format(format, args...));
}

}  // namespace shoal::python
