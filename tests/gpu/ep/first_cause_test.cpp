// SPDX-License-Identifier: Apache-2.0
// Messages about a failed group on GPUs name the rank that failed first, not a rank that gave up
// because of it.
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>

#include "checks/ep/gpu_low_latency.hpp"
#include "shoal/collective.hpp"
#include "support/expect_error.hpp"

namespace shoal::test {
namespace {

constexpr std::chrono::milliseconds kShort{500}, kLong{15'000};
constexpr std::int32_t kFirst = 0, kAbsent = 2;

const EpCase kCase{
    .ranks = 3, .experts = 6, .top_k = 4, .hidden = 256, .max_tokens = 48, .seed = 3, .holes = 0};

ep::GroupOptions options_of(Pe pe) {
  ep::GroupOptions options = options_for(kCase);
  options.timeout = pe == kFirst ? kShort : kLong;  // each rank its own
  return options;
}

/// Rank 0 gives up because rank 2 is absent. Rank 2 then calls, so that rank 1 waits for rank 0
/// alone.
void expect_the_absent_is_named(GpuGroup& group, const std::function<void()>& call) {
  if (group.me == kAbsent) std::this_thread::sleep_for(kShort + std::chrono::milliseconds(1500));
  const std::string message = error_of(call);
  SCOPED_TRACE("PE " + std::to_string(group.me) + ": " + message);
  const auto has = [&](const char* part) { return message.find(part) != std::string::npos; };
  if (group.me == kFirst) {
    EXPECT_TRUE(has("timed out"));
    EXPECT_TRUE(has("from PE 2"));
  } else if (group.me == kAbsent) {
    EXPECT_TRUE(has("PE 0 has given this group up because of PE 2 (this PE)") ||
                has("PE 1 has given this group up because of PE 2 (this PE)"));
  } else {
    // Rank 2 gives up as well, and rank 1 may see that first.
    EXPECT_TRUE(has("PE 0 has given this group up because of PE 2,") ||
                has("PE 2 has given this group up: its own message says why"));
  }
}

TEST(EpGpuFirstCause, ASurvivorOfANormalDispatchNamesThePeThatDidNotCome) {
  SHOAL_SKIP_WITHOUT_GPU();
  run_threads(kCase.ranks, gpu_settings(), [](World& world) {
    ep::GroupOptions options = options_of(world.my_pe());
    options.low_latency_max_tokens = 0;
    GpuGroup group(world, options);
    GpuRound round(group, kCase, {});
    round.run();
    sync(world.team());
    expect_the_absent_is_named(group, [&] {
      round.dispatch(round.route());
      group.group.synchronize();
    });
    sync(world.team());
  });
}

TEST(EpGpuFirstCause, ASurvivorOfALowLatencyRoundNamesThePeThatDidNotCome) {
  SHOAL_SKIP_WITHOUT_GPU();
  run_threads(kCase.ranks, gpu_settings(), [](World& world) {
    ep::GroupOptions options = options_of(world.my_pe());
    options.max_tokens = 0;
    GpuGroup group(world, options);
    GpuLowLatencyRound round(group, kCase, {});
    round.run();
    group.group.synchronize();
    sync(world.team());
    expect_the_absent_is_named(group, [&] {
      try {
        round.run();
      } catch (const Error&) {
        throw;
      } catch (const std::exception&) {
        // The check of the rows, of which those of the absent PE are missing.
      }
      group.group.synchronize();
    });
    sync(world.team());
  });
}

}  // namespace
}  // namespace shoal::test
