// shoal-run: starts a program as the PEs of one world on this machine.

#include <CLI/CLI.hpp>
#include <iostream>

#include "base/log.hpp"
#include "bootstrap/round.hpp"
#include "shoal/bootstrap.hpp"
#include "shoal_run_job.hpp"

namespace {

constexpr const char* kAbout =
    "shoal-run -n N [options] program [args...]: starts a program as the PEs of one world on this machine.\n"
    "Each PE finds SHOAL_PE, SHOAL_N_PES and SHOAL_UNIQUE_ID in its environment, which is otherwise that of shoal-run; "
    "its standard\n"
    "input is empty. SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 are passed on to all PEs.\n"
    "When a PE fails, the others have the grace period to end by themselves, then get SIGTERM, then SIGKILL.";
constexpr const char* kStatuses =
    "Exit status: that of the first PE that failed (128 + signal if it was killed), 124 after --timeout, 125 when "
    "shoal-run itself\n"
    "failed, 126 or 127 when the program could not be executed or found.\n"
    "Example: shoal-run -n 8 --nodes 2 ./program --its-own options";

struct CommandLine {
  shoal::run::JobOptions job;
  int nodes = 0;
  double timeout_s = 0;
  double grace_s = 2;
  bool no_label = false;
};

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

void complete(CommandLine& line, std::vector<std::string> rest) {
  if (!rest.empty() && rest.front() == "--") rest.erase(rest.begin());
  if (rest.empty()) throw CLI::ValidationError("program", "missing: shoal-run -n N program [args...]");
  if (rest.front().starts_with('-'))
    throw CLI::ValidationError(rest.front(), "not an option of shoal-run (see --help)");
  const int n = line.job.n_pes;
  if (line.nodes > 0 && n % line.nodes != 0)
    throw CLI::ValidationError("--nodes",
                               "is " + std::to_string(line.nodes) + ", which does not divide -n " + std::to_string(n));
  line.job.argv = std::move(rest);
  line.job.label = !line.no_label && n > 1;
  line.job.timeout = milliseconds(line.timeout_s);
  line.job.grace = milliseconds(line.grace_s);
}

int run(CommandLine& line) {
  shoal::Settings settings = shoal::Settings::from_environment();
  shoal::log::configure(settings);
  settings.socket_interface = "lo";
  const shoal::UniqueId id = shoal::UniqueId::create(settings);
  const int n = line.job.n_pes;
  line.job.env["SHOAL_N_PES"] = std::to_string(n);
  line.job.env["SHOAL_UNIQUE_ID"] = id.to_string();
  if (line.nodes > 0) line.job.env["SHOAL_NODE_SIZE"] = std::to_string(n / line.nodes);
  return shoal::run::Job(line.job).run();
}

}  // namespace

int main(int argc, char** argv) {
  CommandLine line;
  CLI::App app(kAbout, "shoal-run");
  app.footer(kStatuses);
  app.add_option("-n", line.job.n_pes, "Number of PEs")->required()->check(CLI::Range(1, 100'000))->type_name("N");
  app.add_option("--nodes", line.nodes, "Emulate K nodes of N / K PEs each (sets SHOAL_NODE_SIZE)")
      ->check(CLI::Range(1, 100'000))
      ->type_name("K");
  app.add_option("--timeout", line.timeout_s, "End the job after this many seconds; 0, the default: never")
      ->check(CLI::Range(0.0, 1e6))
      ->type_name("S");
  app.add_option("--grace", line.grace_s,
                 "Seconds for the others after a failure, and between SIGTERM and SIGKILL; default 2")
      ->check(CLI::Range(0.0, 1e6))
      ->type_name("S");
  app.add_flag("--no-label", line.no_label, "Do not put \"[PE] \" before each line of output");
  app.prefix_command();
  try {
    app.parse(argc, argv);
    complete(line, app.remaining());
    return run(line);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : shoal::run::kStatusLauncherFailed;
  } catch (const std::exception& error) {
    std::cerr << "shoal-run: " << shoal::bootstrap::plain(error.what()) << std::endl;
    return shoal::run::kStatusLauncherFailed;
  }
}
