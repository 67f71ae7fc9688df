// check.hpp: throwing Error with a formatted message, in one line.
#pragma once

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "shoal/error.hpp"

namespace shoal {

template <typename... Args>
[[noreturn]] void fail(Code code, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}

/// Throws Error{code} with the formatted message unless `condition` holds.
template <typename... Args>
void require(bool condition, Code code, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) [[unlikely]]
    fail(code, format, std::forward<Args>(args)...);
}

/// Throws Error{system} with the formatted message followed by the text of `errno`.
template <typename... Args>
[[noreturn]] void fail_errno(fmt::format_string<Args...> format, Args&&... args) {
  const int error = errno;
  throw Error(Code::system, fmt::format(format, std::forward<Args>(args)...) + ": " + std::strerror(error));
}

}  // namespace shoal
