// SPDX-License-Identifier: Apache-2.0
// shoal-run seen from outside: outputs, exit statuses, signals, and no process left behind.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>

#include "support/built.hpp"
#include "support/expect_error.hpp"
#include "support/process/process.hpp"

namespace shoal::test {
namespace {

const std::string kShoalRun = program("shoal-run");

std::vector<std::string> command(const std::string& options, const std::string& script) {
  std::vector<std::string> argv = {kShoalRun};
  std::istringstream words(options);
  for (std::string word; words >> word;) argv.push_back(word);
  argv.insert(argv.end(), {"/bin/sh", "-c", script});
  return argv;
}

ProcessResult shoal_run(const std::string& options, const std::string& script) {
  return run_program(command(options, script));
}

bool alive(pid_t pid) {
  const char state = process_state(pid);
  return state != 0 && state != 'Z';
}

/// The pids that the PEs printed as "pid N".
std::vector<pid_t> pids_in(const std::string& text) {
  std::vector<pid_t> pids;
  for (std::size_t at = 0; (at = text.find("pid ", at)) != std::string::npos; ++at)
    pids.push_back(std::stoi(text.substr(at + 4)));
  return pids;
}

void expect_gone(const std::vector<pid_t>& pids) {
  for (const pid_t pid : pids)
    EXPECT_TRUE(wait_for([&] { return !alive(pid); })) << pid << " is an orphan";
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size())
    ++found;
  return found;
}

TEST(ShoalRun, GivesEachPeItsEnvironmentAndLabelsItsLines) {
  const auto result = shoal_run(
      "-n 3",
      "echo pe $SHOAL_PE of $SHOAL_N_PES; echo oops $SHOAL_PE >&2; printf rest; test -n \"$SHOAL_UNIQUE_ID\"");
  EXPECT_TRUE(result.ok()) << result.describe();
  for (int pe = 0; pe < 3; ++pe) {
    expect_parts(result.out,
                 {fmt::format("[{0}] pe {0} of 3\n", pe), fmt::format("[{}] rest\n", pe)});
    expect_parts(result.err, {fmt::format("[{0}] oops {0}\n", pe)});
  }
  EXPECT_EQ(result.out.find("oops"), std::string::npos) << "the two outputs are kept apart";
}

TEST(ShoalRun, LinesOfDifferentPesNeverMix) {
  const auto result = shoal_run(
      "-n 4",
      "i=0; while [ $i -lt 200 ]; do echo \"$SHOAL_PE$SHOAL_PE$SHOAL_PE\"; i=$((i+1)); done");
  std::istringstream lines(result.out);
  std::size_t n = 0;
  for (std::string line; std::getline(lines, line); ++n) {
    ASSERT_EQ(line.size(), 7u) << line;
    EXPECT_EQ(line, fmt::format("[{0}] {0}{0}{0}", line[1]));
  }
  EXPECT_EQ(n, 800u);
}

TEST(ShoalRun, NoLabelWhenAskedOrAlone) {
  EXPECT_EQ(shoal_run("-n 2 --no-label", "echo hello").out, "hello\nhello\n");
  EXPECT_EQ(shoal_run("-n 1", "echo hello").out, "hello\n");
}

TEST(ShoalRun, Nodes) {
  EXPECT_EQ(count(shoal_run("-n 6 --nodes 2", "echo size $SHOAL_NODE_SIZE").out, "size 3"), 6u);
  const auto odd = shoal_run("-n 6 --nodes 4", "echo started");
  EXPECT_EQ(odd.exit_status, 125);
  expect_parts(odd.err, {"does not divide"});
  EXPECT_EQ(odd.out.find("started"), std::string::npos);
}

/// The processors on which each PE may run, by PE, as Linux writes them: "0-1".
std::vector<std::string> processors_of_pes(const std::string& options, int n_pes) {
  const auto result = shoal_run(fmt::format("-n {} {}", n_pes, options),
                                "grep Cpus_allowed_list /proc/self/status");
  EXPECT_TRUE(result.ok()) << result.describe();
  std::vector<std::string> found(static_cast<std::size_t>(n_pes));
  std::istringstream lines(result.out);
  for (std::string pe, name, processors; lines >> pe >> name >> processors;)
    found.at(static_cast<std::size_t>(std::stoi(pe.substr(1)))) = processors;
  return found;
}

TEST(ShoalRun, BindsPesToCoresOfTheirOwn) {
  const auto unbound = processors_of_pes("--bind none", 2);
  EXPECT_EQ(unbound[0], unbound[1]);
  EXPECT_EQ(processors_of_pes("", 2), unbound) << "the default";
  if (shoal_run("-n 2 --bind core", "true").err.find("may use 1 core") != std::string::npos)
    GTEST_SKIP() << "this machine has one core";
  const auto bound = processors_of_pes("--bind core", 2);
  EXPECT_NE(bound[0], bound[1]);
  for (const auto& processors : bound) EXPECT_NE(processors, unbound[0]);
}

TEST(ShoalRun, BindingIsRefusedWithoutACoreForEachPe) {
  const auto many = shoal_run("-n 9999 --bind core", "echo started");
  EXPECT_EQ(many.exit_status, 125);
  expect_parts(many.err, {"--bind core: 9999 PEs, but shoal-run may use "});
  const auto hosts = shoal_run("--hosts a,b --bind core", "echo started");
  EXPECT_EQ(hosts.exit_status, 125);
  expect_parts(hosts.err, {"--launcher-args '--bind-to core'"});
  EXPECT_EQ(many.out + hosts.out, "");
}

TEST(ShoalRun, FailedPeIsReportedAndItsStatusReturned) {
  const auto result = shoal_run("-n 3 --grace 0.2", "test $SHOAL_PE != 1 || exit 7; sleep 30");
  EXPECT_EQ(result.exit_status, 7) << result.describe();
  expect_parts(result.err, {"shoal-run: PE 1 (pid ", ") exited with status 7\n"});
  EXPECT_EQ(count(result.err, "shoal-run: "), 1u)
      << "PEs that shoal-run ended are not reported as failures: " << result.describe();
}

TEST(ShoalRun, KilledPeIsReportedWithItsSignal) {
  const auto result =
      shoal_run("-n 2 --grace 0.2", "test $SHOAL_PE != 1 || kill -KILL $$; sleep 30");
  EXPECT_EQ(result.exit_status, 128 + SIGKILL) << result.describe();
  expect_parts(result.err, {") was killed by signal 9 (Killed)\n"});
}

TEST(ShoalRun, OthersHaveTheGracePeriodToReport) {
  const auto result =
      shoal_run("-n 2 --grace 5", "test $SHOAL_PE != 1 || exit 3; sleep 0.3; echo saw it");
  EXPECT_EQ(result.exit_status, 3);
  expect_parts(result.out, {"[0] saw it"});
}

TEST(ShoalRun, StubbornPesAndTheirHelpersAreKilled) {
  const auto result = shoal_run(
      "-n 2 --grace 0.2",
      "trap '' TERM; echo pid $$; sleep 60 & echo pid $!; test $SHOAL_PE != 1 || { sleep 0.2; exit 3; }; "
      "while true; do sleep 60; done");
  EXPECT_EQ(result.exit_status, 3) << result.describe();
  EXPECT_EQ(pids_in(result.out).size(), 4u) << result.describe();
  expect_gone(pids_in(result.out));
}

TEST(ShoalRun, TimeoutEndsTheJob) {
  const auto result = shoal_run("-n 2 --timeout 0.3 --grace 0.2", "echo pid $$; exec sleep 60");
  EXPECT_EQ(result.exit_status, 124) << result.describe();
  expect_parts(result.err, {"ran past its limit of 0.3 s: PEs 0, 1 are ended"});
  expect_gone(pids_in(result.out));
}

TEST(ShoalRun, PassesSignalsOn) {
  Process launcher(
      command("-n 2 --grace 10",
              "trap 'echo got term; exit 0' TERM; trap 'echo got usr1' USR1; echo ready; "
              "while true; do sleep 0.05; done"));
  for (const char* ready : {"[0] ready", "[1] ready"})
    ASSERT_TRUE(launcher.wait_for_output(ready)) << launcher.err();
  launcher.send(SIGUSR1);
  for (const char* got : {"[0] got usr1", "[1] got usr1"})
    EXPECT_TRUE(launcher.wait_for_output(got)) << launcher.out();
  launcher.send(SIGTERM);
  const auto result = launcher.wait();
  EXPECT_TRUE(result.ok()) << result.describe();
  EXPECT_EQ(count(result.out, "got term"), 2u) << result.describe();
}

/// shoal-run as the child of a program that ignores `signal`.
std::vector<std::string> ignoring(const std::string& signal, const std::string& options,
                                  const std::string& script) {
  std::vector<std::string> argv = command(options, script);
  argv.insert(argv.begin(), {"/usr/bin/env", "--ignore-signal=" + signal});
  return argv;
}

// nohup ignores SIGHUP, and a shell ignores SIGINT for its background jobs. shoal-run reads the
// lower signal first: with a grace period of 0 it would end the PEs before they handle SIGUSR1.
TEST(ShoalRun, AnIgnoredSignalStaysIgnored) {
  for (const auto& [name, signal] : {std::pair("HUP", SIGHUP), std::pair("INT", SIGINT)}) {
    Process launcher(ignoring(name, "-n 2 --grace 0",
                              "trap 'echo got usr1; exit 0' USR1; echo ready; "
                              "while true; do sleep 0.05; done"));
    for (const char* ready : {"[0] ready", "[1] ready"})
      ASSERT_TRUE(launcher.wait_for_output(ready)) << launcher.err();
    launcher.send(signal);
    launcher.send(SIGUSR1);
    const auto result = launcher.wait();
    EXPECT_TRUE(result.ok()) << name << ": " << result.describe();
    EXPECT_EQ(count(result.out, "got usr1"), 2u) << name << ": " << result.describe();
  }
}

TEST(ShoalRun, SeesPesEndIfItsParentIgnoresChildren) {
  Process launcher(ignoring("CHLD", "-n 2", "exit 7"));
  const auto result = launcher.wait();
  EXPECT_FALSE(result.timed_out);
  EXPECT_EQ(result.exit_status, 7) << result.describe();
}

TEST(ShoalRun, StatusOfASignalThatPesDoNotHandle) {
  Process launcher(command("-n 2", "echo pid $$; exec sleep 60"));
  for (const char* ready : {"[0] pid", "[1] pid"})
    ASSERT_TRUE(launcher.wait_for_output(ready)) << launcher.err();
  launcher.send(SIGINT);
  const auto result = launcher.wait();
  EXPECT_EQ(result.exit_status, 128 + SIGINT) << result.describe();
  expect_gone(pids_in(result.out));
}

TEST(ShoalRun, KilledLauncherLeavesNoOrphan) {
  Process launcher(command("-n 3", "echo pid $$; exec sleep 60"));
  for (const char* ready : {"[0] pid", "[1] pid", "[2] pid"})
    ASSERT_TRUE(launcher.wait_for_output(ready)) << launcher.err();
  launcher.send(SIGKILL);
  const auto result = launcher.wait();
  ASSERT_EQ(pids_in(result.out).size(), 3u);
  expect_gone(pids_in(result.out));
}

// A wrapper, here a shell and timeout (which makes a process group of its own), is between
// shoal-run and the program.
TEST(ShoalRun, KilledLauncherLeavesNoOrphanBehindAWrapper) {
  Process launcher(
      command("-n 2",
              "/bin/sh -c 'echo pid $$; while :; do sleep 0.05; done' & "
              "timeout 60 /bin/sh -c 'echo pid $$; while :; do sleep 0.05; done'; true"));
  EXPECT_TRUE(wait_for([&] { return pids_in(launcher.out()).size() == 4; }));
  launcher.send(SIGKILL);
  const auto result = launcher.wait();
  const std::vector<pid_t> pids = pids_in(result.out);
  ASSERT_EQ(pids.size(), 4u) << result.describe();
  expect_gone(pids);
  for (const pid_t pid : pids) kill(pid, SIGKILL);  // where the test failed
}

/// Runs a line of shell script in which $RUN is shoal-run.
ProcessResult shell(const std::string& line) {
  return run_program({"/bin/sh", "-c", line}, {{"RUN", kShoalRun}});
}

TEST(ShoalRun, FullDiskIsReportedAndTheJobGoesOn) {
  const auto result = shell(
      "\"$RUN\" -n 2 /bin/sh -c 'echo lost; sleep 0.2; echo end of $SHOAL_PE >&2' > /dev/full");
  EXPECT_EQ(result.exit_status, 125) << result.describe();
  expect_parts(
      result.err,
      {"shoal-run: cannot write the PEs' output to standard output: No space left on device",
       "[0] end of 0", "[1] end of 1"});
  EXPECT_EQ(count(result.err, "cannot write"), 1u) << result.describe();
}

TEST(ShoalRun, ClosedPipeIsReportedAndEndsTheJob) {
  const auto result = shell(
      "{ \"$RUN\" -n 2 --grace 0.2 /bin/sh -c 'echo pid $$ >&2; while echo x; do :; done; sleep 60'; "
      "echo status $? >&2; } | head -n 1");
  EXPECT_TRUE(result.ok()) << result.describe();
  expect_parts(result.err,
               {"cannot write the PEs' output to standard output: Broken pipe", "status 125"});
  expect_gone(pids_in(result.err));
}

/// shoal-run, whose standard output is a pipe that is full because this process does not read it.
class Unread {
 public:
  explicit Unread(const std::string& options, const std::string& script) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return;
    reader_ = ends[0];
    // The shell opens its end by name, because Process gives its children outputs of its own.
    const std::string to = fmt::format("/proc/{}/fd/{}", getpid(), ends[1]);
    launcher_.emplace(std::vector<std::string>{
        "/bin/sh", "-c", fmt::format("exec \"$0\" {} /bin/sh -c '{}' > {}", options, script, to),
        kShoalRun});
    writer_ = ends[1];
  }
  ~Unread() {
    close(reader_);
    close(writer_);
  }
  /// Until the pipe holds all that it can.
  bool full() const {
    return wait_for([&] {
      pollfd entry{writer_, POLLOUT, 0};
      return poll(&entry, 1, 0) == 0;
    });
  }
  Process& launcher() { return *launcher_; }

