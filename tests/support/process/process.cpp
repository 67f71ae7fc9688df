// SPDX-License-Identifier: Apache-2.0
#include "support/process/process.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>

#include "base/process_environment.hpp"

namespace shoal::test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr Milliseconds kPoll{2};
constexpr std::string_view kBodyFlag = "--shoal-pe-body=";
constexpr std::string_view kArgumentFlag = "--shoal-pe-argument=";

int make_output() {
  const int fd = memfd_create("shoal-test-output", MFD_CLOEXEC);
  if (fd < 0) throw std::runtime_error("memfd_create failed");
  // Several processes write: Linux keeps no lock on the position of such a file, so that one write
  // could hide another.
  if (fcntl(fd, F_SETFL, O_APPEND) != 0) throw std::runtime_error("fcntl failed");
  return fd;
}

std::string contents(int fd) {
  std::string text;
  char buffer[4096];
  for (ssize_t n; (n = pread(fd, buffer, sizeof buffer, static_cast<off_t>(text.size()))) > 0;)
    text.append(buffer, static_cast<std::size_t>(n));
  return text;
}

// Runs in the child between fork and exec: only async-signal-safe calls.
[[noreturn]] void become(pid_t parent, int out, int err, char** argv, char** envp) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(126);
  dup2(out, STDOUT_FILENO);
  dup2(err, STDERR_FILENO);
  // A shell starts a background job with SIGINT ignored, nohup ignores SIGHUP, and standard input
  // may be closed. The child must not depend on that.
  for (const int signal : {SIGHUP, SIGINT, SIGQUIT, SIGPIPE, SIGCHLD}) ::signal(signal, SIG_DFL);
  const int nothing = open("/dev/null", O_RDONLY);
  if (nothing > STDIN_FILENO) {
    dup2(nothing, STDIN_FILENO);
    close(nothing);
  }
  execve(argv[0], argv, envp);
  _exit(127);
}

}  // namespace

std::string ProcessResult::describe() const {
  std::string how = timed_out     ? "ran past its limit and was killed"
                    : signal != 0 ? fmt::format("ended by signal {}", signal)
                                  : fmt::format("exited with status {}", exit_status);
  return fmt::format("{}\n--- standard output:\n{}\n--- standard error:\n{}", how, out, err);
}

Process::Process(const std::vector<std::string>& argv, const Environment& extra)
    : out_fd_(make_output()), err_fd_(make_output()) {
  std::vector<std::string> arguments = argv;
  std::vector<std::string> variables = environment_with(extra);
  std::vector<char*> argument_pointers = null_terminated(arguments);
  std::vector<char*> variable_pointers = null_terminated(variables);
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ < 0) throw std::runtime_error("fork failed");
  if (pid_ == 0)
    become(parent, out_fd_, err_fd_, argument_pointers.data(), variable_pointers.data());
  setpgid(pid_, pid_);  // also here, so that the group exists when the constructor returns
}

