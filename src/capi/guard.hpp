// SPDX-License-Identifier: Apache-2.0
// guard.hpp: where exceptions end: each exported function is one call of guarded.
#pragma once

#include "base/check.hpp"
#include "shoal/shoal.h"

namespace shoal::capi {

/// Keeps the message of the exception that is being handled for shoal_last_error; returns its
/// status.
shoal_status record_failure() noexcept;

template <typename Body>
shoal_status guarded(Body&& body) noexcept {
  try {
    body();
    return SHOAL_OK;
  } catch (...) {
    return record_failure();
  }
}

/// *pointer; throws Error{invalid_argument} for NULL, naming the call and the argument.
template <typename T>
T& required(T* pointer, const char* call, const char* name) {
  require(pointer != nullptr, Code::invalid_argument, "{}: {} is NULL", call, name);
  return *pointer;
}

/// `value` as an enumeration whose values are 0 to `last`.
template <typename Enum>
Enum enumeration(std::int32_t value, Enum last, const char* call, const char* name) {
  const auto most = static_cast<std::int32_t>(last);
  require(value >= 0 && value <= most, Code::invalid_argument, "{}: {} is {}; allowed: 0 to {}",
          call, name, value, most);
  return static_cast<Enum>(value);
}

}  // namespace shoal::capi