 private:
  std::optional<Process> launcher_;
  int reader_ = -1, writer_ = -1;
};

constexpr const char* kEndlessOutput = "echo pid $$ >&2; while :; do echo xxxxxxxxxxxxxxxx; done";

TEST(ShoalRun, UnreadOutputDoesNotHoldUpTheTimeout) {
  Unread run("-n 2 --timeout 1 --grace 0.2", kEndlessOutput);
  const auto result = run.launcher().wait();
  EXPECT_EQ(result.exit_status, 124) << result.describe();
  expect_parts(result.err, {"ran past its limit of 1 s: PEs 0, 1 are ended",
                            "the end of standard output is lost: its reader did not read"});
  expect_gone(pids_in(result.err));
}

TEST(ShoalRun, UnreadOutputDoesNotHoldUpSignals) {
  for (const int signal : {SIGTERM, SIGINT}) {
    Unread run("-n 2 --grace 0.2", kEndlessOutput);
    ASSERT_TRUE(run.full());
    run.launcher().send(signal);
    const auto result = run.launcher().wait();
    EXPECT_EQ(result.exit_status, 128 + signal) << result.describe();
    expect_gone(pids_in(result.err));
  }
}

TEST(ShoalRun, SlowReadersGetAllOutput) {
  // More than the pipes and shoal-run hold, of PEs that have ended long before it is read.
  const auto result = shell(
      "\"$RUN\" -n 2 /bin/sh -c 'head -c 1000000 /dev/zero | tr \"\\\\0\" y; echo' | { sleep 1; wc -c; }");
  EXPECT_TRUE(result.ok()) << result.describe();
  const int labels = 2 * 4 * (1'000'000 / (64 << 10) + 1);
  EXPECT_GE(std::stoi(result.out), 2'000'002) << result.describe();
  EXPECT_LE(std::stoi(result.out), 2'000'002 + 2 * labels) << result.describe();
}

