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

/// The documents of all PEs.
std::vector<nlohmann::json> gather(const World& world, const nlohmann::json& mine,
                                   const char* what) {
  const std::string text = mine.dump();
  std::vector<nlohmann::json> all;
  for (const auto& blob : world.bootstrap().all_gather(std::as_bytes(std::span(text)), what)) {
    const auto* const first = reinterpret_cast<const char*>(blob.data());
    all.push_back(nlohmann::json::parse(first, first + blob.size()));
  }
  return all;
}

std::vector<PeTimeline> gather_timelines(const World& world) {
  nlohmann::json mine = nlohmann::json::array();
  for (const InitPhase& phase : world.init_phases())
    mine.push_back({phase.name, phase.duration.count(), phase.waited.count()});
  std::vector<PeTimeline> timelines;
  for (const nlohmann::json& phases : gather(world, mine, "timelines")) {
    PeTimeline& timeline = timelines.emplace_back();
    for (const auto& phase : phases)
      timeline.phases.push_back({phase[0], std::chrono::nanoseconds(phase[1].get<std::int64_t>()),
                                 std::chrono::nanoseconds(phase[2].get<std::int64_t>())});
  }
  return timelines;
}

}  // namespace

WorldView collect_world(bool with_nics) {
  World world = World::open(WorldOptions::from_environment());
  WorldView view;
  view.my_pe = world.my_pe();
  view.connectivity = world.connectivity();
  view.timelines = gather_timelines(world);
  if (with_nics) view.nics = gather(world, collect_nics(), "nics");
  world.close();
  return view;
}

}  // namespace shoal::info
