// SPDX-License-Identifier: Apache-2.0
// check.hpp: throws Error with a formatted message.
#pragma once

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <type_traits>
#include <utility>

#include "base/system_error.hpp"
#include "shoal/error.hpp"

namespace shoal {

template <typename... Args>
[[noreturn]] void fail(Code code, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}

/// The argument itself or, for a function, its result. Texts that are expensive to make are passed
/// as functions, so that they are made only for an error.
template <typename Arg>
auto made(const Arg& arg) {
  if constexpr (std::is_invocable_v<const Arg&>)
    return arg();
  else
    return arg;
}

/// The format of a message of require.
template <typename... Args>
using MadeFormat = fmt::format_string<decltype(made(std::declval<const Args&>()))...>;

/// The part of require that fails, apart from its callers: checks on the path of short operations
/// take a comparison.
template <typename... Args>
[[noreturn, gnu::cold, gnu::noinline]] void fail_made(Code code, MadeFormat<Args...> format,
                                                      const Args&... args) {
  throw Error(code, fmt::format(format, made(args)...));
}

/// Throws Error{code} with the formatted message unless `condition` holds. Arguments may be
/// functions (see made).
template <typename... Args>
[[gnu::always_inline]] inline void require(bool condition, Code code, MadeFormat<Args...> format,
                                           const Args&... args) {
  if (!condition) [[unlikely]]
    fail_made<Args...>(code, format, args...);
}

/// Throws Error{system} with the formatted message, followed by errno_text of `errno`.
template <typename... Args>
[[noreturn]] void fail_errno(fmt::format_string<Args...> format, Args&&... args) {
  const int error = errno;
  throw Error(Code::system,
              fmt::format(format, std::forward<Args>(args)...) + ": " + errno_text(error));
}

}  // namespace shoal
