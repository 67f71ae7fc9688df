// SPDX-License-Identifier: Apache-2.0
// Ranks of a group on GPUs that stop calling, are late or die. The other ranks report in time which
// rank is missing, in which phase and under which setting; the group is closed afterwards.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <thread>

#include "checks/ep/gpu_low_latency.hpp"
#include "shoal/collective.hpp"
#include "support/expect_error.hpp"
#include "support/process/print_error.hpp"
#include "support/process/process.hpp"

namespace shoal::test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kTimeout{500};
constexpr std::int32_t kAbsent = 2;

EpCase shape(std::int32_t ranks) {
  return {.ranks = ranks,
          .experts = ranks * 2,
          .top_k = 4,
          .hidden = 256,
          .max_tokens = 48,
          .seed = 3,
          .holes = 0};
}

ep::GroupOptions normal_mode(const EpCase& c, std::chrono::milliseconds timeout) {
  ep::GroupOptions options = options_for(c);
  options.low_latency_max_tokens = 0;
  options.timeout = timeout;
  return options;
}

std::string caught(const std::function<void()>& call, Code& code) {
  code = Code{};
  try {
    call();
  } catch (const Error& error) {
    code = error.code();
    return error.what();
  }
  return "no error";
}

/// One rank does not make `call`. The others must report it. Their messages contain `phase` and
/// `wanted`.
void expect_timeout(const std::string& phase, const std::string& wanted,
                    const std::function<void(GpuRound&, const ep::Dispatched&)>& call,
                    bool needs_dispatch) {
  const EpCase c = shape(4);
  run_threads(c.ranks, gpu_settings(), [&](World& world) {
    GpuGroup group(world, normal_mode(c, kTimeout));
    GpuRound round(group, c, {});
    round.run();
    round.run();
    ep::Dispatched got;
    if (needs_dispatch) {
      got = round.dispatch(round.route());
      round.write_expert_output(got);
      group.group.synchronize();
    }
    const auto called = [&] {
      call(round, got);
      group.group.synchronize();
    };
    sync(world.team());
    if (group.me != kAbsent) {
      const auto start = Clock::now();
      Code code{};
      const std::string message = caught(called, code);
      const auto took = Clock::now() - start;
      // A rank that learns of another's failure before its own deadline reports that failure.
      EXPECT_TRUE(code == Code::timeout || code == Code::peer_failed) << message;
      if (code == Code::timeout) {
        EXPECT_GE(took, kTimeout - std::chrono::milliseconds(50)) << message;
        expect_parts(message,
                     {"PE 2", "phase " + phase, wanted, "500 ms", "GroupOptions.timeout", "epoch"});
      }
      const std::string after = caught([&] { round.dispatch(round.route()); }, code);
      EXPECT_EQ(code, Code::closed) << after;
      expect_parts(after, {"failed before"});
    }
    sync(world.team());         // the world stays usable
    if (group.me == kAbsent) {  // calls too late and gets the error
      Code code{};
      const std::string message = caught(called, code);
      EXPECT_TRUE(code == Code::timeout || code == Code::peer_failed || code == Code::closed)
          << message;
    }
    sync(world.team());
  });
}

TEST(EpGpuFaults, ARankThatDoesNotDispatchIsNamed) {
  SHOAL_SKIP_WITHOUT_GPU();
  expect_timeout(
      "notify", "its counts",
      [](GpuRound& round, const ep::Dispatched&) { round.dispatch(round.route()); }, false);
}

TEST(EpGpuFaults, ARankThatDoesNotDispatchWithoutExactSizesIsNamed) {
  SHOAL_SKIP_WITHOUT_GPU();
  expect_timeout(
      "notify", "its counts",
      [](GpuRound& round, const ep::Dispatched& got) { round.dispatch(got.handle); }, true);
}

TEST(EpGpuFaults, ARankThatDoesNotCombineIsNamed) {
  SHOAL_SKIP_WITHOUT_GPU();
  expect_timeout(
      "notify", "its expert outputs",
      [](GpuRound& round, const ep::Dispatched& got) { round.combine(got); }, true);
}

TEST(EpGpuFaults, TheTimeoutOfOneRankEndsTheWaitsOfOthers) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = shape(3);
  run_threads(c.ranks, gpu_settings(), [&](World& world) {
    GpuGroup group(world, normal_mode(c, world.my_pe() == 0 ? kTimeout : std::chrono::hours(1)));
    GpuRound round(group, c, {});
    round.run();
    sync(world.team());
    Code code{};
    std::string message;
    // Rank 0 times out while rank 2 is absent. Rank 1 waits for both and learns of the timeout from
    // rank 0.
    if (group.me == 2) std::this_thread::sleep_for(kTimeout + std::chrono::milliseconds(1500));
    message = caught(
        [&] {
          round.dispatch(round.route());
          group.group.synchronize();
        },
        code);
    if (group.me == 0) {
      EXPECT_EQ(code, Code::timeout) << message;
      expect_parts(message, {"PE 2"});
    } else {
      EXPECT_TRUE(code == Code::peer_failed || code == Code::closed)
          << "PE " << group.me << ": " << message;
      EXPECT_NE(message.find("PE 0"), std::string::npos) << "PE " << group.me << ": " << message;
      EXPECT_NE(message.find("this group up"), std::string::npos)
          << "PE " << group.me << ": " << message;
    }
    sync(world.team());
  });
}

