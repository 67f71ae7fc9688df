// SPDX-License-Identifier: Apache-2.0
#include "support/expect_error.hpp"

#include <gtest/gtest.h>

#include <regex>

namespace shoal::test {

void expect_error(Code code, std::string_view text, const std::function<void()>& call) {
  expect_error(code, {text}, call);
}

void expect_error(Code code, std::initializer_list<std::string_view> parts,
                  const std::function<void()>& call) {
  try {
    call();
    ADD_FAILURE() << "no error; expected " << name_of(code) << " with \"" << *parts.begin() << "\"";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    expect_parts(error.what(), parts);
  }
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

std::string without_ids(std::string_view text) {
  static const std::regex id("SHOAL-N[0-9]+: ");
  return std::regex_replace(std::string(text), id, "");
}

void expect_parts(std::string_view text, std::initializer_list<std::string_view> parts) {
  const std::string plain = without_ids(text);
  for (const std::string_view part : parts) {
    const std::string_view within = part.find(Error::kIdPrefix) == part.npos ? plain : text;
    EXPECT_NE(within.find(part), std::string_view::npos) << "\"" << part << "\" in: " << text;
  }
}

}  // namespace shoal::test
