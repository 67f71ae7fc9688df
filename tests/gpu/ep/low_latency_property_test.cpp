// SPDX-License-Identifier: Apache-2.0
// Low-latency mode on GPUs with random shapes against the naive references: 1 to 8 ranks, rows of
// 256 to 16384 channels in steps of 8 (float8: 16), top-k 1 to 128, up to 1024 experts and 512
// tokens, holes, skewed loads, every encoding, reduction and option, deferred receives, one or two
// open operations. tests/property/ep_draws_test.cpp checks that the seeds cover all of it.
#include <gtest/gtest.h>

#include "checks/ep/draws.hpp"

namespace shoal::test {
namespace {

using Round = GpuLowLatencyRound;

/// Sends both dispatches before receiving either, and both combines likewise.
void run_both_open(Round& a, Round& b) {
  ep::PendingDispatch sent_a = a.send(), sent_b = b.send();
  const ep::LowLatencyReceived got_a = sent_a.receive(), got_b = sent_b.receive();
  a.check(got_a);
  b.check(got_b);
  a.write_expert_output();
  ep::PendingCombine back_a = a.combine(got_a);
  b.write_expert_output();  // the buffer of zero copy is that of the next combine
  ep::PendingCombine back_b = b.combine(got_b);
  const Tensor out_a = back_a.receive(), out_b = back_b.receive();
  a.check(out_a);
  b.check(out_b);
  a.poison(got_a);
  b.poison(got_b);
}

class EpGpuLowLatencyProperty : public ::testing::TestWithParam<std::uint64_t> {};
INSTANTIATE_TEST_SUITE_P(Seeds, EpGpuLowLatencyProperty,
                         ::testing::Range<std::uint64_t>(1, kLowLatencySeeds + 1));

TEST_P(EpGpuLowLatencyProperty, RandomShapesMatchTheReference) {
  SHOAL_SKIP_WITHOUT_GPU();
  const LowLatencyDraw drawn = draw_low_latency(GetParam());
  SCOPED_TRACE(drawn.c.describe());
  ep::GroupOptions options = options_for(drawn.c);
  options.max_tokens = 0;
  const std::size_t bytes = ep::size_hint(options, drawn.c.ranks, DeviceKind::cuda).total();
  run_threads(drawn.c.ranks, low_latency_settings(drawn.c.ranks, (bytes >> 20) + 16),
              [&](World& world) {
                GpuGroup group(world, options);
                EpCase first = drawn.c, second = drawn.c;
                for (const LowLatencyDraw::Step& step : drawn.steps) {
                  first.seed += 1000;
                  second.seed = first.seed + 500;
                  Round a(group, first, step.first);
                  if (!step.both_open) {
                    a.run();
                    continue;
                  }
                  Round b(group, second, step.second);
                  run_both_open(a, b);
                }
                group.group.synchronize();
              });
}

}  // namespace
}  // namespace shoal::test
