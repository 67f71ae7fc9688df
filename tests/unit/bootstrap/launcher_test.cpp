// SPDX-License-Identifier: Apache-2.0
// Detection of the launcher from environment variables, and the choice of the bootstrap. The
// environments are tables.
#include "bootstrap/launcher/launcher.hpp"

#include <gtest/gtest.h>

#include <set>

#include "support/expect_error.hpp"

namespace shoal::bootstrap {
namespace {

using Variables = std::map<std::string, std::string>;

Variables operator+(Variables a, const Variables& b) {
  a.insert(b.begin(), b.end());
  return a;
}

// Recorded from real launchers: Open MPI 4.1, MPICH 4.0 (Hydra), Slurm 22.05, torchrun 2.
const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "2"},
                            {"OMPI_COMM_WORLD_SIZE", "4"},
                            {"PMIX_NAMESPACE", "15"},
                            {"PMIX_RANK", "2"}};
const Variables kHydra = {
    {"PMI_FD", "6"}, {"PMI_RANK", "1"}, {"PMI_SIZE", "3"}, {"HYDI_CONTROL_FD", "7"}};
const Variables kSrun = {{"SLURM_JOB_ID", "9"},
                         {"SLURM_STEP_ID", "0"},
                         {"SLURM_PROCID", "5"},
                         {"SLURM_NTASKS", "8"},
                         {"SLURM_STEP_NUM_TASKS", "8"}};
const Variables kSrunPmi2 =
    kSrun + Variables{{"PMI_FD", "11"}, {"PMI_RANK", "5"}, {"PMI_SIZE", "8"}};
const Variables kSrunPmix =
    kSrun + Variables{{"PMIX_NAMESPACE", "slurm.pmix.3.0"}, {"PMIX_RANK", "5"}};
const Variables kBatchScript = {
    {"SLURM_JOB_ID", "9"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}};
const Variables kInteractive = {{"SLURM_JOB_ID", "9"},
                                {"SLURM_STEP_ID", "4294967290"},
                                {"SLURM_PROCID", "0"},
                                {"SLURM_STEP_NUM_TASKS", "1"}};
const Variables kTorch = {
    {"RANK", "3"}, {"WORLD_SIZE", "6"}, {"MASTER_ADDR", "n1"}, {"MASTER_PORT", "29500"}};
const Variables kTorchrun =
    kTorch + Variables{{"TORCHELASTIC_RUN_ID", "none"}, {"TORCHELASTIC_RESTART_COUNT", "0"}};

TEST(Launcher, IsTheInnermostOne) {
  const struct {
    const char* what;
    Variables variables;
    const char* name;
    std::int64_t pe, n_pes;
    std::vector<std::string> bootstraps;
  } cases[] = {
      {"nothing", {}, "", 0, 1, {"single"}},
      {"mpirun of Open MPI", kOpenMpi, "Open MPI", 2, 4, {"pmix", "mpi"}},
      {"Hydra", kHydra, "Hydra", 1, 3, {"pmi", "pmi2"}},
      {"srun, no PMI", kSrun, "Slurm", 5, 8, {"pmi"}},
      {"srun --mpi=pmi2", kSrunPmi2, "Slurm", 5, 8, {"pmi", "pmi2"}},
      {"srun --mpi=pmix", kSrunPmix, "Slurm", 5, 8, {"pmix", "pmi"}},
      {"batch script", kBatchScript, "", 0, 1, {"single"}},
      {"shell of salloc", kInteractive, "", 0, 1, {"single"}},
      {"another PMIx server",
       {{"PMIX_NAMESPACE", "a"}, {"PMIX_RANK", "7"}},
       "PMIx",
       7,
       -1,
       {"pmix"}},
      {"another PMI server",
       {{"PMI_FD", "6"}, {"PMI_RANK", "1"}, {"PMI_SIZE", "3"}},
       "PMI",
       1,
       3,
       {"pmi", "pmi2"}},
      {"torchrun", kTorchrun, "torchrun", 3, 6, {"torch"}},
      {"torch variables by hand", kTorch, "torch variables", 3, 6, {"torch"}},
      // Nested: the PEs of the inner launcher inherit the variables of the outer launcher.
      {"torchrun, itself started by srun", kTorchrun + kSrunPmix, "torchrun", 3, 6, {"torch"}},
      {"torchrun, itself started by mpirun", kTorchrun + kOpenMpi, "torchrun", 3, 6, {"torch"}},
      {"mpirun in a batch script", kOpenMpi + kBatchScript, "Open MPI", 2, 4, {"pmix", "mpi"}},
      {"mpirun in an srun task", kOpenMpi + kSrunPmi2, "Open MPI", 2, 4, {"pmix", "mpi"}},
      {"Hydra in a PMIx step", kHydra + kSrunPmix, "Hydra", 1, 3, {"pmi", "pmi2"}},
      {"Hydra in a batch script", kHydra + kBatchScript, "Hydra", 1, 3, {"pmi", "pmi2"}},
      {"srun, with the script's RANK and so on",
       kSrunPmix + kTorch,
       "Slurm",
       5,
       8,
       {"pmix", "pmi"}},
  };
  for (const auto& row : cases) {
    const Launcher launcher = detect_launcher(row.variables);
    EXPECT_EQ(launcher.name, row.name) << row.what;
    EXPECT_EQ(launcher.pe, row.pe) << row.what;
    EXPECT_EQ(launcher.n_pes, row.n_pes) << row.what;
    EXPECT_EQ(launcher.bootstraps, row.bootstraps) << row.what;
    EXPECT_FALSE(launcher.why.empty()) << row.what;
  }
}