TEST(ShoalRun, FirstPeReadsStandardInput) {
  const auto result = shell("printf 'one\\ntwo\\n' | \"$RUN\" -n 2 cat");
  EXPECT_EQ(result.out, "[0] one\n[0] two\n") << result.describe();
  const auto closed = shell("\"$RUN\" -n 1 cat <&-");
  EXPECT_TRUE(closed.ok()) << closed.describe();
  EXPECT_EQ(closed.out, "");
}

TEST(ShoalRun, ClosedOutputIsReported) {
  const auto result = shell("\"$RUN\" -n 2 /bin/sh -c 'echo lost' >&-");
  EXPECT_EQ(result.exit_status, 125) << result.describe();
  expect_parts(result.err, {"standard output: Bad file descriptor"});
}

TEST(ShoalRun, HelpThatCannotBeWrittenIsAFailure) {
  const auto result = shell("\"$RUN\" --help > /dev/full");
  EXPECT_EQ(result.exit_status, 125) << result.describe();
  expect_parts(result.err, {"cannot write to standard output: No space left on device"});
}

TEST(ShoalRun, PesHaveTheUsualActionForAClosedPipe) {
  const auto result =
      shoal_run("-n 1", "/bin/sh -c 'kill -PIPE $$; echo survived'; echo status $?");
  EXPECT_EQ(result.out, "status 141\n") << result.describe();
}

