// SPDX-License-Identifier: Apache-2.0
// The text form of a unique id, and the bootstrap that the settings choose.
// @traits one_thread
#include <gtest/gtest.h>

#include "shoal/bootstrap.hpp"
#include "support/expect_error.hpp"

namespace shoal {
namespace {

Settings on_loopback() {
  Settings settings;
  settings.socket_interface = "lo";
  settings.bootstrap_timeout = std::chrono::milliseconds(5'000);
  return settings;
}

std::string refusal(const Settings& settings) {
  try {
    make_bootstrap(settings);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::invalid_argument) << error.what();
    return error.what();
  }
  return "accepted";
}

void expect_refused(const Settings& settings, const std::string& part) {
  const std::string message = refusal(settings);
  test::expect_parts(message, {part});
}

TEST(UniqueId, TextRoundTrip) {
  for (const char* family : {"AF_INET", "AF_INET6"}) {
    Settings settings = on_loopback();
    settings.socket_family = family;
    const UniqueId id = UniqueId::create(settings);
    const UniqueId back = UniqueId::parse(id.to_string());
    EXPECT_EQ(back.host, id.host);
    EXPECT_EQ(back.port, id.port);
    EXPECT_EQ(back.key, id.key);
    EXPECT_EQ(id.key.size(), 32u);
    EXPECT_EQ(id.host, std::string(family) == "AF_INET" ? "127.0.0.1" : "[::1]");
  }
}

TEST(UniqueId, TwoIdsDiffer) {
  EXPECT_NE(UniqueId::create(on_loopback()).key, UniqueId::create(on_loopback()).key);
}

TEST(UniqueId, MalformedTextStatesTheFormAndHidesTheSecret) {
  const std::string key(64, 'a');
  for (const std::string& bad :
       {std::string(), std::string("shoal1:"), "shoal2:127.0.0.1:80:" + key,
        "shoal1:127.0.0.1:" + key, "shoal1:127.0.0.1:0:" + key, "shoal1:127.0.0.1:80:" + key + "a",
        "shoal1:127.0.0.1:80:" + std::string(64, 'g'), "shoal1:::1:80:" + key}) {
    try {
      UniqueId::parse(bad);
      ADD_FAILURE() << bad << " was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::invalid_argument);
      test::expect_parts(error.what(), {"shoal1:<host>:<port>"});
      EXPECT_EQ(std::string(error.what()).find(key), std::string::npos) << error.what();
    }
  }
}

TEST(UniqueId, UnknownInterfaceIsUnsupported) {
  Settings settings;
  settings.socket_interface = "nosuchinterface";
  try {
    UniqueId::create(settings);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::unsupported);
    EXPECT_NE(std::string(error.what()).find("127.0.0.1"), std::string::npos)
        << "lists what exists: " << error.what();
  }
}

TEST(MakeBootstrap, SingleWhenNothingIsSet) {
  const auto bootstrap = make_bootstrap({});
  EXPECT_EQ(bootstrap->pe(), 0);
  EXPECT_EQ(bootstrap->n_pes(), 1);
  bootstrap->barrier("step");
  const std::byte mine[] = {std::byte{7}};
  EXPECT_EQ(bootstrap->all_gather(mine, "step"),
            std::vector<std::vector<std::byte>>{{std::byte{7}}});
  EXPECT_FALSE(bootstrap->aborted().has_value());
}

TEST(MakeBootstrap, OnePeNeedsNoId) {
  Settings settings;
  settings.n_pes = 1;
  settings.pe = 0;
  EXPECT_EQ(make_bootstrap(settings)->n_pes(), 1);
}

TEST(MakeBootstrap, OnePeWithAnIdMeetsItsRoot) {
  Settings settings = on_loopback();
  const UniqueId id = UniqueId::create(settings);
  settings.n_pes = 1;
  settings.pe = 0;
  settings.unique_id = id.to_string();
  make_bootstrap(settings)->barrier("alone");
}

TEST(MakeBootstrap, SaysWhatIsMissing) {
  Settings settings = on_loopback();
  settings.n_pes = 2;
  settings.pe = 0;
  expect_refused(settings, "neither SHOAL_UNIQUE_ID nor SHOAL_SESSION_ID is set");
  settings.pe = -1;
  expect_refused(settings, "SHOAL_PE is not set");
  settings.pe = 2;
  expect_refused(settings, "allowed: 0 to 1");
  settings.n_pes = 0;
  expect_refused(settings, "SHOAL_N_PES is 0");
  settings.n_pes = -1;
  expect_refused(settings, "SHOAL_N_PES is not set");
  settings = {};
  settings.bootstrap = "uid";
  expect_refused(settings, "SHOAL_BOOTSTRAP is uid but SHOAL_N_PES is not set");
  settings.bootstrap = "single";
  settings.n_pes = 2;
  expect_refused(settings, "SHOAL_BOOTSTRAP is single but SHOAL_N_PES is 2");
  settings.bootstrap = "magic";
  settings.n_pes = -1;
  expect_refused(settings, "\"magic\"");
  settings = on_loopback();
  settings.n_pes = 2;
  settings.pe = 0;
  settings.session_id = "nowhere";
  expect_refused(settings, "host:port or [ipv6]:port");
  settings.session_id = "127.0.0.1:9";
  settings.session_root = 2;
  expect_refused(settings, "SHOAL_SESSION_ROOT is 2");
}

}  // namespace
}  // namespace shoal
