// SPDX-License-Identifier: Apache-2.0
// job.hpp: n processes started together and ended together.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "run/output.hpp"

namespace shoal::run {

struct JobOptions {
  int n_pes = 1;
  std::vector<std::string> argv;           ///< the program, looked up in PATH, and its arguments
  std::map<std::string, std::string> env;  ///< for all PEs; SHOAL_PE is added for each
  bool launcher =
      false;  ///< argv is a launcher, which starts and numbers the PEs: it is no PE itself
  bool label =
      true;  ///< "[3] " before each line; without it the PEs write to the launcher's own outputs
  std::chrono::milliseconds timeout{0};  ///< for the whole job; 0: none
  std::chrono::milliseconds grace{
      2'000};  ///< for the others after a failure, and between SIGTERM and SIGKILL
};

/// Statuses of the launcher's own, as other launchers use them.
constexpr int kStatusTimeout = 124, kStatusLauncherFailed = 125, kStatusNotExecutable = 126,
              kStatusNotFound = 127;

/// Each PE is the leader of a process group of its own; whatever is left in the group when the PE
/// ends is killed, and the kernel kills the PEs if the launcher itself is killed. Signals that end
/// or inform a program are passed on to all PEs.
class Job {
 public:
  explicit Job(JobOptions options);
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  /// Runs to the end. Returns 0, or the status of the first PE that failed (128 + signal for a
  /// killed one).
  int run();

 private:
  using Clock = std::chrono::steady_clock;

  struct Stream {
    int from = -1;
    int to = -1;
    LineLabeler labeler;
  };
  struct Pe {
    int index = 0;
    pid_t pid = -1;
    bool running = false;
    std::vector<Stream> streams;
  };

  void start(int index);
  void poll_once();
  void read(Stream& stream);
  void take_signals();
  void reap();
  std::string shown(const Pe& pe) const;
  void report(const Pe& pe, int code, int status);
  void act_on_time();
  void end_rest_at(Clock::time_point when);
  void signal_all(int signal) const;
  std::vector<int> running() const;

  JobOptions options_;
  int signals_ = -1;
  std::vector<Pe> pes_;
  int status_ = 0;
  bool ending_ = false;                                    // SIGTERM has been sent
  Clock::time_point deadline_ = Clock::time_point::max();  // of the job
  Clock::time_point end_at_ =
      Clock::time_point::max();  // of the next step towards the end: SIGTERM, then SIGKILL
};

}  // namespace shoal::run
