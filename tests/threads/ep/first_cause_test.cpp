// SPDX-License-Identifier: Apache-2.0
// Messages about a failed group name the rank that failed first, not a rank that timed out because
// of it.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "checks/ep/normal.hpp"
#include "shoal/world.hpp"

namespace shoal::test {
namespace {

std::string message_of(ep::Group& group, const Inputs& in, const ep::Routing& routing) {
  try {
    group.dispatch(in.x, routing);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// PE 0 waits for PE 1, which does not call dispatch. PE 2 calls it later.
TEST(EpFirstCause, ALaterCallNamesTheMissingPe) {
  const EpCase c{.ranks = 3, .experts = 6, .top_k = 2, .hidden = 64, .max_tokens = 8, .seed = 1};
  std::atomic<bool> failed{false}, seen{false};
  const auto wait_until = [](const std::atomic<bool>& flag) {
    while (!flag) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  run_threads(c.ranks, ep_settings(), [&](World& world) {
    ep::GroupOptions options = options_for(c);
    options.timeout = std::chrono::milliseconds(100);
    ep::Group group(world.team(), options);
    const Inputs in(c, world.my_pe());
    const ep::Routing routing = group.route(in.topk_idx);
    switch (world.my_pe()) {
      case 0:
        EXPECT_NE(message_of(group, in, routing).find("from PE 1"), std::string::npos);
        failed = true;
        break;
      case 1:
        wait_until(seen);
        break;
      default:
        wait_until(failed);
        EXPECT_NE(
            message_of(group, in, routing).find("PE 0 has given this group up because of PE 1"),
            std::string::npos);
        seen = true;
    }
  });
}

}  // namespace
}  // namespace shoal::test
