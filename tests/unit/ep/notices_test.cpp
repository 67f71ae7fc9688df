// SPDX-License-Identifier: Apache-2.0
// The words by which ranks that give a group up name the first cause.
// @traits one_thread
#include "ep/plan/notices.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace shoal::ep::detail {
namespace {

std::int32_t cause_in(const std::vector<std::uint64_t>& words, std::int32_t by) {
  return first_cause(by, static_cast<std::int32_t>(words.size()),
                     [&](std::int32_t rank) { return words[static_cast<std::size_t>(rank)]; });
}

TEST(EpFailedWord, ARankThatWasLateIsTheCause) {
  for (std::int32_t late = 0; late < 3; ++late) {
    EXPECT_NE(failed_word(late, false), 0u);
    std::vector<std::uint64_t> words(3, 0);
    words[static_cast<std::size_t>((late + 1) % 3)] = failed_word(late, false);
    EXPECT_EQ(cause_in(words, (late + 1) % 3), late);
  }
}

TEST(EpFailedWord, RanksThatGaveUpLeadToTheFirstCause) {
  // Rank 1 was late for rank 0. Rank 2 saw that rank 0 gave up; rank 3 saw that rank 2 did.
  const std::vector<std::uint64_t> words{failed_word(1, false), 0, failed_word(0, true),
                                         failed_word(2, true)};
  for (const std::int32_t by : {0, 2, 3}) EXPECT_EQ(cause_in(words, by), 1) << by;
}

// The late rank comes after all and finds that rank 0 has given up because of it.
TEST(EpFailedWord, TheLateRankIsTheCauseOfItsOwnFailure) {
  const std::vector<std::uint64_t> words{failed_word(1, false), failed_word(0, true)};
  EXPECT_EQ(cause_in(words, 0), 1);
  EXPECT_EQ(cause_in(words, 1), 1);
}

TEST(EpFailedWord, EndsWhereNoWordNamesACause) {
  EXPECT_EQ(cause_in({failed_word(1, true), 0}, 0), 1) << "the word of rank 1 is not there yet";
  EXPECT_EQ(cause_in({0, 0}, 1), 1);
  EXPECT_EQ(cause_in({failed_word(7, false), 0}, 0), 0) << "no rank of the group";
  const std::vector<std::uint64_t> circle{failed_word(1, true), failed_word(0, true)};
  EXPECT_GE(cause_in(circle, 0), 0) << "ends";
}

}  // namespace
}  // namespace shoal::ep::detail
