#include "support/expect_error.hpp"

#include <gtest/gtest.h>

namespace shoal::test {

void expect_error(Code code, std::string_view text, const std::function<void()>& call) {
  try {
    call();
    ADD_FAILURE() << "no error; expected " << name_of(code) << " with \"" << text << "\"";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_NE(std::string_view(error.what()).find(text), std::string_view::npos)
        << "\"" << text << "\" in: " << error.what();
  }
}

}  // namespace shoal::test
