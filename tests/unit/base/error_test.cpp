// SPDX-License-Identifier: Apache-2.0
// Ids of errors, and the table that explains them.
#include "shoal/error.hpp"

#include <gtest/gtest.h>

#include "base/messages/table.hpp"
#include "support/expect_error.hpp"

namespace shoal {
namespace {

TEST(ErrorIds, BeginAMessage) {
  const Error error(Code::closed, "SHOAL-N114: hidden is 7");
  EXPECT_STREQ(error.what(), "SHOAL-N114: hidden is 7");
  EXPECT_EQ(error.id(), "SHOAL-N114");
  EXPECT_EQ(error.reason(), "SHOAL-N114: hidden is 7");
}

TEST(ErrorIds, AreAbsentFromErrorsOfPrograms) {
  const Error error(Code::closed, "hidden is 7");
  EXPECT_STREQ(error.what(), "shoal: hidden is 7");
  EXPECT_EQ(error.id(), "");
  EXPECT_EQ(error.reason(), "hidden is 7");
}

TEST(ErrorIds, StayInQuotedMessages) {
  const Error cause(Code::closed, "SHOAL-N114: hidden is 7");
  const Error outer(Code::closed, "SHOAL-N190: PE 2 failed: " + reason_of(cause));
  EXPECT_STREQ(outer.what(), "SHOAL-N190: PE 2 failed: SHOAL-N114: hidden is 7");
  EXPECT_EQ(outer.id(), "SHOAL-N190");
  const Error passed_on(Code::closed, "PE 2: " + reason_of(cause));
  EXPECT_STREQ(passed_on.what(), "shoal: PE 2: SHOAL-N114: hidden is 7");
  EXPECT_EQ(passed_on.id(), "SHOAL-N114");
}

TEST(Messages, AreFoundByEveryFormOfAnId) {
  for (const auto rows :
       {messages::kStart, messages::kTransport, messages::kGroup, messages::kMemory}) {
    ASSERT_FALSE(rows.empty());
    for (const messages::Message& row : rows) {
      const std::string number = std::to_string(row.number);
      for (const std::string start : {"SHOAL-N", "N", "n", ""})
        EXPECT_EQ(&messages::explain(start + number), &row);
    }
  }
}

TEST(Messages, RefuseWhatIsNoId) {
  for (const char* const id : {"", "N", "N1", "N114x", "X114", "SHOAL-", "99999999", "N-114"})
    test::expect_error(Code::invalid_argument, "SHOAL-N100: no message has the id",
                       [&] { messages::explain(id); });
}

}  // namespace
}  // namespace shoal
