// SPDX-License-Identifier: Apache-2.0
#include "run/keeper.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <fstream>
#include <memory>
#include <numeric>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/check.hpp"

namespace shoal::run {
namespace {

// A killed process can have forked just before, so the processes are listed until none is left.
// Each attempt pauses longer than the kernel normally takes to end a process.
constexpr int kAttempts = 200;
constexpr std::chrono::milliseconds kPause{5};
constexpr std::size_t kFilesWithoutProc = 4096;

struct ProcessState {
  char state = '?';
  pid_t session = -1;
};

/// Reads /proc/<pid>/stat: "pid (name) state ppid pgrp session ...". The name may contain anything.
ProcessState state_of(const std::string& pid) {
  std::ifstream file("/proc/" + pid + "/stat");
  std::string text;
  std::getline(file, text, '\0');
  const std::size_t name_end = text.rfind(')');
  ProcessState process;
  if (name_end == std::string::npos) return process;
  std::istringstream fields(text.substr(name_end + 1));
  pid_t parent = 0, group = 0;
  fields >> process.state >> parent >> group >> process.session;
  return process;
}

/// The entries of a folder whose names are numbers. Empty if it cannot be read.
std::vector<int> numbers_in(const char* path) {
  std::vector<int> numbers;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir(path), closedir);
  if (!folder) return numbers;
  while (const dirent* entry = readdir(folder.get())) {
    const std::string_view name = entry->d_name;
    int number = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
    if (error == std::errc{} && end == name.data() + name.size()) numbers.push_back(number);
  }
  return numbers;
}

/// The processes of these sessions that still run.
std::vector<pid_t> processes_of(const std::set<pid_t>& sessions) {
  std::vector<pid_t> found;
  for (const pid_t pid : numbers_in("/proc")) {
    const ProcessState process = state_of(std::to_string(pid));
    const bool dead = process.state == 'Z' || process.state == 'X';
    if (!dead && sessions.contains(process.session)) found.push_back(pid);
  }
  return found;
}

/// Closes all files from `first` on.
void close_from(int first) {
  if (close_range(static_cast<unsigned>(first), ~0U, 0) == 0) return;
  // Linux before 5.9, or a container that does not allow the call.
  std::vector<int> files = numbers_in("/proc/self/fd");
  if (files.empty()) {  // without /proc
    files.resize(kFilesWithoutProc);
    std::iota(files.begin(), files.end(), 0);
  }
  for (const int file : files)
    if (file >= first) close(file);
}

}  // namespace

void end_sessions(const std::set<pid_t>& sessions) {
  // The leaders' process groups first: this also works without /proc.
  for (const pid_t session : sessions) kill(-session, SIGKILL);
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const std::vector<pid_t> left = processes_of(sessions);
    if (left.empty()) return;
    for (const pid_t pid : left) kill(pid, SIGKILL);
    std::this_thread::sleep_for(kPause);
  }
}

Keeper::Keeper() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) fail_errno("shoal-run could not create a pipe");
  pid_ = fork();
  if (pid_ < 0) {
    close(ends[0]);
    close(ends[1]);
    fail_errno("shoal-run could not start its keeper process");
  }
  if (pid_ == 0) {
    close(ends[1]);  // run() waits until shoal-run's end, the last one, is closed
    run(ends[0]);
    _exit(0);
  }
  close(ends[0]);
  pipe_ = ends[1];
}

Keeper::~Keeper() {
  close(pipe_);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void Keeper::adopt_me() const {
  setsid();
  const pid_t session = getpid();
  [[maybe_unused]] const ssize_t written = write(pipe_, &session, sizeof session);
}

void Keeper::forget(pid_t session) const {
  const pid_t message = -session;
  [[maybe_unused]] const ssize_t written = write(pipe_, &message, sizeof message);
}

/// The keeper process. It must outlive whatever kills shoal-run, so it leaves its session and
/// blocks all signals. It holds no other file, so a reader of shoal-run's output sees its end.
void Keeper::run(int pipe) const {
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);
  setsid();
  prctl(PR_SET_NAME, "shoal-run-keep");
  if (pipe != STDIN_FILENO) dup2(pipe, STDIN_FILENO);
  close_from(STDERR_FILENO + 1);
  const int nothing = open("/dev/null", O_RDWR);
  dup2(nothing, STDOUT_FILENO);
  dup2(nothing, STDERR_FILENO);
  if (nothing > STDERR_FILENO) close(nothing);

  std::set<pid_t> sessions;
  while (true) {
    pid_t message = 0;  // a session to end, or minus a session that has ended
    const ssize_t count = read(STDIN_FILENO, &message, sizeof message);
    if (count < 0 && errno == EINTR) continue;
    if (count != sizeof message) break;
    if (message > 0) sessions.insert(message);
    if (message < 0) sessions.erase(-message);
  }
  if (!sessions.empty()) end_sessions(sessions);
}

}  // namespace shoal::run