/// PE 1 refuses a dispatch, drops the error and does not come: PE 0 quotes the reason.
TEST(EpGpuFaults, ARefusedCallIsQuoted) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c{.ranks = 2, .experts = 4, .top_k = 2, .hidden = 256, .max_tokens = 8, .seed = 3};
  run_threads(c.ranks, gpu_settings(), [&](World& world) {
    GpuGroup group(world, normal_mode(c, kTimeout));
    GpuRound round(group, c, {});
    round.run();
    sync(world.team());
    if (group.me == 1)
      expect_error(Code::invalid_argument, "dispatch: the handle is not of a dispatch",
                   [&] { group.group.dispatch(TensorView(), ep::Handle()); });
    sync(world.team());
    if (group.me == 0)
      expect_parts(
          error_of([&] {
            round.dispatch(round.route());
            group.group.synchronize();
          }),
          {"timed out", "PE 1 refused its call: dispatch: the handle is not of a dispatch"});
    sync(world.team());
  });
}

TEST(EpGpuFaults, ARankThatIsLateButInTimeIsWaitedFor) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = shape(4);
  run_threads(c.ranks, gpu_settings(), [&](World& world) {
    GpuGroup group(world, normal_mode(c, std::chrono::milliseconds(5000)));
    for (std::int32_t late = 0; late < c.ranks; ++late) {
      GpuRound round(group, c, {});
      if (group.me == late) std::this_thread::sleep_for(kTimeout);
      const ep::Dispatched got = round.dispatch(round.route());
      if (group.me == late) std::this_thread::sleep_for(kTimeout);
      round.check(got);
      round.write_expert_output(got);
      round.check(round.combine(got));
    }
  });
}

// Processes.

SHOAL_PE_BODY(normal_for_ever_on_gpus) {
  try {
    World world = World::open({pe.settings, nullptr});
    const EpCase c = shape(world.n_pes());
    ep::GroupOptions options = options_for(c);
    options.low_latency_max_tokens = 0;
    GpuGroup group(world, options);
    GpuRound round(group, c, {.place = OutputPlace::in_place});
    for (int i = 0;; ++i) {
      round.run();
      if (i == 5) {
        std::puts("running");
        std::fflush(stdout);
      }
    }
  } catch (const Error& error) {
    print_error(error);
  }
  _exit(0);  // the world has failed and cannot be closed
}

TEST(EpGpuFaults, AKilledProcessIsReportedByAllOthers) {
  SHOAL_SKIP_WITHOUT_GPU();
  // Processes that share a GPU take turns on it, so with too few GPUs the test uses only two.
  const int n = gpu_count() >= 4 ? 4 : 2, victim = n - 1;
  PeGroup group = start_pes(
      n, "normal_for_ever_on_gpus",
      {.env = {
           {"SHOAL_HEAP", "cuda"}, {"SHOAL_SYMMETRIC_SIZE", "64M"}, {"SHOAL_TIMEOUT_MS", "4000"}}});
  for (Process& process : group.pes)
    ASSERT_TRUE(process.wait_for_output("running", std::chrono::seconds(90)))
        << process.out() << process.err();
  group.pes[victim].send(SIGKILL);
  const auto results = wait_all(group.pes);
  EXPECT_EQ(results[victim].signal, SIGKILL);
  int named = 0;
  for (int pe = 0; pe < victim; ++pe) {
    const std::string& out = results[pe].out;
    EXPECT_TRUE(results[pe].ok()) << results[pe].describe();
    EXPECT_TRUE(out.find("code=timeout") != std::string::npos ||
                out.find("code=peer_failed") != std::string::npos ||
                out.find("code=closed") != std::string::npos)
        << results[pe].describe();
    named += out.find("PE " + std::to_string(victim)) != std::string::npos;
  }
  EXPECT_GE(named, 1) << results[0].describe();
}

// Processes in low-latency mode: the last one dies before it sends its rows or its combine rows.

constexpr int kRoundsBefore = 4;
// GroupOptions.timeout. The timeout of the world is longer, because processes start further apart.
constexpr Milliseconds kGroupTimeout{3000};

/// The operation whose rows the dead process has not sent, and the reduction: "dispatch sums",
/// "combine exact" and so on.
struct Death {
  explicit Death(const std::string& text)
      : owes_rows(text.starts_with("dispatch")), form{.early_weights = true} {
    form.reduction = text.ends_with("exact") ? ep::Reduction::exact : ep::Reduction::per_rank;
  }
  bool owes_rows;
  GpuLowLatencyCall form;  ///< early weights: no rank waits for those of the dead rank
};

