// SPDX-License-Identifier: Apache-2.0
// Waits that end because the interrupt check of the process says so (shoal/interrupt.hpp).

#include "shoal/interrupt.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "checks/world/operations.hpp"
#include "shoal/collective.hpp"
#include "shoal/ep/group.hpp"
#include "support/expect_error.hpp"

namespace shoal::test {
namespace {

/// True if the next wait of this thread is to end.
// Aligned: lld maps no page for a single byte of thread-local memory before the protected data.
alignas(64) thread_local bool interrupt_next = false;

class Interrupts : public testing::Test {
 protected:
  void SetUp() override {
    set_interrupt_check([]() noexcept { return std::exchange(interrupt_next, false); });
  }
  void TearDown() override { set_interrupt_check(nullptr); }

  static Settings settings() {
    Settings settings = world_settings();
    settings.timeout = std::chrono::hours(1);
    return settings;
  }

  /// The code and message of the error of `call`, whose wait is interrupted.
  template <typename Call>
  static std::string interrupted(const Call& call) {
    interrupt_next = true;
    try {
      call();
    } catch (const Error& error) {
      EXPECT_FALSE(interrupt_next);
      return std::string(name_of(error.code())) + ": " + error.what();
    }
    return "no error";
  }
};

TEST_F(Interrupts, AWaitEndsAndTheWorldGoesOn) {
  run_threads(2, settings(), [](World& world) {
    auto flag = world.heap().allocate<std::int64_t>(1);
    barrier(world.team());
    if (world.my_pe() == 0) {
      const std::string error =
          interrupted([&] { world.wait_until(flag.data(), Compare::equal, 1); });
      expect_parts(error, {"system: wait_until was interrupted on PE 0 of 2"});
    }
    barrier(world.team());
  });
}

TEST_F(Interrupts, AGroupNamesTheInterruptedRankAsTheCause) {
  ep::GroupOptions options;
  options.hidden = 64;
  options.top_k = 1;
  options.experts = 2;
  options.max_tokens = 4;
  std::vector<std::string> errors(2);
  const auto body = [&](World& world) {
    ep::Group group(world.team(), options);
    std::vector<std::uint16_t> row(64);
    std::vector<std::int64_t> expert{1};
    const TensorView x(row.data(), DataType::bfloat16, {1, 64});
    const auto routing = group.route(TensorView(expert.data(), DataType::int64, {1, 1}));
    const auto pe = static_cast<std::size_t>(world.my_pe());
    if (pe == 0) errors[0] = interrupted([&] { (void)group.dispatch(x, routing, {}); });
    barrier(world.team());
    if (pe == 0) return;
    try {
      (void)group.dispatch(x, routing, {});
    } catch (const Error& error) {
      errors[1] = std::string(name_of(error.code())) + ": " + error.what();
    }
  };
  EXPECT_NO_THROW(run_threads(2, settings(), body));
  EXPECT_TRUE(
      errors[0].starts_with("system: SHOAL-N553: dispatch (epoch 1) was interrupted on PE 0"))
      << errors[0];
  expect_parts(errors[1], {"PE 0"});
}

}  // namespace
}  // namespace shoal::test
