// SPDX-License-Identifier: Apache-2.0
// Faulty bootstrap plug-ins: every fault is reported, and none makes a world wait for ever.
#include "bootstrap/plugin_bootstrap.hpp"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <chrono>

#include "support/built.hpp"
#include "support/expect_error.hpp"

namespace shoal::bootstrap {
namespace {

std::string file_of(const std::string& fault) {
  return test::program("../tests/plugins/broken_plugin_" + fault + ".so");
}

Settings settings_for(const std::string& fault) {
  Settings settings;
  settings.bootstrap = "plugin:" + file_of(fault);
  settings.bootstrap_timeout = std::chrono::milliseconds(200);
  return settings;
}

void expect_failure(const std::string& fault, Code code, const std::string& part) {
  test::expect_error(code, part, [&] { make_bootstrap(settings_for(fault)); });
}

int closed(const std::string& fault) {
  void* const library = dlopen(file_of(fault).c_str(), RTLD_NOW);
  return library == nullptr ? -1 : *static_cast<int*>(dlsym(library, "broken_plugin_closed"));
}

TEST(BootstrapPlugin, TableThatIsNotRight) {
  expect_failure("wrong_version", Code::unsupported,
                 "has version 99 of the table; this Shoal takes version 1");
  expect_failure("short_table", Code::unsupported, "incomplete table");
  expect_failure("null_member", Code::unsupported, "incomplete table");
}

TEST(BootstrapPlugin, FileThatIsNone) {
  Settings settings;
  settings.bootstrap = "plugin:/no/such/file.so";
  test::expect_error(Code::unsupported, "/no/such/file.so cannot be loaded",
                     [&] { make_bootstrap(settings); });
  settings.bootstrap = "plugin:libm.so.6";
  test::expect_error(Code::unsupported, "it has no symbol shoal_bootstrap_plugin_table",
                     [&] { make_bootstrap(settings); });
}

TEST(BootstrapPlugin, OwnOneThatIsNotBuilt) {
  Settings settings;
  settings.bootstrap = "mpi";
  settings.plugin_dir = "/no/such/folder";
  test::expect_error(Code::unsupported, "SHOAL_PLUGIN_DIR", [&] { make_bootstrap(settings); });
}

TEST(BootstrapPlugin, AutomaticTriesTheNextOneAndNamesAll) {
  Settings settings;
  settings.plugin_dir = "/no/such/folder";
  settings.launcher = {
      {"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}, {"PMIX_NAMESPACE", "x"}};
  test::expect_error(Code::unsupported, "libshoal_bootstrap_pmix.so",
                     [&] { make_bootstrap(settings); });
  test::expect_error(Code::unsupported, "libshoal_bootstrap_mpi.so",
                     [&] { make_bootstrap(settings); });
}

TEST(BootstrapPlugin, StatusOfOpenBecomesTheError) {
  expect_failure("open_fails", Code::system, "open failed: the launcher is on strike");
  expect_failure("times_out", Code::timeout, "open failed: the launcher is on strike");
  expect_failure("open_absent", Code::unsupported, "open failed: the launcher is on strike");
  expect_failure("no_reason", Code::system, "gives no reason");
  EXPECT_EQ(closed("open_fails"), 0) << "what did not open is not closed";
}

TEST(BootstrapPlugin, PeOutOfRange) {
  expect_failure("bad_pe", Code::mismatch, "says that this is PE 2 of 2");
  EXPECT_EQ(closed("bad_pe"), 1);
}

TEST(BootstrapPlugin, FailureOfPeZeroReachesTheOthers) {
  expect_failure("none", Code::peer_failed,
                 "PE 0 could not start the bootstrap: no interface fits");
  EXPECT_EQ(closed("none"), 1);
}

TEST(BootstrapPlugin, TextWithoutAnEnd) {
  expect_failure("long_text", Code::invalid_argument, "a unique id has the form");
  EXPECT_EQ(closed("long_text"), 1);
}

TEST(BootstrapPlugin, HangingOnesAreGivenUp) {
  for (const char* fault : {"open_hangs", "broadcast_hangs"}) {
    expect_failure(fault, Code::timeout, "has not returned within 200 ms");
    EXPECT_EQ(closed(fault), 0) << "the call still uses the job";
    expect_failure(fault, Code::timeout, "a call for an earlier world has not returned");
  }
}

}  // namespace
}  // namespace shoal::bootstrap
