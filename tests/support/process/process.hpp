// SPDX-License-Identifier: Apache-2.0
// process.hpp: runs programs, and runs a test body as several PEs, each in a separate process.
//
// A PE body is a function of the test file that runs in a child process. A test starts it n times
// and checks the results:
//
//   SHOAL_PE_BODY(sum) {  // pe.settings: of this PE; pe.argument: the text below
//     auto world = shoal::World::open(pe.settings);
//     EXPECT_EQ(world.n_pes(), 3) << pe.argument;
//   }
//   TEST(World, SumsAmongProcesses) {
//     shoal::test::expect_success(shoal::test::run_pes(3, "sum", {.argument = "hello"}));
//   }
//
// The child is this test program again, executed with a hidden argument that names the body (so it
// starts without threads, which the sanitizers like). The PEs find each other by SHOAL_PE,
// SHOAL_N_PES and SHOAL_UNIQUE_ID; the root lives in the test's process. EXPECT and ASSERT work in
// a body; a failure, an exception or a sanitizer report makes the PE's exit status non-zero. For
// faults, start_pes returns while the PEs run, so that a test can signal one of them, wait for its
// output, and then wait for the others.
//
// Nothing outlives a test: a child has its own process group, which is killed at the deadline and
// when its Process is destroyed; and the kernel kills it when the thread that started it ends.
// Output goes to memory, so a child never blocks on it.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <chrono>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/bootstrap.hpp"
#include "shoal/settings.hpp"
#include "support/wait_for.hpp"

namespace shoal::test {

using Milliseconds = std::chrono::milliseconds;
using Environment = std::map<std::string, std::string>;

inline const Milliseconds kProcessLimit = grown(Milliseconds(60'000));
/// For SHOAL_TIMEOUT_MS and SHOAL_BOOTSTRAP_TIMEOUT_MS: later than the limit of every test, so that
/// a wait which ends has another reason.
inline constexpr const char* kNever = "3600000";

/// The state of a process as /proc has it, such as 'T': stopped, 'Z': ended; 0: there is none.
char process_state(pid_t pid);

/// Exit status and output of a program.
struct ProcessResult {
  bool timed_out = false;  ///< it was killed because it ran past its limit
  int exit_status = -1;    ///< -1 when it ended by a signal
  int signal = 0;
  std::string out;
  std::string err;

  bool ok() const { return !timed_out && exit_status == 0; }
  std::string describe() const;  ///< its end and both outputs, for failure messages
};

/// A running program. Destroying it kills it, with everything in its process group.
class Process {
 public:
  /// Starts argv[0] (a path) with this process's environment, changed by `extra`. A program that
  /// cannot be executed exits with 127.
  explicit Process(const std::vector<std::string>& argv, const Environment& extra = {});
  ~Process();
  Process(Process&& other) noexcept;
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  Process& operator=(Process&&) = delete;

  pid_t pid() const { return pid_; }
  void send(int signal) const;
  std::string out() const;  ///< its standard output until now
  std::string err() const;
  /// Waits until standard output or standard error contains `text`; false when it ended or `limit`
  /// passed before.
  bool wait_for_output(std::string_view text, Milliseconds limit = kProcessLimit);
  /// Waits for the end and kills at the limit. May be called again: the result is kept.
  ProcessResult wait(Milliseconds limit = kProcessLimit);

 private:
  bool ended();
  void reap();

  pid_t pid_ = -1;
  int out_fd_ = -1;
  int err_fd_ = -1;
  bool reaped_ = false;
  bool timed_out_ = false;
  int status_ = 0;
};

ProcessResult run_program(const std::vector<std::string>& argv, const Environment& extra = {},
                          Milliseconds limit = kProcessLimit);

/// The argument of a PE body.
struct PeContext {
  Settings settings;  ///< from the environment: pe, n_pes and unique_id are set
  std::string argument;
};

struct PeOptions {
  /// For every PE, such as {{"SHOAL_NODE_SIZE", "2"}}; SHOAL_SOCKET_* also place the root.
  Environment env = {};
  std::string argument = {};
  Milliseconds limit = kProcessLimit;
};

/// Running PEs; element i is PE i.
struct PeGroup {
  UniqueId id;  ///< keeps the root alive
  std::vector<Process> pes;
};

PeGroup start_pes(int n, const std::string& body, const PeOptions& options = {});
/// Waits for all PEs; kills those that still run at the limit.
std::vector<ProcessResult> wait_all(std::vector<Process>& processes,
                                    Milliseconds limit = kProcessLimit);
std::vector<ProcessResult> run_pes(int n, const std::string& body, const PeOptions& options = {});

/// Fails the test, with all output, unless every process exited with 0.
void expect_success(const std::vector<ProcessResult>& results);

using PeBody = void (*)(const PeContext& pe);

/// Registers a body by name; used by SHOAL_PE_BODY.
bool register_pe_body(const char* name, PeBody body);

}  // namespace shoal::test

#define SHOAL_PE_BODY(name)                                           \
  static void shoal_pe_body_##name(const shoal::test::PeContext& pe); \
  [[maybe_unused]] static const bool shoal_pe_body_##name##_known =   \
      shoal::test::register_pe_body(#name, shoal_pe_body_##name);     \
  static void shoal_pe_body_##name([[maybe_unused]] const shoal::test::PeContext& pe)
