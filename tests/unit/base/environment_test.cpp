// SPDX-License-Identifier: Apache-2.0
// Environment variables: values of NVSHMEM, variables without effect, misspelt names.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "base/nvshmem_variables.hpp"
#include "shoal/error.hpp"
#include "shoal/settings.hpp"
#include "support/expect_error.hpp"

namespace shoal {
namespace {

using Variables = std::map<std::string, std::string>;

Settings settings_of(const Variables& variables) {
  return Settings::from([&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

std::vector<std::string> warnings_of(const Variables& variables) {
  return environment_warnings(inspect_environment(variables));
}

TEST(NvshmemVariables, EveryTransportOfNvshmemIsAccepted) {
  for (const char* transport : {"ibrc", "IBRC", "ucx", "ibdevx", "libfabric", "none", "ibgda"}) {
    const Settings settings = settings_of({{"NVSHMEM_REMOTE_TRANSPORT", transport}});
    EXPECT_NO_THROW(settings.validate()) << transport;
  }
  EXPECT_EQ(settings_of({{"NVSHMEM_REMOTE_TRANSPORT", "ibgda"}}).transport_between, "automatic");
  EXPECT_EQ(settings_of({{"NVSHMEM_REMOTE_TRANSPORT", "IBRC"}}).transport_between, "verbs,ofi,ucx");
  EXPECT_EQ(settings_of({{"NVSHMEM_REMOTE_TRANSPORT", "libfabric"}}).transport_between, "ofi");
  EXPECT_EQ(settings_of({{"NVSHMEM_REMOTE_TRANSPORT", "UCX"}}).transport_between, "ucx");
  EXPECT_EQ(settings_of({{"NVSHMEM_REMOTE_TRANSPORT", "none"}}).transport_between,
            "shm,cuda_p2p,staged");
}

TEST(NvshmemVariables, IbrcAndIbdevxAreVerbsWithTheirInterface) {
  for (const char* theirs : {"ibdevx", "IBDEVX"}) {
    const Settings settings = settings_of({{"NVSHMEM_REMOTE_TRANSPORT", theirs}});
    EXPECT_EQ(settings.transport_between, "verbs,ofi,ucx");
    EXPECT_EQ(settings.verbs_interface, "devx");
    EXPECT_TRUE(warnings_of({{"NVSHMEM_REMOTE_TRANSPORT", theirs}}).empty());
  }
  for (const char* theirs : {"ibrc", "ucx", "libfabric", "none", "ibgda"})
    EXPECT_EQ(settings_of({{"NVSHMEM_REMOTE_TRANSPORT", theirs}}).verbs_interface, "verbs")
        << theirs;
}

TEST(NvshmemVariables, ShoalsNamesDecideAboutTheInterfaceOfVerbs) {
  EXPECT_EQ(
      settings_of({{"NVSHMEM_REMOTE_TRANSPORT", "ibdevx"}, {"SHOAL_VERBS_INTERFACE", "verbs"}})
          .verbs_interface,
      "verbs");
  const Variables both = {{"NVSHMEM_REMOTE_TRANSPORT", "ibdevx"},
                          {"SHOAL_TRANSPORT_BETWEEN", "verbs"}};
  EXPECT_EQ(settings_of(both).verbs_interface, "verbs");
  EXPECT_EQ(
      warnings_of(both),
      std::vector<std::string>{"NVSHMEM_REMOTE_TRANSPORT: SHOAL_TRANSPORT_BETWEEN is set as well"});
}

TEST(NvshmemVariables, ATransportThatShoalLacksIsNamedInAWarning) {
  const auto warnings = warnings_of({{"NVSHMEM_REMOTE_TRANSPORT", "ibgda"}});
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_NE(warnings[0].find("NVSHMEM_REMOTE_TRANSPORT: \"ibgda\""), std::string::npos)
      << warnings[0];
  EXPECT_TRUE(warnings_of({{"NVSHMEM_REMOTE_TRANSPORT", "ucx"}}).empty());
}

TEST(NvshmemVariables, BooleansAreThoseOfNvshmem) {
  for (const char* yes : {"1", "true", "TRUE", "yes", "on", "x", ""})
    EXPECT_EQ(settings_of({{"NVSHMEM_ENABLE_NIC_PE_MAPPING", yes}}).nic_round_robin, 1) << yes;
  for (const char* no : {"0", "false", "F", "no", "N"})
    EXPECT_EQ(settings_of({{"NVSHMEM_ENABLE_NIC_PE_MAPPING", no}}).nic_round_robin, 0) << no;
}

TEST(NvshmemVariables, NumbersOutsideShoalsRangeAreBroughtIntoIt) {
  EXPECT_EQ(settings_of({{"NVSHMEM_MAX_TEAMS", "7"}}).max_teams, 8);
  EXPECT_EQ(settings_of({{"NVSHMEM_MAX_TEAMS", "0x40"}}).max_teams, 64);
  EXPECT_EQ(settings_of({{"NVSHMEM_MAX_TEAMS", "1000000"}}).max_teams, 65'536);
  EXPECT_TRUE(warnings_of({{"NVSHMEM_MAX_TEAMS", "7"}}).empty());
  EXPECT_EQ(warnings_of({{"NVSHMEM_MAX_TEAMS", "1000000"}}).size(), 1U);
  EXPECT_EQ(settings_of({{"NVSHMEM_SYMMETRIC_SIZE", "100"}}).symmetric_size, std::size_t{1} << 20);
  // Under Shoal's own name the same numbers are errors.
  test::expect_error(Code::invalid_argument, "SHOAL_MAX_TEAMS is \"7\"",
                     [] { settings_of({{"SHOAL_MAX_TEAMS", "7"}}); });
}

TEST(NvshmemVariables, LevelsOfNvshmemsLog) {
  const std::pair<const char*, const char*> levels[] = {
      {"VERSION", "info"}, {"WARN", "warn"}, {"INFO", "info"},    {"ABORT", "error"},
      {"TRACE", "trace"},  {"", "warn"},     {"anything", "info"}};
  for (const auto& [theirs, ours] : levels)
    EXPECT_EQ(settings_of({{"NVSHMEM_DEBUG", theirs}}).log, ours) << theirs;
}

TEST(NvshmemVariables, BootstrapsOfNvshmem) {
  EXPECT_EQ(settings_of({{"NVSHMEM_BOOTSTRAP", "PMI"}}).bootstrap, "automatic");
  EXPECT_EQ(settings_of({{"NVSHMEM_BOOTSTRAP", "PMI"}, {"PMI_RANK", "0"}}).bootstrap, "pmi");
  EXPECT_EQ(
      settings_of({{"NVSHMEM_BOOTSTRAP", "PMI"}, {"NVSHMEM_BOOTSTRAP_PMI", "PMIX"}}).bootstrap,
      "pmix");
  EXPECT_EQ(
      settings_of({{"NVSHMEM_BOOTSTRAP", "pmi"}, {"NVSHMEM_BOOTSTRAP_PMI", "PMI-2"}}).bootstrap,
      "pmi2");
  EXPECT_EQ(settings_of({{"NVSHMEM_BOOTSTRAP", "MPI"}}).bootstrap, "mpi");
}

TEST(NvshmemVariables, OtherTranslations) {
  EXPECT_EQ(settings_of({{"NVSHMEM_CUMEM_HANDLE_TYPE", "FILE_DESCRIPTOR"}}).cuda_handle, "fd");
  EXPECT_EQ(settings_of({{"NVSHMEM_CUMEM_HANDLE_TYPE", "FABRIC"}}).cuda_handle, "fabric");
  EXPECT_EQ(settings_of({{"NVSHMEM_LIBFABRIC_PROVIDER", "verbs"}}).ofi_provider, "verbs;ofi_rxm");
  EXPECT_EQ(settings_of({{"NVSHMEM_HCA_LIST", ""}}).nic_list, "");
}

TEST(NvshmemVariables, ShoalsOwnNameTakesPrecedence) {
  const Variables both = {{"SHOAL_LOG", "off"}, {"NVSHMEM_DEBUG", "TRACE"}};
  EXPECT_EQ(settings_of(both).log, "off");
  const auto warnings = warnings_of(both);
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_EQ(warnings[0], "NVSHMEM_DEBUG: SHOAL_LOG is set as well");
}

TEST(Environment, VariablesWithoutAnEquivalentShareOneWarning) {
  const auto warnings = warnings_of({{"NVSHMEM_QP_DEPTH", "1024"},
                                     {"NVSHMEM_DISABLE_P2P", "1"},
                                     {"NVSHMEM_IB_ENABLE_IBGDA", "1"},
                                     {"NVSHMEM_MAX_TEAMS", "64"},
                                     {"HOME", "/root"}});
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_EQ(warnings[0],
            "set for NVSHMEM, without effect on Shoal: NVSHMEM_DISABLE_P2P, "
            "NVSHMEM_IB_ENABLE_IBGDA, NVSHMEM_QP_DEPTH");
}

TEST(Environment, MisspeltSettingsGetTheNearestName) {
  auto warnings = warnings_of({{"SHOAL_TIMEOUT", "5"}});
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_EQ(warnings[0],
            "SHOAL_TIMEOUT: Shoal has no such setting; did you mean SHOAL_TIMEOUT_MS?");
  warnings = warnings_of({{"SHOAL_SYMETRIC_SIZE", "1G"}});
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_NE(warnings[0].find("SHOAL_SYMMETRIC_SIZE?"), std::string::npos);
  warnings = warnings_of({{"SHOAL_COMPLETELY_DIFFERENT", "1"}});
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_EQ(warnings[0].find("did you mean"), std::string::npos);
  EXPECT_TRUE(warnings_of({{"SHOAL_TIMEOUT_MS", "5"}, {"SHOAL_TEST_PORT", "1"}}).empty());
  EXPECT_TRUE(warnings_of({{"SHOAL_EMULATOR_LOSS", "0.1"}}).empty());  // read by the emulator
}

TEST(Environment, EveryVariableIsUsedIgnoredOrUnknown) {
  const auto variables = inspect_environment(Variables{{"NVSHMEM_DEBUG", "INFO"},
                                                       {"NVSHMEM_INFO", "1"},
                                                       {"NVSHMEM_NO_SUCH_THING", "1"},
                                                       {"SHOAL_SPIN", "3"},
                                                       {"PATH", "/bin"}});
  ASSERT_EQ(variables.size(), 4U);
  EXPECT_EQ(variables[0].setting, "SHOAL_LOG");
  EXPECT_EQ(variables[0].use, VariableUse::used);
  EXPECT_EQ(variables[1].use, VariableUse::ignored);
  EXPECT_EQ(variables[2].use, VariableUse::unknown);
  EXPECT_EQ(variables[3].use, VariableUse::used);
}

}  // namespace
}  // namespace shoal