TEST(Launcher, IncompleteVariablesAreNoLauncher) {
  for (const Variables& complete : {kHydra, kTorch, kOpenMpi})
    for (const auto& [name, value] : complete) {
      if (name == "HYDI_CONTROL_FD" || name.starts_with("PMIX_")) continue;
      Variables variables = complete;
      variables.erase("PMIX_NAMESPACE");
      variables.erase(name);
      EXPECT_EQ(detect_launcher(variables).name, "") << name;
      variables[name] = "";
      EXPECT_EQ(detect_launcher(variables).name, "") << name << " is empty";
    }
}

TEST(Launcher, BadNumbersAreNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {"RANK", "three"},   {"RANK", "6"},        {"RANK", "-1"},
      {"WORLD_SIZE", "0"}, {"WORLD_SIZE", "6x"}, {"WORLD_SIZE", "9999999"}};
  for (const auto& [name, value] : cases) {
    Variables variables = kTorchrun;
    variables[name] = value;
    test::expect_error(Code::invalid_argument, name, [&] { detect_launcher(variables); });
  }
}

Settings with(const Variables& variables) {
  Settings settings;
  settings.launcher = variables;
  return settings;
}

TEST(Choice, SettingsComeBeforeLaunchers) {
  Settings settings = with(kOpenMpi);
  EXPECT_EQ(choose_bootstrap(settings).bootstraps, (std::vector<std::string>{"pmix", "mpi"}));
  settings.unique_id = "shoal1:...";
  Choice choice = choose_bootstrap(settings);
  EXPECT_EQ(choice.bootstraps, std::vector<std::string>{"uid"})
      << "the launcher numbers, the id tells where";
  EXPECT_EQ(choice.pe, 2);
  EXPECT_EQ(choice.n_pes, 4);
  test::expect_parts(choice.why, {"Open MPI"});
  settings.pe = 1;
  settings.n_pes = 2;
  choice = choose_bootstrap(settings);
  EXPECT_EQ(choice.pe, 1) << "shoal-run inside mpirun";
  EXPECT_EQ(choice.n_pes, 2);
  settings.unique_id.clear();
  settings.session_id = "n1:7000";
  EXPECT_EQ(choose_bootstrap(settings).bootstraps, std::vector<std::string>{"session"});
}

TEST(Choice, SizesThatContradictEachOther) {
  Settings settings = with(kOpenMpi);
  settings.unique_id = "shoal1:...";
  settings.n_pes = 3;
  test::expect_error(Code::invalid_argument, "SHOAL_N_PES is 3 but Open MPI has started 4 PEs",
                     [&] { choose_bootstrap(settings); });
}

