// EP with a process per PE: the same checks over shared memory (E2, E3, D2).
#include <gtest/gtest.h>

#include "shoal/world.hpp"
#include "support/ep_checks.hpp"
#include "support/process.hpp"

namespace shoal::test {
namespace {

EpCase shape(std::int32_t ranks) {
  EpCase c;
  c.ranks = ranks;
  c.experts = ranks * 4;
  c.top_k = 6;
  c.hidden = 512;
  c.max_tokens = 30;
  return c;
}

SHOAL_PE_BODY(both_modes) {
  World world = World::open({pe.settings, nullptr});
  const EpCase c = shape(world.n_pes());
  ep::Group group(world.team(), options_for(c));
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    EpCase now = c;
    now.seed = seed;
    check_normal(group, now);
    check_low_latency(group, now, ep::Reduction::per_rank, seed % 2 == 0);
    check_low_latency_fp8(group, now, ep::Quantize::fp8_ue8m0);
  }
  group.close();
  world.close();
}

TEST(EpProcesses, BothModesMatchTheReference) {
  for (const std::int32_t ranks : {1, 3, 8}) expect_success(run_pes(ranks, "both_modes"));
}

}  // namespace
}  // namespace shoal::test
