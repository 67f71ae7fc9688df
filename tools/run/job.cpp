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

/// Text that waits for a reader. More stays in the pipes of the PEs, which then wait.
constexpr std::size_t kMostQueued = 256 << 10;
/// After a second request to end, a reader has this long to take what is left.
constexpr std::chrono::milliseconds kShortPatience{200};

/// True if PE 0 may read standard input: not if it was closed, and not from a terminal whose
/// foreground job is another. The kernel would not stop the PE, which is in another session.
bool may_read_standard_input() {
  const int flags = fcntl(STDIN_FILENO, F_GETFL);
  if (flags < 0 || (flags & O_ACCMODE) == O_WRONLY) return false;
  const pid_t foreground = tcgetpgrp(STDIN_FILENO);  // -1: no terminal, or not that of shoal-run
  return foreground < 0 || foreground == getpgrp();
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
  bool reads_input;             ///< standard input is that of shoal-run, else empty
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
  const int nothing = child.reads_input ? -1 : open("/dev/null", O_RDONLY);
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
  sigset_t alarm;  // interrupts writes
  sigemptyset(&alarm);
  sigaddset(&alarm, SIGALRM);
  sigprocmask(SIG_UNBLOCK, &alarm, nullptr);
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
                    index == 0 && may_read_standard_input(),
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
    if (options_.timeout.count() > 0) deadline_ = Clock::now() + options_.timeout;
    while (!running().empty()) poll_once();
  } catch (const Error& error) {
    say(reason_of(error));
    if (status_ == 0) status_ = kStatusLauncherFailed;
    ending_ = true;
    kill_all();
  }
  finish_output();
  return status_;
}

bool Job::unwritten() const {
  return !outputs_[0].queued.empty() || !outputs_[1].queued.empty();
}

/// Forwards what the pipes of the PEs hold, and waits for the readers: without a limit, as the
/// output of any program, until the job is asked to end; then while they take some of it.
void Job::finish_output() {
  output_taken_at_ = Clock::now();
  const auto given_up = [&] {
    return asked_to_end_ && Clock::now() >= output_taken_at_ + output_patience_;
  };
  for (auto& pe : pes_)
    for (auto& stream : pe.streams) {
      while (!read(stream) && !given_up()) poll_once();
      forward(stream.to, stream.labeler.finish());
    }
  while (unwritten() && !given_up()) poll_once();
  if (!unwritten()) return;
  if (status_ == 0) status_ = kStatusLauncherFailed;
  for (const Output& output : outputs_)
    if (!output.queued.empty())
      say(fmt::format("the end of standard {} is lost: its reader did not read",
                      output.to == STDOUT_FILENO ? "output" : "error"));
  write(output(STDERR_FILENO));
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
      if (stream.from < 0 || output(stream.to).queued.size() >= kMostQueued) continue;
      entries.push_back({stream.from, POLLIN, 0});
      streams.push_back(&stream);
    }
  std::vector<Output*> writable;
  for (auto& output : outputs_)
    if (!output.queued.empty()) {
      entries.push_back({output.to, POLLOUT, 0});
      writable.push_back(&output);
    }
  auto next = std::min(deadline_, end_at_);
  if (asked_to_end_ && running().empty())
    next = std::min(next, output_taken_at_ + output_patience_);
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now()).count();
  const int timeout = next == Clock::time_point::max()
                          ? -1
                          : static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000));
  if (poll(entries.data(), entries.size(), timeout) < 0 && errno != EINTR)
    fail_errno("shoal-run could not wait");
  for (std::size_t i = 0; i < streams.size(); ++i)
    if (entries[i + 1].revents != 0) read(*streams[i]);
  for (std::size_t i = 0; i < writable.size(); ++i)
    if (entries[i + 1 + streams.size()].revents != 0) write(*writable[i]);
  take_signals();
  act_on_time();
}

/// Returns whether all that the pipe held has been read; not if its output has no room for more.
bool Job::read(Stream& stream) {
  char buffer[16 << 10];
  while (stream.from >= 0) {
    if (output(stream.to).queued.size() >= kMostQueued) return false;
    const ssize_t count = ::read(stream.from, buffer, sizeof buffer);
    if (count > 0) {
      forward(stream.to, stream.labeler.add({buffer, static_cast<std::size_t>(count)}));
    } else if (count == 0) {
      close(stream.from);
      stream.from = -1;
    } else if (errno != EINTR) {
      return true;
    }
  }
  return true;
}

void Job::say(const std::string& text) {
  forward(STDERR_FILENO, "shoal-run: " + text + "\n");
}

/// Writes at once what the reader takes.
void Job::forward(int to, std::string_view text) {
  Output& output = this->output(to);
  if (output.broken || text.empty()) return;  // the PEs' pipes are still drained
  output.queued += text;
  write(output);
}

void Job::write(Output& output) {
  const int error = write_some(output.to, output.queued, [&] { output_taken_at_ = Clock::now(); });
  if (error == 0) return;
  output.broken = true;
  output.queued.clear();
  say(fmt::format("cannot write the PEs' output to standard {}: {}",
                  output.to == STDOUT_FILENO ? "output" : "error", errno_text(error)));
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
    output_patience_ = asked_to_end_ ? std::min(options_.grace, kShortPatience) : options_.grace;
    asked_to_end_ = true;
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
    const auto pes = running();
    say(fmt::format("the job ran past its limit of {} s: {}",
                    static_cast<double>(options_.timeout.count()) / 1000,
                    pes.empty() ? "its output is not read"
                                : fmt::format("PEs {} are ended", fmt::join(pes, ", "))));
    if (!asked_to_end_) output_patience_ = options_.grace;
    asked_to_end_ = true;
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