TEST(Choice, NamedBootstrapsAreNotSecondGuessed) {
  for (const char* name : {"mpi", "shmem", "pmi", "pmi2", "pmix", "plugin:/x/y.so"}) {
    Settings settings = with(kOpenMpi);
    settings.bootstrap = name;
    EXPECT_EQ(choose_bootstrap(settings).bootstraps, std::vector<std::string>{name});
    settings.n_pes = 4;
    settings.pe = 0;
    test::expect_error(Code::invalid_argument, "numbers the PEs itself",
                       [&] { choose_bootstrap(settings); });
  }
  setenv("NVSHMEM_BOOTSTRAP", "MPI", 1);
  test::expect_error(Code::invalid_argument, "NVSHMEM_BOOTSTRAP is mpi, which numbers the PEs", [] {
    Settings settings = with({});
    settings.bootstrap = "mpi";
    settings.n_pes = 2;
    settings.pe = 0;
    choose_bootstrap(settings);
  });
  unsetenv("NVSHMEM_BOOTSTRAP");
  Settings settings = with(kOpenMpi);
  settings.bootstrap = "single";
  EXPECT_EQ(choose_bootstrap(settings).bootstraps, std::vector<std::string>{"single"});
  settings.bootstrap = "torch";
  test::expect_error(Code::invalid_argument, "RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT",
                     [&] { choose_bootstrap(settings); });
  settings.bootstrap = "plugin";
  test::expect_error(Code::invalid_argument, "SHOAL_BOOTSTRAP_PLUGIN",
                     [&] { choose_bootstrap(settings); });
  settings.bootstrap_plugin = "x.so";
  EXPECT_EQ(choose_bootstrap(settings).bootstraps, std::vector<std::string>{"plugin:x.so"});
}

TEST(Choice, JobOfOneNeedsNoPlugin) {
  const Settings settings =
      with({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}, {"PMIX_NAMESPACE", "x"}});
  EXPECT_EQ(choose_bootstrap(settings).bootstraps, std::vector<std::string>{"single"});
}

TEST(Choice, IsDescribed) {
  EXPECT_EQ(describe_launcher(with(kHydra)),
            "Hydra (PMI_RANK=1, PMI_SIZE=3): bootstrap pmi, else pmi2");
  test::expect_parts(describe_launcher({}), {": bootstrap single"});
  Settings settings;
  settings.pe = 3;
  test::expect_parts(describe_launcher(settings), {"SHOAL_N_PES is not set"});
}

TEST(TorchSession, HasAPortOfItsOwnForEachWorldAndJob) {
  std::set<std::string> sessions;
  for (std::uint64_t world = 0; world < 4; ++world)
    sessions.insert(torch_session(kTorchrun, world));
  for (const auto& [name, value] : Variables{{"MASTER_PORT", "29501"},
                                             {"TORCHELASTIC_RESTART_COUNT", "1"},
                                             {"TORCHELASTIC_RUN_ID", "other"}}) {
    Variables variables = kTorchrun;
    variables[name] = value;
    sessions.insert(torch_session(variables, 0));
  }
  EXPECT_EQ(sessions.size(), 7u);
  Variables other_pe = kTorchrun;
  other_pe["RANK"] = "0";
  EXPECT_EQ(torch_session(other_pe, 2), torch_session(kTorchrun, 2)) << "the same on all PEs";
  for (const std::string& session : sessions) {
    ASSERT_TRUE(session.starts_with("n1:")) << session;
    const int port = std::stoi(session.substr(3));
    EXPECT_GE(port, 10'000);
    EXPECT_LT(port, 32'000);
  }
  Variables six = kTorchrun;
  six["MASTER_ADDR"] = "fd00::2";
  EXPECT_TRUE(torch_session(six, 0).starts_with("[fd00::2]:")) << torch_session(six, 0);
}

TEST(TorchSession, NeverTakesThePortOfTorchsStore) {
  for (int port = 10'000; port < 32'000; ++port) {
    Variables variables = kTorchrun;
    variables["MASTER_PORT"] = std::to_string(port);
    ASSERT_NE(torch_session(variables, 0), "n1:" + std::to_string(port));
  }
}

}  // namespace
}  // namespace shoal::bootstrap
