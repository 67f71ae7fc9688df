// SPDX-License-Identifier: Apache-2.0
#include "run/hosts.hpp"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <filesystem>

#include "base/check.hpp"

namespace shoal::run {
namespace {

constexpr int kMaxSlots = 100'000;

HostSlots parse_host(std::string_view item, std::string_view all) {
  const std::size_t bracket = item.starts_with('[') ? item.find(']') : 0;
  const std::size_t colon = bracket == std::string_view::npos ? bracket : item.find(':', bracket);
  HostSlots host{std::string(item.substr(0, colon)), 1};
  bool good = !host.host.empty() && bracket != std::string_view::npos &&
              host.host.find_first_of(" \t@") == std::string::npos && !host.host.starts_with('-');
  if (colon != std::string_view::npos) {
    const std::string_view number = item.substr(colon + 1);
    const auto [end, error] =
        std::from_chars(number.data(), number.data() + number.size(), host.slots);
    good = good && error == std::errc{} && end == number.data() + number.size();
  }
  require(good && host.slots >= 1 && host.slots <= kMaxSlots, Code::invalid_argument,
          "--hosts is \"{}\"; allowed: a comma list of host or host:n, n PEs from 1 to {}, such as "
          "node1:2,node2:2",
          all, kMaxSlots);
  return host;
}

bool installed(const std::string& program) {
  if (program.find('/') != std::string::npos) return access(program.c_str(), X_OK) == 0;
  const char* const path = std::getenv("PATH");
  std::string_view left = path != nullptr ? path : "/usr/bin:/bin";
  while (!left.empty()) {
    const std::size_t end = std::min(left.find(':'), left.size());
    const std::string file = std::string(left.substr(0, end)) + "/" + program;
    if (access(file.c_str(), X_OK) == 0) return true;
    left.remove_prefix(std::min(end + 1, left.size()));
  }
  return false;
}

/// Standard output and error of "program --version", which is killed after ten seconds.
std::string version_of(const std::string& program) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) fail_errno("shoal-run could not create a pipe");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  std::string name = program, option = "--version";
  char* const argv[] = {name.data(), option.data(), nullptr};
  pid_t pid = -1;
  const int error = posix_spawnp(&pid, program.c_str(), &actions, nullptr, argv, environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  std::string text;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  char buffer[4096];
  while (error == 0) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now())
            .count();
    pollfd entry{ends[0], POLLIN, 0};
    if (left <= 0 || poll(&entry, 1, static_cast<int>(left)) <= 0) break;
    const ssize_t count = read(ends[0], buffer, sizeof buffer);
    if (count <= 0) break;
    text.append(buffer, static_cast<std::size_t>(count));
  }
  close(ends[0]);
  if (error == 0) {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
  return text;
}

std::string list_of(const std::vector<HostSlots>& hosts) {
  std::vector<std::string> items;
  for (const HostSlots& host : hosts) items.push_back(fmt::format("{}:{}", host.host, host.slots));
  return fmt::format("{}", fmt::join(items, ","));
}

std::vector<std::string> open_mpi(const HostsOptions& options) {
  std::vector<std::string> command = {"--host", list_of(options.hosts), "-np",
                                      std::to_string(count_pes(options.hosts))};
  if (options.label) command.emplace_back("--tag-output");
  for (const std::string& name : options.names) command.insert(command.end(), {"-x", name});
  return command;
}

/// Hydra passes the whole environment on.
std::vector<std::string> hydra(const HostsOptions& options) {
  std::vector<std::string> command = {"-hosts", list_of(options.hosts), "-n",
                                      std::to_string(count_pes(options.hosts))};
  if (options.label) command.emplace_back("-prepend-rank");
  return command;
}

