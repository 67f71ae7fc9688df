// SPDX-License-Identifier: Apache-2.0
// guard.hpp: no exception leaves the library: the body of each exported function runs in guarded.
#pragma once

#include "base/check.hpp"
#include "shoal/shoal.h"

namespace shoal::capi {

/// Stores the message of the current exception for shoal_last_error. Returns its status.
shoal_status record_failure() noexcept;

/// Runs `body`. Returns SHOAL_OK, or the status of the exception that it threw.
template <typename Body>
shoal_status guarded(Body&& body) noexcept {
  try {
    body();
    return SHOAL_OK;
  } catch (...) {
    return record_failure();
  }
}

/// *pointer. Throws Error{invalid_argument} for NULL, naming the call and the argument.
template <typename T>
T& required(T* pointer, const char* call, const char* name) {
  require(pointer != nullptr, Code::invalid_argument, "SHOAL-N888: {}: {} is NULL", call, name);
  return *pointer;
}

/// `value` as an enumeration with the values 0 to `last`. Throws Error{invalid_argument} for
/// others.
template <typename Enum>
Enum enumeration(std::int32_t value, Enum last, const char* call, const char* name) {
  const auto most = static_cast<std::int32_t>(last);
  require(value >= 0 && value <= most, Code::invalid_argument,
          "SHOAL-N881: {}: {} is {}; allowed: 0 to {}", call, name, value, most);
  return static_cast<Enum>(value);
}

}  // namespace shoal::capi