/// A memory cgroup of the test's own, for programs that enter it; version 1 or 2.
class MemoryLimit {
 public:
  explicit MemoryLimit(std::size_t bytes) {
    const std::string name = "/shoal-test-" + std::to_string(getpid());
    for (const auto& [base, file] : {std::pair{"/sys/fs/cgroup/memory", "memory.limit_in_bytes"},
                                     std::pair{"/sys/fs/cgroup", "memory.max"}}) {
      folder_ = base + name;
      std::error_code error;
      if (!std::filesystem::create_directory(folder_, error)) continue;
      if (std::filesystem::exists(folder_ + "/" + file)) {
        std::ofstream(folder_ + "/" + file) << bytes;
        std::ifstream(folder_ + "/" + file) >> limit_;
        if (limit_ == bytes) return;
      }
      rmdir(folder_.c_str());
    }
    folder_.clear();
  }
  ~MemoryLimit() {
    // The kernel moves processes out of the cgroup a moment after they end.
    if (!folder_.empty()) wait_for([&] { return rmdir(folder_.c_str()) == 0; });
  }
  bool works() const { return !folder_.empty(); }
  std::string procs() const { return folder_ + "/cgroup.procs"; }

 private:
  std::string folder_;
  std::size_t limit_ = 0;
};

TEST(ShoalRun, PeKilledForLackOfMemoryIsReportedAsSuch) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "a sanitized shoal-run takes more memory than the PE that is to be killed";
#endif
  constexpr std::size_t kLimit = std::size_t{64} << 20;
  const MemoryLimit limit(kLimit);
  if (!limit.works()) GTEST_SKIP() << "needs the right to make a memory cgroup";
  // tail keeps its input, which has no line ends, in memory.
  const auto result =
      run_program({"/bin/sh", "-c",
                   "echo $$ > \"$PROCS\" && exec \"$RUN\" -n 2 --grace 0.2 /bin/sh -c "
                   "'test $SHOAL_PE = 0 && exec sleep 60; exec tail -n 1 /dev/zero'"},
                  {{"RUN", kShoalRun}, {"PROCS", limit.procs()}});
  EXPECT_EQ(result.exit_status, 128 + SIGKILL) << result.describe();
  expect_parts(result.err, {"PE 1 (pid ", "was killed by signal 9", "out of memory",
                            std::to_string(kLimit) + " bytes"});
}

