// SPDX-License-Identifier: Apache-2.0
// The texts in which PEs pass on the first cause of a failure.
#include "pe/cause.hpp"

#include <gtest/gtest.h>

#include "pe/control.hpp"

namespace shoal::test {
namespace {

using detail::CauseEntry;
using detail::describe_consequence;
using detail::FailureCause;
using detail::parse_cause;
using detail::parse_consequence;

TEST(FailureCause, IsReadFromItsText) {
  const FailureCause cause = parse_cause("PE 12: barrier failed: no memory");
  EXPECT_EQ(cause.pe, 12);
  EXPECT_EQ(cause.reason, "barrier failed: no memory");
  EXPECT_EQ(cause.text(), "PE 12: barrier failed: no memory");
}

TEST(FailureCause, OtherTextsNameNoPe) {
  for (const char* const text : {"", "PE", "PE : gone", "PE x: gone", "the root ended"}) {
    const FailureCause cause = parse_cause(text);
    EXPECT_EQ(cause.pe, -1) << text;
    EXPECT_EQ(cause.text(), text);
  }
}

TEST(FailureCause, SurvivesTheReportOfAConsequence) {
  const auto cause = parse_consequence(describe_consequence({3, "pid 7 ended"}));
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->pe, 3);
  EXPECT_EQ(cause->reason, "pid 7 ended");
  EXPECT_FALSE(parse_consequence("PE 3: pid 7 ended"));
  EXPECT_FALSE(parse_consequence("gave up after a long day"));
}

TEST(CauseEntry, PacksSequenceAndPe) {
  for (const Pe pe : {-1, 0, 1, 1 << 20}) {
    const std::uint64_t word = CauseEntry::word(5, pe);
    EXPECT_NE(word, 0u);
    EXPECT_EQ(CauseEntry::sequence_of(word), 5u);
    EXPECT_EQ(CauseEntry::pe_of(word), pe);
  }
}

}  // namespace
}  // namespace shoal::test