PeOptions low_latency_processes(const std::string& death) {
  return {.env = {{"SHOAL_HEAP", "cuda"},
                  {"SHOAL_SYMMETRIC_SIZE", "64M"},
                  {"SHOAL_TIMEOUT_MS", "20000"}},
          .argument = death,
          .limit = std::chrono::seconds(90)};
}

/// Dies after everything that it has sent is complete, including its last barrier.
void die() {
  std::this_thread::sleep_for(Milliseconds(50));
  raise(SIGKILL);
}

/// A group of low-latency mode after a few rounds.
template <typename Body>
void run_until_death(const PeContext& pe, bool masks, Body&& body) {
  World world = World::open({pe.settings, nullptr});
  const EpCase c = shape(world.n_pes());
  ep::GroupOptions options = options_for(c);
  options.max_tokens = 0;
  options.mask_failed = masks;
  options.timeout = kGroupTimeout;
  GpuGroup group(world, options);
  GpuLowLatencyRound round(group, c, Death(pe.argument).form);
  for (int i = 0; i < kRoundsBefore; ++i) round.run();
  group.group.synchronize();
  sync(world.team());
  body(group, c, round);
}

SHOAL_PE_BODY(low_latency_without_the_last) {
  const Death death(pe.argument);
  run_until_death(pe, true, [&](GpuGroup& group, const EpCase& c, GpuLowLatencyRound& full) {
    const std::int32_t victim = c.ranks - 1;
    std::vector<int> mask(c.ranks, 0);
    mask[victim] = 1;
    GpuLowLatencyCall masked = death.form;
    masked.masked = mask;
    GpuLowLatencyRound part(group, c, masked);
    const auto start = Clock::now();
    if (death.owes_rows) {
      if (group.me == victim) die();
      part.run();
    } else {
      const ep::LowLatencyReceived got = full.send().receive();
      full.check(got);
      full.write_expert_output();
      group.group.synchronize();
      if (group.me == victim) die();
      part.check(full.combine(got).receive());
    }
    EXPECT_EQ(group.group.masked(), mask);
    EXPECT_LT(Clock::now() - start, 3 * kGroupTimeout) << "a rank is masked after one timeout";
    const auto after = Clock::now();
    for (int i = 0; i < 6; ++i) part.run();
    group.group.synchronize();
    EXPECT_LT(Clock::now() - after, kGroupTimeout) << "no rank waits for a masked rank";
    EXPECT_EQ(group.group.masked(), mask);
    std::puts("continued");
    std::fflush(stdout);
    // The world has failed and cannot be closed.
    _exit(testing::UnitTest::GetInstance()->Failed() ? 1 : 0);
  });
}

class EpGpuLowLatencyDeath : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Owing, EpGpuLowLatencyDeath,
                         ::testing::Values("dispatch sums", "dispatch exact", "combine sums",
                                           "combine exact"),
                         [](const auto& tested) {
                           std::string name = tested.param;
                           name[name.find(' ')] = '_';
                           return name;
                         });

TEST_P(EpGpuLowLatencyDeath, TheOthersContinueWithMasks) {
  SHOAL_SKIP_WITHOUT_GPU();
  const auto results =
      run_pes(3, "low_latency_without_the_last", low_latency_processes(GetParam()));
  EXPECT_EQ(results[2].signal, SIGKILL) << results[2].describe();
  for (const int pe : {0, 1}) {
    EXPECT_TRUE(results[pe].ok()) << results[pe].describe();
    expect_parts(results[pe].out, {"continued"});
  }
}

SHOAL_PE_BODY(low_latency_with_the_last) {
  const Death death(pe.argument);
  try {
    run_until_death(pe, false, [&](GpuGroup& group, const EpCase& c, GpuLowLatencyRound& round) {
      const bool dies = group.me == c.ranks - 1;
      if (dies && death.owes_rows) die();
      const ep::LowLatencyReceived got = round.send().receive();
      group.group.synchronize();
      if (dies) die();
      round.combine(got).receive();
      group.group.synchronize();
    });
    std::puts("no error");
  } catch (const Error& error) {
    print_error(error);
  }
  std::fflush(stdout);
  _exit(0);
}

TEST_P(EpGpuLowLatencyDeath, IsReportedWithoutMasks) {
  SHOAL_SKIP_WITHOUT_GPU();
  const Death death(GetParam());
  const auto results = run_pes(3, "low_latency_with_the_last", low_latency_processes(GetParam()));
  EXPECT_EQ(results[2].signal, SIGKILL) << results[2].describe();
  const std::string operation = death.owes_rows ? "low_latency_dispatch" : "low_latency_combine";
  const std::string epoch = std::to_string(kRoundsBefore + 1);
  for (const int pe : {0, 1}) {
    SCOPED_TRACE(results[pe].describe());
    EXPECT_TRUE(results[pe].ok());
    expect_parts(results[pe].out,
                 {"code=timeout", operation + " (epoch " + epoch + ") timed out after 3000 ms",
                  std::string("waiting for ") + (death.owes_rows ? "rows" : "its expert outputs") +
                      " from PE 2",
                  "expected epoch " + epoch, "phase receive", "GroupOptions.timeout"});
  }
}

}  // namespace
}  // namespace shoal::test