TEST(ShoalRun, ProgramThatCannotBeStarted) {
  const auto missing = run_program({kShoalRun, "-n", "2", "/no/such/program"});
  EXPECT_EQ(missing.exit_status, 127) << missing.describe();
  expect_parts(missing.err,
               {"/no/such/program could not be started as PE 0: No such file or directory"});
  const auto directory = run_program({kShoalRun, "-n", "2", "/tmp"});
  EXPECT_EQ(directory.exit_status, 126) << directory.describe();
}

TEST(ShoalRun, CommandLine) {
  EXPECT_EQ(run_program({kShoalRun, "-n", "1", "echo", "-n", "x", "--help"}).out, "x --help")
      << "options after the program belong to the program";
  EXPECT_EQ(run_program({kShoalRun, "-n", "1", "--", "echo", "x"}).out, "x\n");
  EXPECT_EQ(run_program({kShoalRun, "-n", "2"}).exit_status, 125);
  EXPECT_EQ(run_program({kShoalRun, "-n", "0", "true"}).exit_status, 125);
  EXPECT_EQ(run_program({kShoalRun, "true"}).exit_status, 125);
  EXPECT_EQ(run_program({kShoalRun, "-n", "2", "--frobnicate", "true"}).exit_status, 125);
  for (const char* option : {"-np", "--np"})
    EXPECT_EQ(run_program({kShoalRun, option, "1", "echo", "-np", "x"}).out, "-np x\n");
  expect_parts(run_program({kShoalRun, "--version"}).out, {"shoal-run 0.", "\n"});
  const auto unknown = run_program({kShoalRun, "-n", "2", "--nods", "2", "true"});
  EXPECT_EQ(unknown.exit_status, 125);
  expect_parts(unknown.err, {"--nods is not an option of shoal-run; did you mean --nodes?"});
  const auto help = run_program({kShoalRun, "--help"});
  EXPECT_TRUE(help.ok());
  expect_parts(help.out, {"--nodes", "--timeout", "--grace", "--no-label", "Exit status"});
}

