// SPDX-License-Identifier: Apache-2.0
// A PE that dies inside an operation: the other PEs report it at once and by name, and no process
// is left.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cstdio>

#include "checks/ep/rounds.hpp"
#include "shoal/world.hpp"
#include "support/expect_error.hpp"
#include "support/process/print_error.hpp"
#include "support/process/process.hpp"

namespace shoal::test {
namespace {

EpCase shape(std::int32_t ranks) {
  return {.ranks = ranks, .experts = ranks * 2, .top_k = 4, .hidden = 256, .max_tokens = 64};
}

/// Calls `round(group, in, i)` without end, so that a fault falls into an operation; tells the test
/// when it has begun.
template <typename Round>
void run_for_ever(const PeContext& pe, Round&& round) {
  World world = World::open({pe.settings, nullptr});
  const EpCase c = shape(world.n_pes());
  ep::Group group(world.team(), options_for(c));
  const Inputs in(c, world.my_pe());
  for (std::uint64_t i = 0;; ++i) {
    round(group, in, i);
    if (i == 20) {
      std::puts("running");
      std::fflush(stdout);
    }
  }
}

void report_error(const PeContext& pe, const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    print_error(error);
    return;
  }
  FAIL() << "PE " << pe.settings.pe << " ended without an error";
}

SHOAL_PE_BODY(normal_for_ever) {
  report_error(pe, [&] {
    run_for_ever(
        pe, [routing = ep::Routing()](ep::Group& group, const Inputs& in, std::uint64_t) mutable {
          if (!routing.topk_idx.defined()) routing = group.route(in.topk_idx);
          const ep::Dispatched got = group.dispatch(in.x, routing);
          group.combine(got.x, got.handle);
        });
  });
}

void low_latency_pair(ep::Group& group, const Inputs& in, const std::function<void()>& between) {
  ep::PendingDispatch rows =
      group.low_latency_dispatch(in.x, in.topk_idx, {.quantize = ep::Quantize::none});
  between();
  const ep::LowLatencyReceived got = rows.receive();
  group.low_latency_combine(got.x, in.topk_idx, in.weights, got.handle).receive();
}

SHOAL_PE_BODY(low_latency_for_ever) {
  report_error(pe, [&] {
    run_for_ever(pe, [](ep::Group& group, const Inputs& in, std::uint64_t) {
      low_latency_pair(group, in, [] {});
    });
  });
}

SHOAL_PE_BODY(low_latency_until_pe_2_has_sent) {
  report_error(pe, [&] {
    run_for_ever(pe, [&](ep::Group& group, const Inputs& in, std::uint64_t i) {
      low_latency_pair(group, in, [&] {
        if (i == 30 && pe.settings.pe == 2) raise(SIGKILL);
      });
    });
  });
}

/// Kills PE 2 of 4 in the middle of its work and returns what the others said.
std::vector<ProcessResult> kill_one(const std::string& body) {
  PeGroup group = start_pes(4, body, {.env = {{"SHOAL_TIMEOUT_MS", kNever}}});
  for (Process& process : group.pes) EXPECT_TRUE(process.wait_for_output("running"));
  group.pes[2].send(SIGKILL);
  return wait_all(group.pes);
}

/// Every other PE ends with an error that names PE 2. So does a PE that sees a neighbor give up
/// before it sees the death itself.
void expect_reported(const std::vector<ProcessResult>& results) {
  EXPECT_EQ(results[2].signal, SIGKILL);
  for (const int pe : {0, 1, 3}) {
    const std::string& out = results[pe].out;
    EXPECT_TRUE(results[pe].ok()) << results[pe].describe();
    const bool failed = out.find("code=peer_failed") != std::string::npos,
               closed = out.find("code=closed") != std::string::npos;
    EXPECT_TRUE(failed || closed) << results[pe].describe();
    expect_parts(out, {"PE 2"});
  }
}

TEST(EpFaults, APeKilledInNormalModeIsReportedByAllOthers) {
  expect_reported(kill_one("normal_for_ever"));
}

TEST(EpFaults, APeKilledInLowLatencyModeIsReportedByAllOthers) {
  expect_reported(kill_one("low_latency_for_ever"));
}

TEST(EpFaults, APeThatDiesBetweenSendAndReceiveIsReportedByAllOthers) {
  expect_reported(
      run_pes(4, "low_latency_until_pe_2_has_sent", {.env = {{"SHOAL_TIMEOUT_MS", kNever}}}));
}

SHOAL_PE_BODY(continues_without_pe_2) {
  World world = World::open({pe.settings, nullptr});
  const EpCase c = shape(world.n_pes());
  ep::GroupOptions options = options_for(c);
  options.mask_failed = true;
  ep::Group group(world.team(), options);
  const std::vector<int> without_2{0, 0, 1, 0};
  const LowLatencyRound full(c, world.my_pe(), ep::Reduction::exact),
      part(c, world.my_pe(), ep::Reduction::exact, without_2);
  for (int i = 0; group.masked()[2] == 0; ++i) {
    const Tensor out = full.combine(group, full.send(group).receive(), i % 2 == 0).receive();
    (group.masked()[2] == 0 ? full : part).check(out);
    if (i == 3) {
      std::puts("running");
      std::fflush(stdout);
    }
  }
  EXPECT_EQ(group.masked(), without_2);
  for (int i = 0; i < 20; ++i) part.run(group, i % 2 == 0);
  EXPECT_EQ(group.masked(), without_2);
  std::puts("continued");
}

// Masks for failed ranks.
TEST(EpFaults, LowLatencyGoesOnWithoutAKilledPe) {
  PeGroup group = start_pes(4, "continues_without_pe_2", {.env = {{"SHOAL_TIMEOUT_MS", kNever}}});
  for (Process& process : group.pes) ASSERT_TRUE(process.wait_for_output("running"));
  group.pes[2].send(SIGKILL);
  const auto results = wait_all(group.pes);
  for (const int pe : {0, 1, 3}) {
    EXPECT_TRUE(results[pe].ok()) << results[pe].describe();
    expect_parts(results[pe].out, {"continued"});
  }
}

}  // namespace
}  // namespace shoal::test
