// SPDX-License-Identifier: Apache-2.0
// shoal-run: starts a program as the PEs of one world, on this machine or, through a launcher, on
// several.

#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <set>
#include <sstream>

#include "base/check.hpp"
#include "base/log.hpp"
#include "command_line/command_line.hpp"
#include "run/cores.hpp"
#include "run/hosts.hpp"
#include "run/job.hpp"
#include "shoal/bootstrap.hpp"
#include "shoal/version.hpp"

namespace {

constexpr const char* kAbout =
    "Runs a program as the PEs of one Shoal world.\n"
    "  shoal-run -n N [options] program [args...]         N processes on this machine\n"
    "  shoal-run --hosts a:2,b:2 [options] program ...    several hosts, by mpirun or srun\n"
    "\n"
    "Each PE gets the environment of shoal-run and the variables SHOAL_PE, SHOAL_N_PES and\n"
    "SHOAL_UNIQUE_ID. PE 0 reads the standard input of shoal-run; that of the other PEs is empty.\n"
    "With --hosts, the launcher reads it. shoal-run forwards SIGINT, SIGTERM, SIGHUP, SIGUSR1 and\n"
    "SIGUSR2 to all PEs.\n"
    "When a PE fails, the other PEs have the grace period to end. Then they receive SIGTERM\n"
    "and, after another grace period, SIGKILL. Children of a PE end with it. All PEs and their\n"
    "children end if shoal-run is killed; only a process that calls setsid leaves the job.";
constexpr const char* kStatuses =
    "Exit status: 0 if all PEs succeeded, else the status of the first PE that failed (128 +\n"
    "signal if a signal killed it); 124 after --timeout; 125 if shoal-run itself failed or could\n"
    "not write the PEs' output; 126 if the program could not be executed, 127 if not found.\n"
    "Example: shoal-run -n 8 --nodes 2 ./program --option-of-program";

struct CommandLine {
  shoal::run::JobOptions job;
  int n_pes = 0;
  std::string hosts;
  std::string launcher = "automatic";
  std::string launcher_args;
  bool dry_run = false;
  std::string bind = "none";
  int nodes = 0;
  double timeout_s = 0;
  double grace_s = 2;
  bool no_label = false;
};

/// Rounded up: 0 means no limit.
std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::ceil<std::chrono::milliseconds>(std::chrono::duration<double>(seconds));
}

/// The arguments with "-np", which mpirun and oshrun have, as "-n". CLI11 reads "-np" as -n with
/// the value "p". Arguments of the program stay as they are.
std::vector<std::string> arguments_of(int argc, char** argv, CLI::App& app) {
  std::vector<std::string> arguments(argv + 1, argv + argc);
  for (std::size_t i = 0; i < arguments.size() && arguments[i].starts_with('-'); ++i) {
    if (arguments[i] == "--") break;
    if (arguments[i] == "-np") arguments[i] = "-n";
    const CLI::Option* const option = app.get_option_no_throw(arguments[i]);
    if (option != nullptr && option->get_items_expected_max() > 0) ++i;
  }
  return arguments;
}

void complete(CommandLine& line, CLI::App& app, std::vector<std::string> rest) {
  if (!rest.empty() && rest.front() == "--") rest.erase(rest.begin());
  if (rest.empty())
    throw CLI::ValidationError("program", "missing: shoal-run -n N program [args...]");
  if (rest.front().starts_with('-'))
    throw CLI::ValidationError(shoal::tools::unknown_option(app, rest.front()));
  const int n = line.n_pes;
  line.job.n_pes = n;
  if (line.hosts.empty() && n == 0) throw CLI::RequiredError("-n");
  if (line.hosts.empty() &&
      (line.launcher != "automatic" || !line.launcher_args.empty() || line.dry_run))
    throw CLI::ValidationError("--launcher, --launcher-args, --dry-run", "are for --hosts");
  if (!line.hosts.empty() && line.nodes > 0)
    throw CLI::ValidationError("--nodes", "emulates hosts; --hosts has real ones");
  if (!line.hosts.empty() && line.bind != "none")
    throw CLI::ValidationError("--bind",
                               "is for PEs on this machine; with --hosts use the options "
                               "of the launcher, such as --launcher-args '--bind-to core'");
  if (line.nodes > 0 && n % line.nodes != 0)
    throw CLI::ValidationError("--nodes", "is " + std::to_string(line.nodes) +
                                              ", which does not divide -n " + std::to_string(n));
  line.job.argv = std::move(rest);
  line.job.label = !line.no_label && n > 1;
  line.job.timeout = milliseconds(line.timeout_s);
  line.job.grace = milliseconds(line.grace_s);
}