TEST(ShoalRun, TimesAreNumbers) {
  for (const char* option : {"--timeout", "--grace"})
    for (const char* value : {"nan", "inf", "-1", "1e7", "soon"}) {
      const auto result = run_program({kShoalRun, "-n", "1", option, value, "echo", "started"});
      EXPECT_EQ(result.exit_status, 125) << option << " " << value << result.describe();
      EXPECT_EQ(result.out, "");
    }
  EXPECT_EQ(shoal_run("-n 1 --timeout 1e-9 --grace 0.1", "exec sleep 60").exit_status, 124);
}

SHOAL_PE_BODY(meet) {
  for (int world = 0; world < 3; ++world) {
    const auto bootstrap = make_bootstrap(pe.settings);
    bootstrap->barrier("met");
    bootstrap->close();
  }
}

TEST(ShoalRun, PesMeet) {
  // The test program itself is the job. Its PEs meet through the root inside shoal-run, and later
  // through roots of PE 0.
  const auto result =
      run_program({kShoalRun, "-n", "4", "/proc/" + std::to_string(getpid()) + "/exe",
                   "--gtest_brief=1", "--gtest_filter=*", "--shoal-pe-body=meet"});
  EXPECT_TRUE(result.ok()) << result.describe();
}

}  // namespace
}  // namespace shoal::test