Process::Process(Process&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      out_fd_(std::exchange(other.out_fd_, -1)),
      err_fd_(std::exchange(other.err_fd_, -1)),
      reaped_(other.reaped_),
      timed_out_(other.timed_out_),
      status_(other.status_) {}

Process::~Process() {
  if (pid_ < 0) return;
  if (!reaped_) reap();
  close(out_fd_);
  close(err_fd_);
}

void Process::send(int signal) const {
  if (!reaped_) kill(pid_, signal);
}

std::string Process::out() const {
  return contents(out_fd_);
}
std::string Process::err() const {
  return contents(err_fd_);
}

bool Process::ended() {
  if (reaped_) return true;
  siginfo_t info{};
  if (waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
      info.si_pid == pid_)
    reap();
  return reaped_;
}

void Process::reap() {
  // Kills the group first: its number cannot be reused before its leader is reaped.
  kill(-pid_, SIGKILL);
  waitpid(pid_, &status_, 0);
  reaped_ = true;
}

bool Process::wait_for_output(std::string_view text, Milliseconds limit) {
  const Clock::time_point deadline = Clock::now() + limit;
  while (true) {
    const bool last_look = ended() || Clock::now() >= deadline;
    if (out().find(text) != std::string::npos || err().find(text) != std::string::npos) return true;
    if (last_look) return false;
    std::this_thread::sleep_for(kPoll);
  }
}

ProcessResult Process::wait(Milliseconds limit) {
  const Clock::time_point deadline = Clock::now() + limit;
  while (!ended() && Clock::now() < deadline) std::this_thread::sleep_for(kPoll);
  if (!reaped_) {
    reap();
    timed_out_ = true;
  }
  ProcessResult result{.timed_out = timed_out_, .out = out(), .err = err()};
  if (WIFEXITED(status_)) result.exit_status = WEXITSTATUS(status_);
  if (WIFSIGNALED(status_)) result.signal = WTERMSIG(status_);
  return result;
}

char process_state(pid_t pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string number, name;
  char state = 0;
  return stat >> number >> name >> state ? state : '\0';
}

ProcessResult run_program(const std::vector<std::string>& argv, const Environment& extra,
                          Milliseconds limit) {
  return Process(argv, extra).wait(limit);
}

PeGroup start_pes(int n, const std::string& body, const PeOptions& options) {
  Settings settings = Settings::from([&](const std::string& name) -> std::optional<std::string> {
    const auto found = options.env.find(name);
    return found == options.env.end() ? std::nullopt : std::optional(found->second);
  });
  if (settings.socket_interface.empty()) settings.socket_interface = "lo";
  PeGroup group{.id = UniqueId::create(settings), .pes = {}};
  Environment env = options.env;
  env["SHOAL_N_PES"] = std::to_string(n);
  env["SHOAL_UNIQUE_ID"] = group.id.to_string();
  for (int pe = 0; pe < n; ++pe) {
    env["SHOAL_PE"] = std::to_string(pe);
    group.pes.emplace_back(
        std::vector<std::string>{"/proc/self/exe", "--gtest_brief=1", "--gtest_filter=*",
                                 std::string(kBodyFlag) + body,
                                 std::string(kArgumentFlag) + options.argument},
        env);
  }
  return group;
}

std::vector<ProcessResult> wait_all(std::vector<Process>& processes, Milliseconds limit) {
  const Clock::time_point deadline = Clock::now() + limit;
  std::vector<ProcessResult> results;
  for (auto& process : processes) {
    const auto left = std::chrono::duration_cast<Milliseconds>(deadline - Clock::now());
    results.push_back(process.wait(std::max(left, Milliseconds(0))));
  }
  return results;
}

std::vector<ProcessResult> run_pes(int n, const std::string& body, const PeOptions& options) {
  PeGroup group = start_pes(n, body, options);
  return wait_all(group.pes, options.limit);
}

void expect_success(const std::vector<ProcessResult>& results) {
  for (std::size_t pe = 0; pe < results.size(); ++pe)
    EXPECT_TRUE(results[pe].ok()) << "PE " << pe << " of " << results.size() << " "
                                  << results[pe].describe();
}

namespace {

std::map<std::string, PeBody>& bodies() {
  static std::map<std::string, PeBody> known;
  return known;
}

/// The value of a hidden argument of this process. GoogleTest's main has consumed argv by the time
/// it is needed.
std::optional<std::string> hidden_argument(std::string_view flag) {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  for (std::string argument; std::getline(file, argument, '\0');)
    if (argument.starts_with(flag)) return argument.substr(flag.size());
  return std::nullopt;
}

/// Runs in place of the tests, in GoogleTest's set-up phase, when the process was started as a PE.
class BodyRunner : public ::testing::Environment {
 public:
  void SetUp() override {
    const auto name = hidden_argument(kBodyFlag);
    if (!name) return;
    try {
      const auto body = bodies().find(*name);
      if (body == bodies().end())
        throw std::runtime_error("this program has no PE body named " + *name);
      body->second(
          PeContext{Settings::from_environment(), hidden_argument(kArgumentFlag).value_or("")});
    } catch (const std::exception& error) {
      std::cerr << "the PE body threw: " << error.what() << std::endl;
      std::exit(1);
    }
    std::exit(::testing::UnitTest::GetInstance()->Failed() ? 1 : 0);
  }
};

}  // namespace

bool register_pe_body(const char* name, PeBody body) {
  if (bodies().empty()) ::testing::AddGlobalTestEnvironment(new BodyRunner);
  return bodies().emplace(name, body).second;
}

}  // namespace shoal::test
