// SPDX-License-Identifier: Apache-2.0
// common.hpp: helpers shared by Shoal's bootstrap plug-ins.
//
// A plug-in includes shoal/bootstrap_plugin.h, the standard library and the library that it adapts,
// nothing else. A library that can be initialized only once stays initialized until the process
// ends.
#pragma once

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "shoal/bootstrap_plugin.h"

namespace shoal::plugins {

using Clock = std::chrono::steady_clock;

/// Stores `reason` in the context and returns `status`.
inline int report(shoal_bootstrap_context* context, int status, std::string_view reason) {
  const std::size_t count = reason.copy(context->reason, sizeof context->reason - 1);
  context->reason[count] = '\0';
  return status;
}

inline Clock::time_point deadline_of(const shoal_bootstrap_context* context) {
  return Clock::now() + std::chrono::milliseconds(context->timeout_ms);
}

/// The launcher's variable; empty if it is not set.
inline std::string variable(const shoal_bootstrap_context* context, const char* name) {
  const char* const value = context->variable(context, name);
  return value == nullptr ? std::string() : std::string(value);
}

/// Calls `finish` when the process exits with status 0. A process that fails does not finalize, so
/// that its launcher sees a failure and ends the other processes.
inline void at_good_end(void (*finish)()) {
  on_exit(
      [](int status, void* what) {
        if (status == 0) reinterpret_cast<void (*)()>(what)();
      },
      reinterpret_cast<void*>(finish));
}

inline void store(char* text, std::string_view value) {
  const std::size_t count = value.copy(text, SHOAL_BOOTSTRAP_TEXT_SIZE - 1);
  text[count] = '\0';
}

}  // namespace shoal::plugins
