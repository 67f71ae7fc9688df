// SPDX-License-Identifier: Apache-2.0
#include "info/world.hpp"

#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "shoal/bootstrap.hpp"

namespace shoal::info {
namespace {

std::vector<PeTimeline> gather_timelines(const World& world) {
  nlohmann::json mine = nlohmann::json::array();
  for (const InitPhase& phase : world.init_phases())
    mine.push_back({phase.name, phase.duration.count(), phase.waited.count()});
  const std::string text = mine.dump();
  const auto bytes = std::as_bytes(std::span(text));
  std::vector<PeTimeline> timelines;
  for (const auto& blob : world.bootstrap().all_gather(bytes, "timelines")) {
    PeTimeline& timeline = timelines.emplace_back();
    const auto* const first = reinterpret_cast<const char*>(blob.data());
    for (const auto& phase : nlohmann::json::parse(first, first + blob.size()))
      timeline.phases.push_back({phase[0], std::chrono::nanoseconds(phase[1].get<std::int64_t>()),
                                 std::chrono::nanoseconds(phase[2].get<std::int64_t>())});
  }
  return timelines;
}

}  // namespace

WorldView collect_world() {
  World world = World::open(WorldOptions::from_environment());
  WorldView view;
  view.my_pe = world.my_pe();
  view.connectivity = world.connectivity();
  view.timelines = gather_timelines(world);
  world.close();
  return view;
}

}  // namespace shoal::info
