// SPDX-License-Identifier: Apache-2.0
// keeper.hpp: ends the processes of a job, even when shoal-run itself is killed.
//
// Every PE leads a session of its own, which its children belong to, however many shells and
// wrappers are between them. A keeper process holds the read end of a pipe; shoal-run alone holds
// the write end. When shoal-run ends for any reason, SIGKILL included, the keeper sees the end of
// the pipe and kills all sessions that still exist. A program that calls setsid leaves the job.
#pragma once

#include <sys/types.h>

#include <set>

namespace shoal::run {

/// Kills every process of these sessions. Returns when all are dead or zombies, or after a bounded
/// number of attempts.
void end_sessions(const std::set<pid_t>& sessions);

/// The keeper process of one job.
class Keeper {
 public:
  /// Starts the process. Call it before this process starts threads. Throws Error{system}.
  Keeper();
  /// Ends the process; sessions that are still known to it are killed.
  ~Keeper();
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;

  /// Makes the calling process the leader of a new session that the keeper ends. Call it between
  /// fork and exec: it is async-signal-safe.
  void adopt_me() const;
  /// The session has ended. Call it before its leader is reaped: afterwards the number may belong
  /// to another process.
  void forget(pid_t session) const;
  /// The keeper process.
  pid_t pid() const { return pid_; }

 private:
  void run(int pipe) const;

  pid_t pid_ = -1;
  int pipe_ = -1;  // the write end
};

}  // namespace shoal::run