/// Opens the standard files that the caller has closed, so that no other file takes their place.
/// Reading and writing them still fails.
void hold_standard_files() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (fcntl(fd, F_GETFD) < 0) [[maybe_unused]]
      const int opened = open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

/// The exit status after a text for standard output: 0 if it was written.
int written() {
  errno = 0;
  std::cout.flush();
  if (std::cout.good()) return 0;
  std::cerr << "shoal-run: cannot write to standard output"
            << (errno != 0 ? ": " + shoal::errno_text(errno) : std::string()) << std::endl;
  return shoal::run::kStatusLauncherFailed;
}

int run_here(CommandLine& line, shoal::Settings settings, const shoal::run::Keeper& keeper) {
  if (settings.socket_interface.empty()) settings.socket_interface = "lo";
  const shoal::UniqueId id = shoal::UniqueId::create(settings);
  const int n = line.job.n_pes;
  line.job.env["SHOAL_N_PES"] = std::to_string(n);
  line.job.env["SHOAL_UNIQUE_ID"] = id.to_string();
  if (line.nodes > 0) line.job.env["SHOAL_NODE_SIZE"] = std::to_string(n / line.nodes);
  if (line.bind == "core")
    line.job.processors = shoal::run::share_cores(shoal::run::available_processors(), n);
  return shoal::run::Job(line.job, keeper).run();
}

/// Names of the settings in the environment, for the launcher to pass on to the PEs. SHOAL_PE is
/// not among them: the launcher numbers the PEs.
std::vector<std::string> names_to_pass() {
  unsetenv("SHOAL_PE");
  std::set<std::string> names = {"SHOAL_N_PES", "SHOAL_UNIQUE_ID"};
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    if (text.starts_with("SHOAL_") || text.starts_with("NVSHMEM_"))
      names.emplace(text.substr(0, text.find('=')));
  }
  return {names.begin(), names.end()};
}

/// The root runs in this process. The PEs get its address and key in their environment, not on a
/// command line, which every user of the machine can read.
int run_on_hosts(CommandLine& line, const shoal::Settings& settings,
                 const shoal::run::Keeper& keeper) {
  const auto hosts = shoal::run::parse_hosts(line.hosts);
  const int n = shoal::run::count_pes(hosts);
  shoal::require(line.job.n_pes == 0 || line.job.n_pes == n, shoal::Code::invalid_argument,
                 "-n is {} but --hosts {} has {} PEs; leave -n out", line.job.n_pes, line.hosts, n);
  const auto launcher =
      shoal::run::Launcher::find(line.launcher, settings.launcher.contains("SLURM_JOB_ID"));
  std::istringstream words(line.launcher_args);
  const std::vector<std::string> extra{std::istream_iterator<std::string>(words), {}};
  line.job.argv = compose(
      launcher, {hosts, names_to_pass(), extra, !line.no_label && n > 1, std::move(line.job.argv)});
  if (line.dry_run) {
    std::cout << "SHOAL_N_PES=" << n << " SHOAL_UNIQUE_ID=... " << shoal::run::quoted(line.job.argv)
              << std::endl;
    return written();
  }
  const shoal::UniqueId id = shoal::UniqueId::create(settings);
  const bool only_here = id.host.starts_with("127.") || id.host == "[::1]";
  char this_host[256] = "";
  gethostname(this_host, sizeof this_host - 1);
  shoal::require(!only_here || !shoal::run::any_remote(hosts, this_host), shoal::Code::unsupported,
                 "the PEs of --hosts {} are to meet at {}, which only this host reaches. Settings: "
                 "SHOAL_SOCKET_INTERFACE, SHOAL_SOCKET_FAMILY",
                 line.hosts, id.host);
  line.job.env["SHOAL_N_PES"] = std::to_string(n);
  line.job.env["SHOAL_UNIQUE_ID"] = id.to_string();
  line.job.n_pes = 1;
  line.job.launcher = true;
  line.job.label = false;
  return shoal::run::Job(line.job, keeper).run();
}

