// SPDX-License-Identifier: Apache-2.0
// A rank that stalls or is killed: the records of the others, read from running processes and from
// files, name it. Programs that read the records of a running job do not disturb it.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <regex.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "checks/ep/normal.hpp"
#include "shoal/memory_map.hpp"
#include "shoal/observe.hpp"
#include "shoal/world.hpp"
#include "support/built.hpp"
#include "support/expect_error.hpp"
#include "support/process/process.hpp"
#include "support/temporary_folder.hpp"

namespace shoal::test {
namespace {

constexpr std::int32_t kRanks = 3;

EpCase shape() {
  return {.ranks = kRanks, .experts = kRanks * 2, .top_k = 2, .hidden = 256, .max_tokens = 16};
}

/// Pairs without end; returns when the group fails.
SHOAL_PE_BODY(pairs_for_ever) {
  World world = World::open({pe.settings, nullptr});
  ep::Group group(world.team(), options_for(shape()));
  const Inputs in(shape(), world.my_pe());
  const ep::Routing routing = group.route(in.topk_idx);
  try {
    for (int i = 0;; ++i) {
      const ep::Dispatched got = group.dispatch(in.x, routing);
      group.combine(got.x, got.handle);
      if (i != 10) continue;
      std::puts("running");
      std::fflush(stdout);
    }
  } catch (const Error& error) {
    std::printf("ended: %s\n", error.what());
  }
}

/// A folder for the records.
class Folder {
 public:
  const std::string& path() const { return path_; }
  bool has(Pe pe) const {
    return std::filesystem::exists(folder_.at(fmt::format("shoal_flight_{}.json", pe)));
  }