/// The node list names a node once per task, and the distribution "arbitrary" follows the list.
std::vector<std::string> srun(const HostsOptions& options) {
  std::vector<std::string> tasks;
  for (const HostSlots& host : options.hosts)
    tasks.insert(tasks.end(), static_cast<std::size_t>(host.slots), host.host);
  std::vector<std::string> unique = tasks;
  std::ranges::sort(unique);
  unique.erase(std::unique(unique.begin(), unique.end()), unique.end());
  std::vector<std::string> command = {fmt::format("--nodes={}", unique.size()),
                                      fmt::format("--ntasks={}", tasks.size()),
                                      "--distribution=arbitrary",
                                      fmt::format("--nodelist={}", fmt::join(tasks, ",")),
                                      "--export=ALL",
                                      "--kill-on-bad-exit=1"};
  if (options.label) command.emplace_back("--label");
  return command;
}

}  // namespace

std::vector<HostSlots> parse_hosts(std::string_view text) {
  std::vector<HostSlots> hosts;
  for (std::string_view left = text;;) {
    const std::size_t comma = left.find(',');
    hosts.push_back(parse_host(left.substr(0, comma), text));
    if (comma == std::string_view::npos) return hosts;
    left.remove_prefix(comma + 1);
  }
}

int count_pes(const std::vector<HostSlots>& hosts) {
  int count = 0;
  for (const HostSlots& host : hosts) count += host.slots;
  return count;
}

bool any_remote(const std::vector<HostSlots>& hosts, std::string_view this_host) {
  return std::ranges::any_of(hosts, [&](const HostSlots& host) {
    return host.host != "localhost" && host.host != "[::1]" && !host.host.starts_with("127.") &&
           host.host != this_host;
  });
}

Launcher::Kind kind_of_version(const std::string& program, std::string_view text) {
  const auto says = [&](std::string_view part) {
    return text.find(part) != std::string_view::npos;
  };
  if (says("Open MPI") || says("OpenRTE")) return Launcher::Kind::open_mpi;
  if (says("HYDRA") || says("Intel(R) MPI")) return Launcher::Kind::hydra;
  if (text.starts_with("slurm")) return Launcher::Kind::srun;
  fail(Code::unsupported,
       "--launcher {} is of no known kind (\"{} --version\" says \"{}\"); known: mpirun of Open "
       "MPI, mpirun or mpiexec of Hydra (MPICH, Intel MPI), srun",
       program, program, text.substr(0, text.find('\n')));
}

Launcher Launcher::find(const std::string& asked, bool in_slurm_job) {
  std::string program = asked;
  if (asked == "automatic") {
    const std::vector<std::string> order = in_slurm_job
                                               ? std::vector<std::string>{"srun", "mpirun"}
                                               : std::vector<std::string>{"mpirun", "srun"};
    const auto found = std::ranges::find_if(order, installed);
    require(
        found != order.end(), Code::unsupported,
        "--hosts starts PEs through a launcher, and neither mpirun nor srun is installed: install "
        "Open MPI or MPICH, run inside Slurm, or name one with --launcher");
    program = *found;
  }
  require(installed(program), Code::unsupported, "--launcher {} is not installed, or not in PATH",
          program);
  return {program, kind_of_version(program, version_of(program))};
}

std::vector<std::string> compose(const Launcher& launcher, const HostsOptions& options) {
  std::vector<std::string> command = launcher.kind == Launcher::Kind::open_mpi ? open_mpi(options)
                                     : launcher.kind == Launcher::Kind::hydra  ? hydra(options)
                                                                               : srun(options);
  command.insert(command.begin(), launcher.program);
  command.insert(command.end(), options.launcher_args.begin(), options.launcher_args.end());
  command.insert(command.end(), options.argv.begin(), options.argv.end());
  return command;
}

std::string quoted(const std::vector<std::string>& argv) {
  std::string line;
  for (const std::string& word : argv) {
    const bool plain = !word.empty() && std::ranges::all_of(word, [](unsigned char c) {
      return std::isalnum(c) != 0 ||
             std::string_view("-_=+.,:/@%").find(static_cast<char>(c)) != std::string_view::npos;
    });
    std::string shown = word;
    if (!plain) {
      shown = "'";
      for (const char c : word) shown += c == '\'' ? std::string("'\\''") : std::string(1, c);
      shown += "'";
    }
    line += (line.empty() ? "" : " ") + shown;
  }
  return line;
}

}  // namespace shoal::run
