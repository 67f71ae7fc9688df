// SPDX-License-Identifier: Apache-2.0
// expect_error.hpp: a call that must throw, with this code and this text in its message; texts that
// must have parts.
#pragma once

#include <functional>
#include <initializer_list>
#include <string_view>

#include "shoal/error.hpp"

namespace shoal::test {

/// Fails the test unless `call` throws Error{code} whose message contains `text`.
void expect_error(Code code, std::string_view text, const std::function<void()>& call);

/// Fails the test for each of `parts` that `text` does not contain.
void expect_parts(std::string_view text, std::initializer_list<std::string_view> parts);

}  // namespace shoal::test
