// SPDX-License-Identifier: Apache-2.0
// job.hpp: processes that start together and end together.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "run/keeper.hpp"
#include "run/out_of_memory.hpp"
#include "run/output.hpp"

namespace shoal::run {

struct JobOptions {
  int n_pes = 1;
  std::vector<std::string> argv;           ///< the program, looked up in PATH, and its arguments
  std::map<std::string, std::string> env;  ///< for all PEs; each PE also gets SHOAL_PE
  std::vector<std::vector<int>>
      processors;         ///< of each PE, to bind it to; empty: PEs are not bound
  bool launcher = false;  ///< argv is a launcher, which starts and numbers the PEs
  /// Puts "[3] " before each line of PE 3. Without it, the PEs write to shoal-run's own outputs.
  bool label = true;
  std::chrono::milliseconds timeout{0};  ///< for the whole job; 0: none
  /// Time for the other PEs to end after a failure, and between SIGTERM and SIGKILL.
  std::chrono::milliseconds grace{2'000};
};

/// Exit statuses of shoal-run's own. Other launchers use the same.
constexpr int kStatusTimeout = 124, kStatusLauncherFailed = 125, kStatusNotExecutable = 126,
              kStatusNotFound = 127;

/// PE 0 reads the standard input of shoal-run; that of the other PEs is empty. Output that its
/// reader does not take stops the PEs that write it, and neither signals nor the time limit.
/// Each PE leads a session. Processes that are left in the session when the PE ends are killed.
/// The keeper kills the sessions if shoal-run itself is killed. SIGINT, SIGTERM, SIGHUP, SIGUSR1
/// and SIGUSR2 are forwarded to all PEs.
class Job {
 public:
  /// `keeper` outlives the job.
  Job(JobOptions options, const Keeper& keeper);
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  /// Runs to the end. Returns 0, or the status of the first PE that failed (128 + signal if a
  /// signal killed it), or kStatusLauncherFailed if output of the PEs could not be written.
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

  /// Lines for an output of shoal-run that its reader has not taken yet.
  struct Output {
    int to = -1;
    std::string queued = {};
    bool broken = false;
  };

  void start(int index);
  void poll_once();
  bool read(Stream& stream);
  Output& output(int to) { return outputs_[to == STDOUT_FILENO ? 0 : 1]; }
  void say(const std::string& text);
  void forward(int to, std::string_view text);
  void write(Output& output);
  bool unwritten() const;
  void finish_output();
  void take_signals();
  void reap();
  std::string shown(const Pe& pe) const;
  void report(const Pe& pe, int code, int status);
  void act_on_time();
  void kill_all();
  void end_rest_at(Clock::time_point when);
  void signal_all(int signal) const;
  std::vector<int> running() const;

  JobOptions options_;
  const Keeper& keeper_;
  OutOfMemory out_of_memory_;
  int signals_ = -1;
  std::vector<Pe> pes_;
  std::array<Output, 2> outputs_ = {Output{.to = STDOUT_FILENO}, Output{.to = STDERR_FILENO}};
  int status_ = 0;
  bool ending_ = false;                                    // SIGTERM has been sent
  bool asked_to_end_ = false;                              // by a signal or the time limit
  Clock::time_point output_taken_at_{};                    // last time that a reader took output
  std::chrono::milliseconds output_patience_{};            // for readers, once asked to end
  Clock::time_point deadline_ = Clock::time_point::max();  // of the job
  Clock::time_point end_at_ = Clock::time_point::max();    // of the next SIGTERM or SIGKILL
};

}  // namespace shoal::run