int run(CommandLine& line) {
  const shoal::Settings settings = shoal::Settings::from_environment();
  shoal::log::configure(settings);
  const shoal::run::Keeper keeper;  // before the thread of the bootstrap's root
  return line.hosts.empty() ? run_here(line, settings, keeper)
                            : run_on_hosts(line, settings, keeper);
}

}  // namespace

int main(int argc, char** argv) {
  hold_standard_files();
  CommandLine line;
  CLI::App app(kAbout, "shoal-run");
  app.footer(kStatuses);
  app.add_option("-n,--np", line.n_pes, "Number of PEs; also -np")
      ->check(CLI::Range(1, 100'000))
      ->type_name("N");
  app.add_option("--nodes", line.nodes, "Emulate K nodes of N / K PEs each (sets SHOAL_NODE_SIZE)")
      ->check(CLI::Range(1, 100'000))
      ->type_name("K");
  app.add_option("--hosts", line.hosts,
                 "Hosts with the number of PEs on each, such as a:2,b:2; a launcher starts the PEs")
      ->type_name("LIST");
  app.add_option(
         "--launcher", line.launcher,
         "With --hosts: mpirun (Open MPI, MPICH or Intel MPI), srun, or a path. Default: srun "
         "inside a Slurm job, otherwise mpirun if installed, otherwise srun")
      ->type_name("PROGRAM");
  app.add_option("--launcher-args", line.launcher_args,
                 "With --hosts: further arguments for the launcher, placed before the program")
      ->type_name("WORDS");
  app.add_flag("--dry-run", line.dry_run,
               "With --hosts: print the launcher's command and do not run it");
  app.add_option("--bind", line.bind,
                 "core: bind each PE, with all its threads, to an equal share of the cores that "
                 "shoal-run may use; at most one PE per core. none: the kernel places the threads. "
                 "Default: none")
      ->check(CLI::IsMember({"none", "core"}))
      ->type_name("WHAT");
  app.add_option("--timeout", line.timeout_s,
                 "End the job after this many seconds. Default: 0, no limit")
      ->check(shoal::tools::between(0.0, 1e6))
      ->type_name("S");
  app.add_option(
         "--grace", line.grace_s,
         "Seconds for the other PEs to end after a failure, and between SIGTERM and SIGKILL. "
         "Default: 2")
      ->check(shoal::tools::between(0.0, 1e6))
      ->type_name("S");
  app.add_flag("--no-label", line.no_label, "Do not put \"[PE] \" before each line of output");
  app.prefix_command();
  app.set_version_flag("--version", "shoal-run " SHOAL_VERSION);
  shoal::tools::finish(app);
  try {
    auto arguments = arguments_of(argc, argv, app);
    std::ranges::reverse(arguments);  // the order that CLI11 expects
    app.parse(std::move(arguments));
    complete(line, app, app.remaining());
    return run(line);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? written() : shoal::run::kStatusLauncherFailed;
  } catch (const std::exception& error) {
    std::cerr << "shoal-run: " << shoal::reason_of(error) << std::endl;
    return shoal::run::kStatusLauncherFailed;
  }
}
