// SPDX-License-Identifier: Apache-2.0
// Environment variables: values of NVSHMEM, variables without effect, misspelt names.
#include <fmt/format.h>
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
  for (const char* transport : {"IBRC", "ibdevx", "ibgda"})
    EXPECT_EQ(settings_of({{"NVSHMEM_REMOTE_TRANSPORT", transport}}).transport_between,
              "verbs,network");
  EXPECT_EQ(settings_of({{"NVSHMEM_REMOTE_TRANSPORT", "libfabric"}}).transport_between, "ofi");
  EXPECT_EQ(settings_of({{"NVSHMEM_REMOTE_TRANSPORT", "UCX"}}).transport_between, "ucx");
  EXPECT_EQ(settings_of({{"NVSHMEM_REMOTE_TRANSPORT", "none"}}).transport_between,
            "shm,cuda_p2p,staged");
}

TEST(NvshmemVariables, IbrcAndIbdevxAreVerbsWithTheirInterface) {
  for (const char* theirs : {"ibdevx", "IBDEVX"}) {
    const Settings settings = settings_of({{"NVSHMEM_REMOTE_TRANSPORT", theirs}});
    EXPECT_EQ(settings.transport_between, "verbs,network");
    EXPECT_EQ(settings.verbs_interface, "devx");
    EXPECT_TRUE(warnings_of({{"NVSHMEM_REMOTE_TRANSPORT", theirs}}).empty());
  }
  for (const char* theirs : {"ibrc", "ucx", "libfabric", "none"})
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

// Kernels that drive NICs need queues made by device commands.
TEST(NvshmemVariables, IbgdaLetsKernelsDriveNics) {
  for (const auto& [name, value] :
       Variables{{"NVSHMEM_IB_ENABLE_IBGDA", "true"}, {"NVSHMEM_REMOTE_TRANSPORT", "ibgda"}}) {
    const Settings settings = settings_of({{name, value}});
    EXPECT_EQ(settings.gda, "automatic") << name;
    EXPECT_EQ(settings.verbs_interface, "devx") << name;
    EXPECT_TRUE(warnings_of({{name, value}}).empty()) << name;
  }
  // It comes on top of the host's transport.
  const Settings both =
      settings_of({{"NVSHMEM_IB_ENABLE_IBGDA", "1"}, {"NVSHMEM_REMOTE_TRANSPORT", "ibrc"}});
  EXPECT_EQ(both.gda, "automatic");
  EXPECT_EQ(both.verbs_interface, "devx");
  EXPECT_EQ(settings_of({{"NVSHMEM_IB_ENABLE_IBGDA", "1"}, {"NVSHMEM_REMOTE_TRANSPORT", "none"}})
                .transport_between,
            "verbs,network");
  EXPECT_EQ(settings_of({{"NVSHMEM_IB_ENABLE_IBGDA", "0"}}).gda, "off");
  EXPECT_EQ(settings_of({{"NVSHMEM_IB_ENABLE_IBGDA", "0"}}).verbs_interface, "verbs");
  const Variables off = {{"NVSHMEM_IB_ENABLE_IBGDA", "1"}, {"SHOAL_GDA", "off"}};
  EXPECT_EQ(settings_of(off).gda, "off");
  EXPECT_EQ(settings_of(off).verbs_interface, "verbs");
  EXPECT_EQ(warnings_of(off),
            std::vector<std::string>{"NVSHMEM_IB_ENABLE_IBGDA: SHOAL_GDA is set as well"});
}

TEST(NvshmemVariables, VariablesWithAnEquivalentAreActedUpon) {
  const Variables all = {{"NVSHMEM_QP_DEPTH", "1024"},    {"NVSHMEM_IBGDA_NUM_RC_PER_PE", "24"},
                         {"NVSHMEM_DISABLE_P2P", "1"},    {"NVSHMEM_DISABLE_CUDA_VMM", "1"},
                         {"NVSHMEM_DISABLE_NCCL", "1"},   {"NVSHMEM_IB_DISABLE_DMABUF", "1"},
                         {"NVSHMEM_HEAP_KIND", "SYSMEM"}, {"NVSHMEM_NVTX", "off"},
                         {"NVSHMEM_IB_ENABLE_IBGDA", "1"}};
  const Settings settings = settings_of(all);
  EXPECT_NO_THROW(settings.validate());
  EXPECT_EQ(settings.verbs_depth, 1024);
  EXPECT_EQ(settings.gda_queue_pairs, 24);
  EXPECT_EQ(settings.transport_inside, "network,shm,staged");
  EXPECT_EQ(settings.cuda_handle, "ipc");
  EXPECT_EQ(settings.collective_nccl, "off");
  EXPECT_EQ(settings.verbs_gpu_memory, "peermem");
  EXPECT_EQ(settings.heap, "host");
  EXPECT_EQ(settings.nvtx, "off");
  EXPECT_EQ(warnings_of(all), std::vector<std::string>{});
  for (const EnvironmentVariable& variable : inspect_environment(all)) {
    EXPECT_EQ(variable.use, VariableUse::used) << variable.name;
    EXPECT_NE(variable.setting, "") << variable.name;
  }
}

TEST(NvshmemVariables, BooleansThatAreFalseLeaveTheDefault) {
  const Settings defaults;
  for (const SettingInfo& info : settings_table())
    for (const std::string_view alias : nvshmem::aliases_of(info)) {
      if (!alias.starts_with("NVSHMEM_DISABLE_") && !alias.starts_with("NVSHMEM_IB_DISABLE_"))
        continue;
      const Variables no = {{std::string(alias), "no"}};
      EXPECT_EQ(format_value(info, settings_of(no)), format_value(info, defaults)) << alias;
      EXPECT_TRUE(warnings_of(no).empty()) << alias;
    }
}

TEST(NvshmemVariables, NumbersThatShoalLacks) {
  EXPECT_EQ(settings_of({{"NVSHMEM_QP_DEPTH", "100000"}}).verbs_depth, 32'768);
  EXPECT_EQ(warnings_of({{"NVSHMEM_QP_DEPTH", "100000"}}).size(), 1U);
  EXPECT_EQ(settings_of({{"NVSHMEM_IBGDA_NUM_RC_PER_PE", "0"}}).gda_queue_pairs, 0);
  EXPECT_EQ(warnings_of({{"NVSHMEM_IBGDA_NUM_RC_PER_PE", "0"}}).size(), 1U);  // DC
}

TEST(NvshmemVariables, OneKindOfHandle) {
  const Variables both = {{"NVSHMEM_DISABLE_CUDA_VMM", "1"},
                          {"NVSHMEM_CUMEM_HANDLE_TYPE", "FABRIC"}};
  EXPECT_EQ(settings_of(both).cuda_handle, "ipc");
  EXPECT_EQ(warnings_of(both).size(), 1U);
  EXPECT_EQ(settings_of({{"NVSHMEM_DISABLE_MNNVL", "1"}}).cuda_handle, "fd");
}

// Every job of DeepEP sets NVSHMEM_DISABLE_NVLS=1.
TEST(NvshmemVariables, WhatShoalDoesAnywayIsNoWarning) {
  for (const char* name : {"NVSHMEM_DISABLE_NVLS", "NVSHMEM_ENABLE_ERROR_CHECKS"}) {
    EXPECT_TRUE(warnings_of({{name, "1"}}).empty()) << name;
    EXPECT_EQ(inspect_environment(Variables{{name, "1"}})[0].use, VariableUse::used) << name;
    EXPECT_EQ(warnings_of({{name, "0"}}).size(), 1U) << name;
  }
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

// NVSHMEM's default bootstrap is PMI, of the kind that the variable names.
TEST(NvshmemVariables, TheKindOfPmiCountsAlone) {
  const auto bootstrap = [](const char* kind, const char* launcher) {
    return settings_of({{"NVSHMEM_BOOTSTRAP_PMI", kind}, {launcher, "0"}}).bootstrap;
  };
  EXPECT_EQ(bootstrap("PMIX", "PMIX_RANK"), "pmix");
  EXPECT_EQ(bootstrap("PMI-2", "PMI_RANK"), "pmi2");
  EXPECT_EQ(bootstrap("PMI", "PMI_FD"), "pmi");
  // Outside such a launcher it makes a world of one PE, and shoal-run's worlds have its own.
  EXPECT_EQ(bootstrap("PMIX", "HOME"), "automatic");
  EXPECT_EQ(
      settings_of({{"NVSHMEM_BOOTSTRAP_PMI", "PMIX"}, {"PMIX_RANK", "0"}, {"SHOAL_N_PES", "2"}})
          .bootstrap,
      "automatic");
  EXPECT_TRUE(warnings_of({{"NVSHMEM_BOOTSTRAP_PMI", "PMIX"}}).empty());
  EXPECT_EQ(warnings_of({{"NVSHMEM_BOOTSTRAP", "MPI"}, {"NVSHMEM_BOOTSTRAP_PMI", "PMIX"}}),
            std::vector<std::string>{
                "NVSHMEM_BOOTSTRAP_PMI: \"PMIX\": NVSHMEM_BOOTSTRAP is \"MPI\", not PMI"});
  EXPECT_EQ(warnings_of({{"NVSHMEM_BOOTSTRAP_PMI", "PMI-3"}}).size(), 1U);
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
  const auto warnings = warnings_of({{"NVSHMEM_SRQ_DEPTH", "1024"},
                                     {"NVSHMEM_DISABLE_GDRCOPY", "1"},
                                     {"NVSHMEM_IBGDA_NUM_DCI", "1"},
                                     {"NVSHMEM_MAX_TEAMS", "64"},
                                     {"HOME", "/root"}});
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_EQ(warnings[0],
            "set for NVSHMEM, without effect on Shoal: NVSHMEM_DISABLE_GDRCOPY, "
            "NVSHMEM_IBGDA_NUM_DCI, NVSHMEM_SRQ_DEPTH");
}

TEST(Environment, MisspeltVariablesOfNvshmemGetTheNearestName) {
  const std::pair<const char*, const char*> slips[] = {
      {"NVSHMEM_IBGDA_QP_DEPTH", "NVSHMEM_QP_DEPTH"},
      {"NVSHMEM_DISABLE_P2", "NVSHMEM_DISABLE_P2P"},
      {"NVSHMEM_SYMETRIC_SIZE", "NVSHMEM_SYMMETRIC_SIZE"}};
  for (const auto& [name, meant] : slips)
    EXPECT_EQ(warnings_of({{name, "1"}}),
              std::vector<std::string>{
                  fmt::format("{}: not a variable of NVSHMEM; did you mean {}?", name, meant)});
  EXPECT_EQ(
      warnings_of({{"NVSHMEM_ENTIRELY_DIFFERENT_THING", "1"}}),
      std::vector<std::string>{"NVSHMEM_ENTIRELY_DIFFERENT_THING: not a variable of NVSHMEM"});
}

TEST(Environment, VariablesOfDeepEpAreAnswered) {
  const Variables set = {
      {"EP_NIC_NAME", "mlx5_0"},      {"EP_DISABLE_GIN", "1"},        {"EP_JIT_CACHE_DIR", "/tmp"},
      {"NUM_MAX_RDMA_PEERS", "20"},   {"DISABLE_SM90_FEATURES", "1"}, {"EP_NUM_TOPK_IDX_BIT", "32"},
      {"DEEPEP_SOMETHING_ELSE", "1"}, {"DEEP_EP_BACKEND", "hip"},     {"EPOCH", "1"}};
  const auto variables = inspect_environment(set);
  EXPECT_EQ(variables.size(), set.size() - 1);
  for (const EnvironmentVariable& variable : variables) {
    const bool used = variable.name == "EP_NIC_NAME" || variable.name == "EP_DISABLE_GIN";
    EXPECT_EQ(variable.use == VariableUse::used, used) << variable.name;
    EXPECT_EQ(variable.note.empty(), used) << variable.name;
  }
  EXPECT_EQ(environment_warnings(variables),
            (std::vector<std::string>{
                "DEEPEP_SOMETHING_ELSE: not a variable of DeepEP",
                "EP_NUM_TOPK_IDX_BIT: not a variable of DeepEP; did you mean EP_NUM_TOPK_IDX_BITS?",
                "set for DeepEP, without effect on Shoal: DEEP_EP_BACKEND, DISABLE_SM90_FEATURES, "
                "EP_JIT_CACHE_DIR, NUM_MAX_RDMA_PEERS (shoal-info --doctor has reasons)"}));
}

TEST(Environment, MisspeltSettingsGetTheNearestName) {
  auto warnings = warnings_of({{"SHOAL_TIMEOUT", "5"}});
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_EQ(warnings[0],
            "SHOAL_TIMEOUT: Shoal has no such setting; did you mean SHOAL_TIMEOUT_MS?");
  warnings = warnings_of({{"SHOAL_SYMETRIC_SIZE", "1G"}});
  ASSERT_EQ(warnings.size(), 1U);
  test::expect_parts(warnings[0], {"SHOAL_SYMMETRIC_SIZE?"});
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
  EXPECT_EQ(variables[1].use, VariableUse::used);
  EXPECT_EQ(variables[2].use, VariableUse::unknown);
  EXPECT_EQ(variables[3].use, VariableUse::used);
}

}  // namespace
}  // namespace shoal
