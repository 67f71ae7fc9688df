// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/launcher/launcher.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/check.hpp"
#include "bootstrap/round.hpp"
#include "bootstrap/tcp/socket.hpp"
#include "bootstrap/wire.hpp"

namespace shoal::bootstrap {
namespace {

using Variables = std::map<std::string, std::string>;

/// Slurm numbers job steps from 0. The batch script and interactive shells have numbers from here.
constexpr std::int64_t kFirstSpecialStep = 4294967280;

bool has(const Variables& variables, const std::string& name) {
  const auto found = variables.find(name);
  return found != variables.end() && !found->second.empty();
}

std::int64_t number(const Variables& variables, const std::string& name, std::int64_t most) {
  const std::string& text = variables.at(name);
  std::int64_t value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  require(error == std::errc{} && end == text.data() + text.size() && value >= 0 && value <= most,
          Code::invalid_argument,
          "SHOAL-N111: {} is \"{}\"; allowed: an integer from 0 to {}. A launcher sets it; "
          "SHOAL_BOOTSTRAP=single or uid does not look at launchers",
          name, text, most);
  return value;
}

/// A launcher that sets the rank and the size in two variables.
Launcher ranked(const Variables& variables, std::string name, const std::string& rank,
                const std::string& size, std::vector<std::string> bootstraps) {
  Launcher launcher{
      std::move(name), {}, -1, number(variables, size, kMaxPes), std::move(bootstraps)};
  require(launcher.n_pes >= 1, Code::invalid_argument, "SHOAL-N111: {} is 0; allowed: 1 to {}",
          size, kMaxPes);
  launcher.pe = number(variables, rank, launcher.n_pes - 1);
  launcher.why = fmt::format("{}={}, {}={}", rank, launcher.pe, size, launcher.n_pes);
  return launcher;
}

bool torch_variables(const Variables& variables) {
  return has(variables, "RANK") && has(variables, "WORLD_SIZE") && has(variables, "MASTER_ADDR") &&
         has(variables, "MASTER_PORT");
}

Launcher torch_launcher(const Variables& variables) {
  const bool elastic = has(variables, "TORCHELASTIC_RUN_ID");
  Launcher launcher =
      ranked(variables, elastic ? "torchrun" : "torch variables", "RANK", "WORLD_SIZE", {"torch"});
  launcher.why += fmt::format(", MASTER_ADDR={}", variables.at("MASTER_ADDR"));
  return launcher;
}

bool slurm_task(const Variables& variables) {
  return has(variables, "SLURM_STEP_ID") && has(variables, "SLURM_PROCID") &&
         has(variables, "SLURM_STEP_NUM_TASKS") &&
         number(variables, "SLURM_STEP_ID", std::int64_t{1} << 32) < kFirstSpecialStep;
}

}  // namespace

Launcher detect_launcher(const Variables& variables) {
  const auto set = [&](const char* name) { return has(variables, name); };
  // Each launcher can run inside those checked after it, and keeps their variables.
  if (set("TORCHELASTIC_RUN_ID") && torch_variables(variables)) return torch_launcher(variables);
  if (set("OMPI_COMM_WORLD_RANK") && set("OMPI_COMM_WORLD_SIZE"))
    return ranked(variables, "Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                  {"pmix", "mpi"});
  const bool wire = set("PMI_FD") && set("PMI_RANK") && set("PMI_SIZE");
  if (wire && (set("HYDI_CONTROL_FD") || !set("PMIX_NAMESPACE")))
    return ranked(variables,
                  set("HYDI_CONTROL_FD")  ? "Hydra"
                  : slurm_task(variables) ? "Slurm"
                                          : "PMI",
                  "PMI_RANK", "PMI_SIZE", {"pmi", "pmi2"});
  const bool slurm = slurm_task(variables);
  if (set("PMIX_NAMESPACE") && slurm)
    return ranked(variables, "Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", {"pmix", "pmi"});
  if (set("PMIX_NAMESPACE") && set("PMIX_RANK"))
    return {"PMIx",
            fmt::format("PMIX_NAMESPACE={}", variables.at("PMIX_NAMESPACE")),
            number(variables, "PMIX_RANK", kMaxPes),
            -1,
            {"pmix"}};
  if (slurm) return ranked(variables, "Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", {"pmi"});
  if (torch_variables(variables)) return torch_launcher(variables);
  return {{},
          "no variables of Open MPI, Hydra, PMIx, Slurm's srun, or torchrun (RANK, WORLD_SIZE, "
          "MASTER_ADDR, MASTER_PORT)",
          0,
          1,
          {"single"}};
}

std::string torch_session(const Variables& variables, std::uint64_t count) {
  const auto value = [&](const char* name) {
    return has(variables, name) ? variables.at(name) : std::string();
  };
  require(
      torch_variables(variables), Code::invalid_argument,
      "SHOAL-N112: SHOAL_BOOTSTRAP is torch but RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are "
      "not all set: start the program with torchrun, or set them on all PEs");
  std::uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  for (const char c :
       fmt::format("{}:{}:{}:{}:{}", value("MASTER_ADDR"), value("MASTER_PORT"),
                   value("TORCHELASTIC_RUN_ID"), value("TORCHELASTIC_RESTART_COUNT"), count))
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  constexpr std::uint64_t kFirst = 10'000, kPorts = 22'000;
  std::uint64_t port = kFirst + hash % kPorts;
  if (std::to_string(port) == value("MASTER_PORT"))
    port = port + 1 < kFirst + kPorts ? port + 1 : kFirst;
  return format_host_port(value("MASTER_ADDR"), static_cast<int>(port));
}

namespace {

bool named(const Settings& settings) {
  return !settings.unique_id.empty() || !settings.session_id.empty();
}

Choice single(std::string why) {
  return {{"single"}, 0, 1, std::move(why)};
}

/// The settings give the meeting point and the PE index; if they give no index, the launcher does.
Choice by_settings(const Settings& settings) {
  std::int64_t pe = settings.pe, n_pes = settings.n_pes;
  std::string why = fmt::format("SHOAL_N_PES={}", n_pes);
  if (pe == -1 || n_pes == -1) {
    const Launcher launcher = named(settings) ? detect_launcher(settings.launcher) : Launcher{};
    if (!launcher.name.empty()) {
      require(n_pes == -1 || launcher.n_pes == -1 || n_pes == launcher.n_pes,
              Code::invalid_argument,
              "SHOAL-N113: SHOAL_N_PES is {} but {} has started {} PEs ({})", n_pes, launcher.name,
              launcher.n_pes, launcher.why);
      pe = launcher.pe;
      n_pes = n_pes == -1 ? launcher.n_pes : n_pes;
      why = fmt::format("numbered by {} ({})", launcher.name, launcher.why);
    }
  }
  if (pe == -1 && n_pes == 1) pe = 0;
  require(n_pes != -1, Code::invalid_argument,
          "SHOAL-N114: {} but SHOAL_N_PES is not set: start the program with shoal-run, or set "
          "SHOAL_PE and SHOAL_N_PES",
          settings.bootstrap == "uid" ? "SHOAL_BOOTSTRAP is uid"
                                      : "SHOAL_UNIQUE_ID or SHOAL_SESSION_ID is set");
  require(pe >= 0 && pe < n_pes, Code::invalid_argument,
          "SHOAL-N115: SHOAL_PE is {} with SHOAL_N_PES {}; allowed: 0 to {}",
          pe == -1 ? "not set" : std::to_string(pe), n_pes, n_pes - 1);
  if (n_pes == 1 && !named(settings)) return single(why);
  require(
      named(settings), Code::invalid_argument,
      "SHOAL-N114: SHOAL_N_PES is {} but neither SHOAL_UNIQUE_ID nor SHOAL_SESSION_ID is set, so "
      "PE {} cannot find the others: start the program with shoal-run, or set one of the two on "
      "all PEs",
      n_pes, pe);
  return {{settings.unique_id.empty() ? "session" : "uid"}, pe, n_pes, why};
}

/// The variable that sets SHOAL_BOOTSTRAP: a name of NVSHMEM where the program has one.
std::string bootstrap_variable() {
  for (const EnvironmentVariable& variable : inspect_environment())
    if (variable.use == VariableUse::used && variable.setting == "SHOAL_BOOTSTRAP")
      return variable.name;
  return "SHOAL_BOOTSTRAP";
}

/// The plug-in that SHOAL_BOOTSTRAP names.
Choice plugin_of(const Settings& settings) {
  constexpr std::string_view kNames[] = {"mpi", "shmem", "pmi", "pmi2", "pmix", "plugin"};
  require(std::ranges::find(kNames, settings.bootstrap) != std::end(kNames) ||
              settings.bootstrap.starts_with("plugin:"),
          Code::invalid_argument,
          "SHOAL-N116: {} is \"{}\"; allowed: automatic, uid, single, torch, plugin:FILE, {}",
          bootstrap_variable(), settings.bootstrap, fmt::join(kNames, ", "));
  require(
      settings.n_pes == -1 && settings.pe == -1, Code::invalid_argument,
      "SHOAL-N117: {} is {}, which numbers the PEs itself, but SHOAL_PE or SHOAL_N_PES is set too, "
      "as shoal-run does: unset {} or those two",
      bootstrap_variable(), settings.bootstrap, bootstrap_variable());
  std::string name = settings.bootstrap;
  if (name == "plugin") {
    require(!settings.bootstrap_plugin.empty(), Code::invalid_argument,
            "SHOAL-N116: {} is plugin but SHOAL_BOOTSTRAP_PLUGIN does not name a file",
            bootstrap_variable());
    name = "plugin:" + settings.bootstrap_plugin;
  }
  return {{name}, -1, -1, fmt::format("SHOAL_BOOTSTRAP={}", settings.bootstrap)};
}

}  // namespace

Choice choose_bootstrap(const Settings& settings) {
  const std::string& asked = settings.bootstrap;
  const std::int64_t pe = settings.pe, n_pes = settings.n_pes;
  require(n_pes == -1 || (n_pes >= 1 && n_pes <= kMaxPes), Code::invalid_argument,
          "SHOAL-N115: SHOAL_N_PES is {}; allowed: 1 to {}", n_pes, kMaxPes);
  require(
      n_pes != -1 || pe <= 0 || asked != "automatic" || named(settings), Code::invalid_argument,
      "SHOAL-N114: SHOAL_PE is {} but SHOAL_N_PES is not set: start the program with shoal-run, or "
      "set SHOAL_N_PES to the number of PEs",
      pe);
  if (asked == "single") {
    require(n_pes <= 1, Code::invalid_argument,
            "SHOAL-N118: SHOAL_BOOTSTRAP is single but SHOAL_N_PES is {}; allowed: 1, or unset",
            n_pes);
    require(pe <= 0, Code::invalid_argument,
            "SHOAL-N118: SHOAL_BOOTSTRAP is single but SHOAL_PE is {}; allowed: 0, or unset", pe);
    return single("SHOAL_BOOTSTRAP=single");
  }
  if (asked == "uid" || (asked == "automatic" && (n_pes != -1 || named(settings))))
    return by_settings(settings);
  if (asked == "torch") {
    torch_session(settings.launcher, 0);  // says what is missing
    const Launcher launcher = torch_launcher(settings.launcher);
    return {{"torch"}, launcher.pe, launcher.n_pes, "SHOAL_BOOTSTRAP=torch"};
  }
  if (asked != "automatic") return plugin_of(settings);
  const Launcher launcher = detect_launcher(settings.launcher);
  const std::string why =
      launcher.name.empty() ? launcher.why : fmt::format("{} ({})", launcher.name, launcher.why);
  if (launcher.n_pes == 1) return single(why);
  return {launcher.bootstraps, launcher.pe, launcher.n_pes, why};
}

std::string describe_launcher(const Settings& settings) {
  try {
    const Choice choice = choose_bootstrap(settings);
    return fmt::format("{}: bootstrap {}", choice.why, fmt::join(choice.bootstraps, ", else "));
  } catch (const Error& error) {
    return reason_of(error);
  }
}

}  // namespace shoal::bootstrap
