// SPDX-License-Identifier: Apache-2.0
// attempt.hpp: a step whose failure is handled later, as a value.
#pragma once

#include <exception>
#include <optional>

#include "shoal/error.hpp"

namespace shoal::detail {

/// Runs `step` and returns what it throws.
template <typename Step>
std::optional<Error> attempt(Step&& step) {
  try {
    step();
  } catch (const Error& error) {
    return error;
  } catch (const std::exception& error) {
    return Error(Code::system, error.what());
  }
  return std::nullopt;
}

}  // namespace shoal::detail
