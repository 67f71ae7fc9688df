// SPDX-License-Identifier: Apache-2.0
// raw_loop.hpp: the loop of the baselines that measure a network library alone, between two
// processes of this host. Process 0 measures; process 1 takes the other end.
//
//   run_two_processes<Blackboard>(report, json_path, [&](Blackboard& board, int me) {
//     RawLoop loop(me, 1000);
//     loop.time("put + quiet 8 B", 1000, 8, [&] { ... });
//     return loop.take();
//   });
#pragma once

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <new>
#include <string>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "report.hpp"
#include "rma_rows.hpp"

namespace shoal::bench {

class RawLoop {
 public:
  /// `me`: 0 or 1. `iterations`: of each small operation.
  RawLoop(int me, std::int64_t iterations) : me_(me), iterations_(iterations) {}

  int me() const { return me_; }
  std::int64_t iterations() const { return iterations_; }
  std::int64_t repetitions(std::size_t bytes) const {
    return bench::repetitions(bytes, iterations_);
  }
  /// Runs `body` once, then `count` times; process 0 records the mean of those.
  template <typename Body>
  void time(const std::string& name, std::int64_t count, double bytes, Body body) {
    body();
    const Times start = now();
    for (std::int64_t i = 0; i < count; ++i) body();
    if (me_ == 0)
      measurements_.push_back({name, (now() - start) / static_cast<double>(count), bytes});
  }
  std::vector<Measurement> take() { return std::move(measurements_); }

 private:
  const int me_;
  const std::int64_t iterations_;
  std::vector<Measurement> measurements_;
};

/// Calls measure(board, me) in this process (me = 0) and in a child (1), with a zeroed Blackboard
/// that they share. Publishes what process 0 returns.
template <typename Blackboard, typename Measure>
void run_two_processes(Report report, const std::string& json_path, Measure measure) {
  void* const shared =
      mmap(nullptr, sizeof(Blackboard), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) fail_errno("mmap");
  auto* const board = new (shared) Blackboard{};
  const pid_t child = fork();
  if (child < 0) fail_errno("fork");
  const int me = child == 0 ? 1 : 0;
  if (child == 0) prctl(PR_SET_PDEATHSIG, SIGKILL);
  const std::vector<Measurement> measurements = measure(*board, me);
  if (me == 1) _exit(0);  // the process's end closes the network, which could wait forever
  int status = 0;
  waitpid(child, &status, 0);
  report.basis = "bytes of the transfers of one process";
  report.pes = 1;
  publish(report, measurements, [](const std::vector<double>& mine) { return mine; }, json_path);
}

}  // namespace shoal::bench