 private:
  TemporaryFolder folder_;
  std::string path_ = folder_.at("");
};

/// A running job; without a folder no records are written.
PeGroup start(const std::string& folder, const char* timeout_ms) {
  PeGroup group = start_pes(kRanks, "pairs_for_ever",
                            {.env = {{"SHOAL_FLIGHT_DIR", folder},
                                     {"SHOAL_FLIGHT_SIGNAL", "USR1"},
                                     {"SHOAL_TIMEOUT_MS", timeout_ms}}});
  for (Process& pe : group.pes) EXPECT_TRUE(pe.wait_for_output("running"));
  return group;
}
PeGroup start(const Folder& folder, const char* timeout_ms) {
  return start(folder.path(), timeout_ms);
}

/// Reads the records of these processes until `text` is in the verdict.
std::string wait_for_verdict(const std::vector<Process>& pes, std::string_view text) {
  std::string verdict;
  wait_for([&] {
    std::vector<observe::PeRecord> records = observe::read_host();
    std::erase_if(records, [&](const auto& record) {
      return std::none_of(pes.begin(), pes.end(),
                          [&](const Process& pe) { return pe.pid() == record.pid; });
    });
    verdict = observe::who_waits(records);
    return verdict.find(text) != std::string::npos;
  });
  return verdict;
}

/// Reads the records of this host until the last operation of `pe` has a later epoch than now.
void expect_progress(const Process& pe) {
  const auto last = [&] {
    std::uint64_t epoch = 0;
    for (const auto& record : observe::read_host())
      if (record.pid == pe.pid())
        for (const auto& group : record.groups)
          if (!group.operations.empty()) epoch = group.operations.back().epoch;
    return epoch;
  };
  EXPECT_TRUE(wait_for([&, before = last()] { return last() > before; })) << "pid " << pe.pid();
}

/// A regular expression for the beginning of a rank's row in a report of --live, which also has the
/// other jobs of this host.
std::string row_of(const PeGroup& group, Pe pe) {
  return fmt::format(" {} of {} +{} ", pe, kRanks, group.pes[pe].pid());
}

/// Counts the matches of an extended POSIX expression, in which "." is no end of a line.
std::ptrdiff_t count_matches(const std::string& text, const std::string& expression) {
  regex_t regex;
  if (regcomp(&regex, expression.c_str(), REG_EXTENDED | REG_NEWLINE) != 0) return -1;
  std::ptrdiff_t count = 0;
  regmatch_t match;
  for (const char* from = text.c_str(); regexec(&regex, from, 1, &match, 0) == 0; ++count)
    from += match.rm_eo;
  regfree(&regex);
  return count;
}

bool wait_for_matches(const Process& process, const std::string& expression, std::ptrdiff_t count) {
  return wait_for([&] { return count_matches(process.out(), expression) >= count; });
}

std::string contents(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string compare(const Folder& folder) {
  const ProcessResult result = run_program({program("shoal-info"), "--flight", folder.path()});
  EXPECT_TRUE(result.ok()) << result.describe();
  return result.out;
}

TEST(FlightRecord, NamesARankThatIsStopped) {
  const Folder folder;
  PeGroup group = start(folder, "4000");
  std::vector<Process>& pes = group.pes;
  pes[1].send(SIGSTOP);
  // While the job hangs, from another process.
  const std::string verdict = wait_for_verdict(pes, "ranks 0 and 2 wait for it");
  expect_parts(verdict, {"rank 1 (PE 1) is behind: ranks 0 and 2 wait for it"});
  // After the others have given up.
  for (const Pe pe : {0, 2}) EXPECT_TRUE(pes[pe].wait_for_output("ended: ")) << pe;
  EXPECT_TRUE(folder.has(0));
  EXPECT_TRUE(folder.has(2));
  EXPECT_FALSE(folder.has(1));
  const std::string compared = compare(folder);
  expect_parts(compared, {"rank 1 (PE 1) is behind: ranks 0 and 2 wait for it",
                          "it has no record here", "and gave up", "waits for rank 1"});
}

TEST(FlightRecord, LiveNamesARankThatIsStopped) {
  const Folder folder;
  PeGroup group = start(folder, "20000");
  std::vector<Process>& pes = group.pes;
  pes[1].send(SIGSTOP);
  wait_for_verdict(pes, "ranks 0 and 2 wait for it");
  const std::string svg = folder.path() + "/live.svg", html = folder.path() + "/live.html";
  const ProcessResult live = run_program({program("shoal-info"), "--live", "--interval", "0.2",
                                          "--repeat", "2", "--svg", svg, "--html", html});
  ASSERT_TRUE(live.ok()) << live.describe();
  EXPECT_EQ(count_matches(live.out, fmt::format("rank 1 \\(PE 1\\) is behind: ranks 0 and 2 wait "
                                                "for it\n.*\n *rank 0 \\(PE 0, pid {} on ",
                                                pes[0].pid())),
            2)
      << live.out;
  // Rates are 0 because no operation ends between two readings.
  EXPECT_EQ(count_matches(live.out, row_of(group, 0) + "( *0\\.0 ){2,4} *[0-9]+ % +[a-z]+ [0-9]+, "
                                                       "phase [a-z]+, waits for rank [12]"),
            2)
      << live.out;
  expect_parts(live.out, {"operations/s", "waits in ms, rows wait for columns"});
  expect_parts(contents(svg), {"<svg", "for rank 1", "</svg>"});
  expect_parts(contents(html),
               {"<html", "is behind: ranks 0 and 2 wait for it", "<svg", "</html>"});
}

TEST(FlightRecord, LiveNeedsTheSameUser) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to run a program as another user";
  const auto as_other_user = [](const std::string& option) {
    return run_program({"/usr/bin/env", "setpriv", "--reuid=65534", "--regid=65534",
                        "--clear-groups", program("shoal-info"), option});
  };
  const ProcessResult able = as_other_user("--version");
  if (!able.ok()) GTEST_SKIP() << "user 65534 cannot run shoal-info: " << able.describe();
  const Folder folder;
  PeGroup group = start(folder, "20000");
  for (const char* const option : {"--live", "--memory"}) {
    const ProcessResult other = as_other_user(option);
    EXPECT_EQ(other.exit_status, 1) << other.describe();
    EXPECT_EQ(other.err, "no running job of this user has records (other users' jobs need root)\n");
  }
  const ProcessResult own = run_program({program("shoal-info"), "--live", "--interval", "0.01"});
  EXPECT_TRUE(own.ok()) << own.describe();
  for (Pe pe = 0; pe < kRanks; ++pe)
    EXPECT_EQ(count_matches(own.out, row_of(group, pe)), 1) << own.out;
}

TEST(FlightRecord, LiveDoesNotDisturbTheJob) {
  const Folder folder;
  PeGroup group = start(folder, "20000");
  {
    Process live({program("shoal-info"), "--live", "--repeat", "0", "--interval", "0.01"});
    const std::string row = row_of(group, 0);
    const auto reports_again = [&] {
      return wait_for_matches(live, row, count_matches(live.out(), row) + 1);
    };
    for (int round = 0; round < 3; ++round) {
      ASSERT_TRUE(reports_again()) << live.err();
      for (const Process& pe : group.pes) expect_progress(pe);
    }
    ASSERT_TRUE(reports_again()) << live.err();
  }
  // shoal-info has been killed.
  for (const Process& pe : group.pes) {
    expect_progress(pe);
    EXPECT_EQ(pe.out().find("ended: "), std::string::npos) << pe.out();
  }
}

TEST(FlightRecord, ASignalWithoutAFolderIsAWarning) {
  PeGroup group = start("", "20000");
  const std::string warning =
      "SHOAL_FLIGHT_SIGNAL is USR1 but SHOAL_FLIGHT_DIR is empty: no handler is installed";
  EXPECT_EQ(count_matches(group.pes[0].err(), warning), 1) << group.pes[0].err();
  EXPECT_EQ(count_matches(group.pes[1].err(), warning), 0) << "PE 0 warns for all";
}

/// The map of a job whose rank does not answer, by a program that attaches to it.
TEST(FlightRecord, ShowsMemoryOfARankThatIsStopped) {
  const Folder folder;
  PeGroup group = start(folder, "20000");
  group.pes[1].send(SIGSTOP);
  std::vector<observe::MemoryMap> maps = observe::read_host_memory();
  std::erase_if(maps, [&](const auto& map) { return map.pid != group.pes[1].pid(); });
  ASSERT_EQ(maps.size(), 2U);  // the heap and the group
  const observe::MemoryMap& of_group = maps[1];
  const auto region = std::find_if(of_group.regions.begin(), of_group.regions.end(),
                                   [](const auto& one) { return one.name == "notices"; });
  ASSERT_NE(region, of_group.regions.end());
  // Notice 2 of the second parity in the memory of rank 0, at its address in the stopped process.
  const std::uint64_t place =
      region->offset + region->dimensions[0].stride + 2 * region->dimensions[1].stride + 11;
  const std::string address = fmt::format("{:#x}", of_group.addresses[0] + place);
  const ProcessResult found = run_program({program("shoal-info"), "--locate", address});
  EXPECT_TRUE(found.ok()) << found.describe();
  expect_parts(found.out,
               {"notices: parity 1, source rank 2, byte 11 of ", "in group 1 of rank 0 (PE 0)",
                fmt::format("as PE 1 (pid {}) sees it", group.pes[1].pid())});
  const ProcessResult all = run_program({program("shoal-info"), "--memory"});
  expect_parts(all.out, {fmt::format("PE 1 (pid {}), group 1", group.pes[1].pid()),
                         "combine_rows[parity 2][local expert 2]"});
  const ProcessResult nowhere = run_program({program("shoal-info"), "--locate", "0x1"});
  EXPECT_EQ(nowhere.exit_status, 1) << nowhere.describe();
  expect_parts(nowhere.out, {"0x1 lies in no heap and no group"});
}

TEST(FlightRecord, NamesARankThatIsKilled) {
  const Folder folder;
  PeGroup group = start(folder, "20000");
  std::vector<Process>& pes = group.pes;
  pes[2].send(SIGKILL);
  for (const Pe pe : {0, 1}) EXPECT_TRUE(pes[pe].wait_for_output("ended: ")) << pe;
  const std::string compared = compare(folder);
  expect_parts(compared, {"rank 2 (PE 2) is behind", "it has no record here"});
}

TEST(FlightRecord, IsWrittenOnASignalAndTheJobContinues) {
  const Folder folder;
  PeGroup group = start(folder, "20000");
  std::vector<Process>& pes = group.pes;
  // A link at the name that a file has until it is complete.
  const std::string victim = folder.path() + "/victim";
  std::ofstream(victim) << "precious";
  std::filesystem::create_symlink(
      victim, fmt::format("{}/shoal_flight_0.json.{}", folder.path(), pes[0].pid()));
  for (const Process& pe : pes) pe.send(SIGUSR1);
  EXPECT_TRUE(wait_for([&] { return folder.has(0) && folder.has(1) && folder.has(2); }));
  expect_parts(compare(folder), {"group 1 of 3 ranks"});
  EXPECT_EQ(contents(victim), "precious");
  expect_progress(pes[0]);
}

}  // namespace
}  // namespace shoal::test
