// SPDX-License-Identifier: Apache-2.0
// The SHMEM_* variables: sizes, precedence, what they change.
#include "shmem/environment.hpp"

#include <gtest/gtest.h>
#include <locale.h>
#include <stdlib.h>

#include <cstdlib>
#include <filesystem>
#include <map>

#include "shoal/error.hpp"

namespace shoal::shmem {
namespace {

Environment read(const std::map<std::string, std::string>& variables) {
  return read_environment([&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

TEST(ShmemEnvironment, SizesHaveAFractionAndASuffix) {
  constexpr std::size_t kKilo = 1024;
  EXPECT_EQ(parse_symmetric_size("4096"), 4096u);
  EXPECT_EQ(parse_symmetric_size("2k"), 2 * kKilo);
  EXPECT_EQ(parse_symmetric_size("2K"), 2 * kKilo);
  EXPECT_EQ(parse_symmetric_size("1.5m"), 3 * kKilo * kKilo / 2);
  EXPECT_EQ(parse_symmetric_size(".5G"), kKilo * kKilo * kKilo / 2);
  EXPECT_EQ(parse_symmetric_size("1t"), kKilo * kKilo * kKilo * kKilo);
  EXPECT_EQ(parse_symmetric_size("3MB"), 3 * kKilo * kKilo);
  EXPECT_EQ(parse_symmetric_size("3Mebibytes"), 3 * kKilo * kKilo);
}

TEST(ShmemEnvironment, SizesDoNotDependOnTheLocale) {
  std::string folder = "/tmp/shoal-locale-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::string made = "localedef -i de_DE -f UTF-8 " + folder + "/de_DE.UTF-8 2> /dev/null";
  const bool has_locale = std::system(made.c_str()) == 0;
  setenv("LOCPATH", folder.c_str(), 1);
  const bool is_set = has_locale && setlocale(LC_NUMERIC, "de_DE.UTF-8") != nullptr &&
                      localeconv()->decimal_point == std::string(",");
  const auto size = parse_symmetric_size("1.5G"), half = parse_symmetric_size("0.5G");
  setlocale(LC_NUMERIC, "C");
  unsetenv("LOCPATH");
  std::filesystem::remove_all(folder);
  if (!is_set) GTEST_SKIP() << "needs localedef and the sources of locales (Debian: locales)";
  EXPECT_EQ(size, std::size_t{3} << 29);
  EXPECT_EQ(half, std::size_t{1} << 29);
}

TEST(ShmemEnvironment, ASizeBeyondTheRangeNamesTheVariable) {
  for (const char* const text : {"64T", "33T"}) {
    try {
      read({{"SHMEM_SYMMETRIC_SIZE", text}});
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.what(), "SHOAL-N829: SHMEM_SYMMETRIC_SIZE is \"" + std::string(text) +
                                  "\"; allowed: 0 to 35184372088832 bytes");
    }
  }
  EXPECT_EQ(read({{"SMA_SYMMETRIC_SIZE", "32T"}}).size_from, "SMA_SYMMETRIC_SIZE is \"32T\"");
  EXPECT_EQ(read({{"SHOAL_SYMMETRIC_SIZE", "2G"}}).size_from, "");
}

TEST(ShmemEnvironment, OtherTextIsNoSize) {
  for (const char* text :
       {"", "k", "-1", "+1", ".", ".k", "1x", "1 k", "0x10", "1.2.3", "9999999t"})
    EXPECT_EQ(parse_symmetric_size(text), std::nullopt) << text;
}

TEST(ShmemEnvironment, TheStandardsNamesTakePrecedence) {
  const std::map<std::string, std::string> all = {{"SHMEM_SYMMETRIC_SIZE", "4M"},
                                                  {"SMA_SYMMETRIC_SIZE", "8M"},
                                                  {"SHOAL_SYMMETRIC_SIZE", "16M"}};
  EXPECT_EQ(read(all).settings.symmetric_size, 4u << 20);
  EXPECT_EQ(
      read({{"SMA_SYMMETRIC_SIZE", "8M"}, {"SHOAL_SYMMETRIC_SIZE", "16M"}}).settings.symmetric_size,
      8u << 20);
  EXPECT_EQ(read({{"SHOAL_SYMMETRIC_SIZE", "16M"}}).settings.symmetric_size, 16u << 20);
  EXPECT_EQ(read({}).settings.symmetric_size, Settings{}.symmetric_size);
}

TEST(ShmemEnvironment, ABadSizeNamesTheVariable) {
  try {
    read({{"SMA_SYMMETRIC_SIZE", "many"}});
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(
        error.what(),
        "SHOAL-N829: SMA_SYMMETRIC_SIZE is \"many\"; allowed: a number of bytes with an optional "
        "suffix K, M, G or T, such as 512M or 1.5G");
  }
}

TEST(ShmemEnvironment, WaitsHaveNoDeadlineUnlessOneIsSet) {
  EXPECT_EQ(read({}).settings.timeout, std::chrono::hours(24));
  EXPECT_EQ(read({{"SHOAL_TIMEOUT_MS", "500"}}).settings.timeout, std::chrono::milliseconds(500));
  EXPECT_NO_THROW(read({}).settings.validate());
}

TEST(ShmemEnvironment, TheHeapIsOnTheHost) {
  EXPECT_EQ(read({{"SHOAL_HEAP", "cuda"}}).settings.heap, "host");
}

TEST(ShmemEnvironment, Output) {
  EXPECT_FALSE(read({}).print_info || read({}).print_version);
  EXPECT_TRUE(read({{"SHMEM_INFO", ""}}).print_info);
  EXPECT_TRUE(read({{"SMA_VERSION", "1"}}).print_version);
  EXPECT_EQ(read({{"SHMEM_DEBUG", ""}}).settings.log, "debug");
  EXPECT_EQ(read({{"SHMEM_DEBUG", ""}, {"SHOAL_LOG", "error"}}).settings.log, "error");
}

}  // namespace
}  // namespace shoal::shmem
