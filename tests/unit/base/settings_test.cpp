// SPDX-License-Identifier: Apache-2.0
// Settings: names, aliases, allowed values, sizes, secrets.
#include "shoal/settings.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <set>

#include "base/nvshmem_variables.hpp"
#include "shoal/error.hpp"
#include "support/expect_error.hpp"

namespace shoal {
namespace {

Settings settings_of(const std::map<std::string, std::string>& environment) {
  return Settings::from([&](const std::string& name) -> std::optional<std::string> {
    const auto found = environment.find(name);
    return found == environment.end() ? std::nullopt : std::optional(found->second);
  });
}

TEST(Settings, HaveDefaultsThatAreValid) {
  EXPECT_NO_THROW(Settings().validate());
  EXPECT_NO_THROW(settings_of({}).validate());
}

TEST(Settings, AreReadByNameAndByAlias) {
  const Settings settings = settings_of({{"SHOAL_SYMMETRIC_SIZE", "1.5G"},
                                         {"SHOAL_TIMEOUT_MS", "250"},
                                         {"NVSHMEM_MAX_TEAMS", "40"},
                                         {"NVSHMEM_BOOTSTRAP_UID_SOCK_FAMILY", "af_inet6"}});
  EXPECT_EQ(settings.symmetric_size, std::size_t{3} << 29);
  EXPECT_EQ(settings.timeout, std::chrono::milliseconds(250));
  EXPECT_EQ(settings.max_teams, 40);
  EXPECT_EQ(settings.socket_family, "AF_INET6");
  EXPECT_EQ(settings_of({{"SHOAL_MAX_TEAMS", "9"}, {"NVSHMEM_MAX_TEAMS", "40"}}).max_teams, 9);
}

TEST(Settings, TellWhereTheHeapIs) {
  EXPECT_FALSE(Settings().heap_on_gpu());
  EXPECT_FALSE(settings_of({{"SHOAL_HEAP", "host"}}).heap_on_gpu());
  EXPECT_TRUE(settings_of({{"SHOAL_HEAP", "CUDA"}}).heap_on_gpu());
}

TEST(Settings, ChoiceWithATextOfItsOwn) {
  EXPECT_EQ(settings_of({{"SHOAL_BOOTSTRAP", "Plugin:/My/File.so"}}).bootstrap,
            "plugin:/My/File.so");
  EXPECT_EQ(settings_of({{"NVSHMEM_BOOTSTRAP", "MPI"}}).bootstrap, "mpi");
  const Settings plugin =
      settings_of({{"NVSHMEM_BOOTSTRAP", "plugin"}, {"NVSHMEM_BOOTSTRAP_PLUGIN", "x.so"}});
  EXPECT_EQ(plugin.bootstrap, "plugin");
  EXPECT_EQ(plugin.bootstrap_plugin, "x.so");
  EXPECT_NO_THROW(settings_of({{"SHOAL_BOOTSTRAP", "plugin:x"}}).validate());
  for (const char* bad : {"plugin:", "mpi:x", "", "plugin x"})
    test::expect_error(Code::invalid_argument, "plugin:TEXT",
                       [&] { settings_of({{"SHOAL_BOOTSTRAP", bad}}); });
}

TEST(Settings, KeepWhatLaunchersSay) {
  const Settings settings =
      settings_of({{"PMI_RANK", "3"}, {"WORLD_SIZE", "many"}, {"HOME", "/root"}});
  EXPECT_EQ(settings.launcher,
            (std::map<std::string, std::string>{{"PMI_RANK", "3"}, {"WORLD_SIZE", "many"}}));
}

TEST(Settings, RefuseWhatIsNotAllowed) {
  for (const auto& [name, value] :
       std::map<std::string, std::string>{{"SHOAL_MAX_TEAMS", "7"},
                                          {"SHOAL_TIMEOUT_MS", "0"},
                                          {"SHOAL_SPIN", "many"},
                                          {"SHOAL_SYMMETRIC_SIZE", "2X"},
                                          {"SHOAL_BOOTSTRAP", "magic"}}) {
    try {
      settings_of({{name, value}});
      FAIL() << name;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::invalid_argument);
      test::expect_parts(error.what(), {name + " is \"" + value + "\"; allowed: "});
    }
  }
}

TEST(Settings, SetByHandAreValidated) {
  const struct {
    void (*set)(Settings&);
    const char* text;
  } cases[] = {
      {[](Settings& s) { s.max_teams = 7; },
       "SHOAL_MAX_TEAMS is \"7\"; allowed: an integer from 8 to"},
      {[](Settings& s) { s.spin = -1; }, "SHOAL_SPIN is \"-1\""},
      {[](Settings& s) { s.ep_threads = -1; }, "SHOAL_EP_THREADS is \"-1\""},
      {[](Settings& s) { s.node_size = -2; }, "SHOAL_NODE_SIZE is \"-2\""},
      {[](Settings& s) { s.pe = -2; }, "SHOAL_PE is \"-2\""},
      {[](Settings& s) { s.symmetric_size = 4096; },
       "SHOAL_SYMMETRIC_SIZE is \"4096\"; allowed: bytes"},
      {[](Settings& s) { s.symmetric_size = SIZE_MAX; }, "SHOAL_SYMMETRIC_SIZE is "},
      {[](Settings& s) { s.timeout = std::chrono::milliseconds(0); }, "SHOAL_TIMEOUT_MS is \"0\""},
      {[](Settings& s) { s.bootstrap_timeout = std::chrono::hours(25); },
       "SHOAL_BOOTSTRAP_TIMEOUT_MS is "},
      {[](Settings& s) { s.bootstrap = "magic"; }, "SHOAL_BOOTSTRAP is \"magic\"; allowed: one of"},
      {[](Settings& s) { s.log = "loud"; }, "SHOAL_LOG is \"loud\""},
      {[](Settings& s) { s.socket_family = "AF_UNIX"; }, "SHOAL_SOCKET_FAMILY is \"AF_UNIX\""},
  };
  for (const auto& [set, text] : cases) {
    Settings settings;
    set(settings);
    test::expect_error(Code::invalid_argument, text, [&] { settings.validate(); });
  }
}

TEST(Settings, ParseBytes) {
  EXPECT_EQ(parse_bytes("0"), 0u);
  EXPECT_EQ(parse_bytes("64K"), 65536u);
  EXPECT_EQ(parse_bytes("64kib"), 65536u);
  EXPECT_EQ(parse_bytes("2GB"), std::size_t{2} << 30);
  EXPECT_EQ(parse_bytes("0.5M"), 524288u);
  for (const char* text : {"", "K", "-1", "1Q", "1KK", "1 K", "1e3", "99999999999T", "0x10"})
    EXPECT_EQ(parse_bytes(text), std::nullopt) << text;
}

TEST(Settings, TableIsCompleteAndUnambiguous) {
  std::set<std::string_view> names;
  for (const SettingInfo& info : settings_table()) {
    EXPECT_TRUE(info.name.starts_with("SHOAL_")) << info.name;
    for (const std::string_view alias : nvshmem::aliases_of(info))
      EXPECT_TRUE(alias.starts_with("NVSHMEM_")) << info.alias;
    EXPECT_TRUE(names.insert(info.name).second) << info.name;
    EXPECT_TRUE(info.meaning.ends_with(".")) << info.name;
    // A printed value can be read again.
    const std::string text = format_value(info, Settings());
    if (!info.secret && !text.empty())
      EXPECT_NO_THROW(settings_of({{std::string(info.name), text}})) << info.name << "=" << text;
  }
}

TEST(Settings, SecretsAreNotPrinted) {
  const Settings settings = settings_of({{"SHOAL_SESSION_SECRET", "hunter2"}});
  for (const SettingInfo& info : settings_table())
    EXPECT_EQ(format_value(info, settings).find("hunter2"), std::string::npos);
}

}  // namespace
}  // namespace shoal
