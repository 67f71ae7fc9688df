// SPDX-License-Identifier: Apache-2.0
#include "run/job.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/check.hpp"
#include "base/process_environment.hpp"

namespace shoal::run {
namespace {

constexpr int kHandled[] = {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};

void say(const std::string& text) {
  write_all(STDERR_FILENO, "shoal-run: " + text + "\n");
}

bool is_ignored(int signal) {
  struct sigaction action{};
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

/// kHandled without the signals that shoal-run ignores because its parent does: SIGHUP under nohup,
/// SIGINT in a background job of a shell. A signal descriptor would receive them nevertheless.
sigset_t handled_set() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : kHandled)
    if (!is_ignored(signal)) sigaddset(&set, signal);
  return set;
}

struct Pipe {
  int read_end = -1;
  int write_end = -1;
  static Pipe open() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) fail_errno("shoal-run could not create a pipe");
    return {ends[0], ends[1]};
  }
};

struct Child {
  const Keeper* keeper;
  pid_t launcher;
  int out, err;                 ///< -1: those of shoal-run
  const cpu_set_t* processors;  ///< to bind to; null: not bound
  int failure;                  ///< receives errno if the program cannot be executed
  char** argv;
  char** envp;
};

/// Runs in the child between fork and exec: async-signal-safe calls only.
[[noreturn]] void become(const Child& child) {
  child.keeper->adopt_me();
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != child.launcher) _exit(kStatusLauncherFailed);
  const int nothing = open("/dev/null", O_RDONLY);
  if (nothing >= 0) dup2(nothing, STDIN_FILENO);
  if (child.out >= 0) dup2(child.out, STDOUT_FILENO);
  if (child.err >= 0) dup2(child.err, STDERR_FILENO);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  if (child.processors != nullptr)  // processors that have gone offline are no reason to fail
    (void)sched_setaffinity(0, sizeof *child.processors, child.processors);
  execvpe(child.argv[0], child.argv, child.envp);
  const int error = errno;
  [[maybe_unused]] const ssize_t written = write(child.failure, &error, sizeof error);
  _exit(kStatusNotFound);
}

cpu_set_t set_of(const std::vector<int>& processors) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int processor : processors) CPU_SET(static_cast<std::size_t>(processor), &set);
  return set;
}

}  // namespace

Job::Job(JobOptions options, const Keeper& keeper) : options_(std::move(options)), keeper_(keeper) {
  // The kernel reports no ended children to a process that ignores SIGCHLD.
  ::signal(SIGCHLD, SIG_DFL);
  const sigset_t set = handled_set();
  sigset_t blocked = set;
  sigaddset(&blocked, SIGPIPE);  // a closed output is EPIPE
  sigprocmask(SIG_BLOCK, &blocked, nullptr);
  signals_ = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  if (signals_ < 0) fail_errno("shoal-run could not create a signal descriptor");
}

Job::~Job() {
  kill_all();
  for (auto& pe : pes_) {
    if (pe.running) {
      keeper_.forget(pe.pid);
      waitpid(pe.pid, nullptr, 0);
    }
    for (auto& stream : pe.streams) close(stream.from);
  }
  close(signals_);
}

void Job::start(int index) {
  if (!options_.launcher) options_.env["SHOAL_PE"] = std::to_string(index);
  std::vector<std::string> variables = environment_with(options_.env);
  const std::vector<char*> argv = null_terminated(options_.argv), envp = null_terminated(variables);
  Pe pe{.index = index, .streams = {}};
  Pipe out, err;
  const Pipe failure = Pipe::open();
  if (options_.label) {
    out = Pipe::open();
    err = Pipe::open();
    const LineLabeler labeler(fmt::format("[{}] ", index));
    pe.streams = {{out.read_end, STDOUT_FILENO, labeler}, {err.read_end, STDERR_FILENO, labeler}};
    for (const auto& stream : pe.streams) fcntl(stream.from, F_SETFL, O_NONBLOCK);
  }
  const bool bound = !options_.processors.empty();
  const cpu_set_t processors =
      set_of(bound ? options_.processors[static_cast<std::size_t>(index)] : std::vector<int>());
  const Child child{&keeper_,
                    getpid(),
                    out.write_end,
                    err.write_end,
                    bound ? &processors : nullptr,
                    failure.write_end,
                    const_cast<char**>(argv.data()),
                    const_cast<char**>(envp.data())};
  pe.pid = fork();
  if (pe.pid == 0) become(child);
  const bool started = pe.pid > 0;
  const int fork_error = errno;
  for (const int fd : {out.write_end, err.write_end, failure.write_end})
    if (fd >= 0) close(fd);
  int error = started ? 0 : fork_error;
  if (started) {
    pe.running = true;
    if (::read(failure.read_end, &error, sizeof error) != sizeof error) error = 0;
  }
  close(failure.read_end);
  pes_.push_back(std::move(pe));
  if (error == 0) return;
  status_ = error == ENOENT ? kStatusNotFound
            : started       ? kStatusNotExecutable
                            : kStatusLauncherFailed;
  errno = error;
  fail_errno("{} could not be started as {}", options_.argv[0],
             options_.launcher ? "launcher" : fmt::format("PE {}", index));
}

int Job::run() {
  try {
    for (int index = 0; index < options_.n_pes; ++index) start(index);
  } catch (const Error& error) {
    say(reason_of(error));
    return status_ != 0 ? status_ : kStatusLauncherFailed;
  }
  if (options_.timeout.count() > 0) deadline_ = Clock::now() + options_.timeout;
  while (!running().empty()) poll_once();
  for (auto& pe : pes_)
    for (auto& stream : pe.streams) {
      read(stream);
      forward(stream.to, stream.labeler.finish());
    }
  return status_;
}

