// SPDX-License-Identifier: Apache-2.0
#include "info/world.hpp"

#include "shoal/bootstrap.hpp"
#include "world/startup/blob.hpp"
#include "world/state.hpp"

namespace shoal::info {
namespace {

std::vector<PeTimeline> gather_timelines(World& world) {
  detail::BlobWriter mine;
  mine.value<std::uint64_t>(world.init_phases().size());
  for (const InitPhase& phase : world.init_phases()) {
    mine.text(phase.name);
    mine.value<std::int64_t>(phase.duration.count());
    mine.value<std::int64_t>(phase.waited.count());
  }
  std::vector<PeTimeline> timelines;
  for (const auto& blob : world.state().bootstrap().all_gather(mine.take(), "timelines")) {
    detail::BlobReader reader(blob);
    PeTimeline& timeline = timelines.emplace_back();
    for (auto left = reader.value<std::uint64_t>(); left > 0; --left) {
      std::string name = reader.text();
      const std::chrono::nanoseconds duration(reader.value<std::int64_t>());
      timeline.phases.push_back(
          {std::move(name), duration, std::chrono::nanoseconds(reader.value<std::int64_t>())});
    }
  }
  return timelines;
}

}  // namespace

WorldView collect_world() {
  World world = World::open(WorldOptions::from_environment());
  WorldView view;
  view.my_pe = world.my_pe();
  view.connectivity = detail::report_connectivity(world.state());
  view.timelines = gather_timelines(world);
  world.close();
  return view;
}

}  // namespace shoal::info
