// expect_error.hpp: a call that must throw, with this code and this text in its message.
#pragma once

#include <functional>
#include <string_view>

#include "shoal/error.hpp"

namespace shoal::test {

/// Fails the test unless `call` throws Error{code} whose message contains `text`.
void expect_error(Code code, std::string_view text, const std::function<void()>& call);

}  // namespace shoal::test