std::vector<int> Job::running() const {
  std::vector<int> indices;
  for (const auto& pe : pes_)
    if (pe.running) indices.push_back(pe.index);
  return indices;
}

void Job::poll_once() {
  std::vector<pollfd> entries = {{signals_, POLLIN, 0}};
  std::vector<Stream*> streams;
  for (auto& pe : pes_)
    for (auto& stream : pe.streams) {
      if (stream.from < 0) continue;
      entries.push_back({stream.from, POLLIN, 0});
      streams.push_back(&stream);
    }
  const auto next = std::min(deadline_, end_at_);
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now()).count();
  const int timeout = next == Clock::time_point::max()
                          ? -1
                          : static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000));
  if (poll(entries.data(), entries.size(), timeout) < 0 && errno != EINTR)
    fail_errno("shoal-run could not wait");
  for (std::size_t i = 0; i < streams.size(); ++i)
    if (entries[i + 1].revents != 0) read(*streams[i]);
  take_signals();
  act_on_time();
}

void Job::read(Stream& stream) {
  char buffer[16 << 10];
  while (stream.from >= 0) {
    const ssize_t count = ::read(stream.from, buffer, sizeof buffer);
    if (count > 0) {
      forward(stream.to, stream.labeler.add({buffer, static_cast<std::size_t>(count)}));
    } else if (count == 0) {
      close(stream.from);
      stream.from = -1;
    } else if (errno != EINTR) {
      return;
    }
  }
}

void Job::forward(int to, std::string_view text) {
  if (broken_outputs_.contains(to)) return;  // the PEs' pipes are still drained
  const int error = write_all(to, text);
  if (error == 0) return;
  broken_outputs_.insert(to);
  say(fmt::format("cannot write the PEs' output to standard {}: {}",
                  to == STDOUT_FILENO ? "output" : "error", errno_text(error)));
  if (status_ == 0) status_ = kStatusLauncherFailed;
  // A reader that is gone, such as head, wants no more: the job ends, as a single program would.
  // The job survives a full disk.
  if (error == EPIPE) end_rest_at(Clock::now());
}

void Job::take_signals() {
  signalfd_siginfo info;
  while (::read(signals_, &info, sizeof info) == sizeof info) {
    const int signal = static_cast<int>(info.ssi_signo);
    if (signal == SIGCHLD) {
      reap();
      continue;
    }
    signal_all(signal);
    if (signal == SIGUSR1 || signal == SIGUSR2) continue;
    // A second request to end does not wait for the grace period.
    end_rest_at(ending_ ? Clock::now() : Clock::now() + options_.grace);
    ending_ = true;
  }
}

void Job::reap() {
  struct Ended {
    Pe* pe;
    siginfo_t info;
  };
  std::vector<Ended> ended;
  std::set<pid_t> sessions;
  for (auto& pe : pes_) {
    siginfo_t info{};
    if (pe.running &&
        waitid(P_PID, static_cast<id_t>(pe.pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
        info.si_pid == pe.pid) {
      ended.push_back({&pe, info});
      sessions.insert(pe.pid);
    }
  }
  if (ended.empty()) return;
  // Before the leaders are reaped: until then, the sessions keep their numbers.
  end_sessions(sessions);
  for (auto& [pe, info] : ended) {
    keeper_.forget(pe->pid);
    waitpid(pe->pid, nullptr, 0);
    pe->running = false;
    for (auto& stream : pe->streams) read(stream);
    report(*pe, info.si_code, info.si_status);
  }
}

std::string Job::shown(const Pe& pe) const {
  return options_.launcher ? options_.argv[0] : fmt::format("PE {}", pe.index);
}

void Job::report(const Pe& pe, int code, int status) {
  const bool exited = code == CLD_EXITED;
  if (exited && status == 0) return;
  const bool first = status_ == 0;
  if (first) status_ = exited ? status : 128 + status;
  if (ending_ && !first) return;  // most likely ended by this job
  std::string text =
      exited ? fmt::format("{} (pid {}) exited with status {}", shown(pe), pe.pid, status)
             : fmt::format("{} (pid {}) was killed by signal {} ({})", shown(pe), pe.pid, status,
                           strsignal(status));
  // A shell reports a killed child as 128 + signal.
  if (exited ? status == 128 + SIGKILL : status == SIGKILL)
    if (const std::string memory = out_of_memory_.describe(); !memory.empty())
      text += ": " + memory;
  say(text);
  end_rest_at(Clock::now() + options_.grace);
}

void Job::end_rest_at(Clock::time_point when) {
  end_at_ = std::min(end_at_, when);
}

void Job::act_on_time() {
  const auto now = Clock::now();
  if (now >= deadline_) {
    deadline_ = Clock::time_point::max();
    say(fmt::format("the job ran past its limit of {} s: PEs {} are ended",
                    static_cast<double>(options_.timeout.count()) / 1000,
                    fmt::join(running(), ", ")));
    if (status_ == 0) status_ = kStatusTimeout;
    end_at_ = now;
  }
  if (now < end_at_) return;
  if (ending_) {
    kill_all();
    end_at_ = Clock::time_point::max();
  } else {
    signal_all(SIGTERM);
    end_at_ = now + options_.grace;
  }
  ending_ = true;
}

void Job::kill_all() {
  std::set<pid_t> sessions;
  for (const auto& pe : pes_)
    if (pe.running) sessions.insert(pe.pid);
  if (!sessions.empty()) end_sessions(sessions);
}

void Job::signal_all(int signal) const {
  for (const auto& pe : pes_)
    if (pe.running) kill(-pe.pid, signal);
}

}  // namespace shoal::run
