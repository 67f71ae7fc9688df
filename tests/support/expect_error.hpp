// SPDX-License-Identifier: Apache-2.0
// expect_error.hpp: checks that a call throws with a code and a text in its message, and that a
// text contains parts.
#pragma once

#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>

#include "shoal/error.hpp"

namespace shoal::test {

/// Fails the test unless `call` throws Error{code} whose message contains `text`, or all `parts`.
void expect_error(Code code, std::string_view text, const std::function<void()>& call);
void expect_error(Code code, std::initializer_list<std::string_view> parts,
                  const std::function<void()>& call);

/// The message of the Error that `call` throws; "no error".
std::string error_of(const std::function<void()>& call);

/// `text` without the ids at the starts of messages, also of quoted ones.
std::string without_ids(std::string_view text);

/// Fails the test for each of `parts` that `text` does not contain. A part without an id is looked
/// for in `text` without ids.
void expect_parts(std::string_view text, std::initializer_list<std::string_view> parts);

}  // namespace shoal::test
