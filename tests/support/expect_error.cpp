// SPDX-License-Identifier: Apache-2.0
#include "support/expect_error.hpp"

#include <gtest/gtest.h>

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
  std::string plain(text);
  for (std::size_t at = 0; (at = plain.find(Error::kIdPrefix, at)) != plain.npos;) {
    const std::size_t end = plain.find_first_not_of("0123456789", at + Error::kIdPrefix.size());
    if (end == plain.npos || plain.compare(end, 2, ": ") != 0)
      at += Error::kIdPrefix.size();
    else
      plain.erase(at, end + 2 - at);
  }
  return plain;
}

void expect_parts(std::string_view text, std::initializer_list<std::string_view> parts) {
  const std::string plain = without_ids(text);
  for (const std::string_view part : parts) {
    const std::string_view within = part.find(Error::kIdPrefix) == part.npos ? plain : text;
    EXPECT_NE(within.find(part), std::string_view::npos) << "\"" << part << "\" in: " << text;
  }
}

}  // namespace shoal::test
