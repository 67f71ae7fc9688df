// SPDX-License-Identifier: Apache-2.0
// Routings passed between groups of the three backends: in GPU memory, on the host, and in GPU
// memory with rows that pass through the host. Each PE belongs to a world of every kind.
#include <gtest/gtest.h>

#include "checks/ep/gpu_normal.hpp"
#include "shoal/bootstrap.hpp"
#include "shoal/collective.hpp"
#include "support/expect_error.hpp"

namespace shoal::test {
namespace {

constexpr Pe kRanks = 2;

Settings staged_settings() {
  Settings settings = gpu_settings();
  settings.transport_inside = "staged";
  settings.staging_size = std::size_t{256} << 20;
  return settings;
}

TEST(EpGpuRoutingOrigin, RoutingOfAnotherBackendIsRejected) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c{.ranks = kRanks, .experts = 8, .top_k = 4, .hidden = 512, .max_tokens = 40};
  ep::GroupOptions options = options_for(c);
  options.low_latency_max_tokens = 0;
  auto on_host = thread_bootstraps(kRanks), through_host = thread_bootstraps(kRanks);
  run_threads(kRanks, gpu_settings(), [&](World& world) {
    const auto pe = static_cast<std::size_t>(world.my_pe());
    World host_world = World::open({ep_settings(), std::move(on_host[pe])});
    World staged_world = World::open({staged_settings(), std::move(through_host[pe])});
    {
      GpuGroup gpu(world, options), staged(staged_world, options);
      ep::Group host(host_world.team(), options);
      GpuRound gpu_round(gpu, c, {}), staged_round(staged, c, {});
      const Inputs in(c, world.my_pe());

      const ep::Routing of_gpu = gpu_round.route(), of_staged = staged_round.route(),
                        of_host = host.route(in.topk_idx);
      const auto rejected = [&](std::string_view made_by, std::string_view used_by,
                                const std::function<void()>& call) {
        expect_error(
            Code::invalid_argument,
            fmt::format("made by a group of the {} backend; this group uses the {} backend",
                        made_by, used_by),
            call);
      };
      rejected("host", "CUDA", [&] { gpu_round.dispatch(of_host); });
      rejected("host", "CUDA", [&] { gpu_round.dispatch(of_staged); });
      rejected("CUDA", "host", [&] { host.dispatch(in.x, of_gpu); });
      rejected("CUDA", "staged", [&] { staged_round.dispatch(of_gpu); });

      // Both routings lie on the host and may be exchanged. The groups are usable afterwards.
      host.dispatch(in.x, of_staged);
      staged_round.check(staged_round.dispatch(of_host));
      gpu_round.run();
      staged_round.run();
      check_normal(host, c);
      for (World* each : {&world, &host_world, &staged_world}) sync(each->team());
    }
    host_world.close();
    staged_world.close();
  });
}

}  // namespace
}  // namespace shoal::test
