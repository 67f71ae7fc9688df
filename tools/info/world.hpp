// SPDX-License-Identifier: Apache-2.0
// world.hpp: what can only be seen of an open world: who reaches whom through what, and how long
// the start took.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "shoal/world.hpp"
#include "world/fabric/connectivity_report.hpp"

namespace shoal::info {

/// How one PE started.
struct PeTimeline {
  std::vector<InitPhase> phases;
};

struct WorldView {
  Pe my_pe = 0;
  detail::ConnectivityReport connectivity;
  std::vector<PeTimeline> timelines;  ///< by PE
};

/// Opens a world by this process's environment, alone or under a launcher, looks at it and closes
/// it. Collective; all PEs get the same, but for my_pe. Throws like World::open.
WorldView look_at_world();

std::string connectivity_text(const WorldView& view);
nlohmann::json connectivity_json(const WorldView& view);

std::string timeline_text(const WorldView& view);
nlohmann::json timeline_json(const WorldView& view);
/// Bars of all PEs below each other, a row a PE, set against each other at the end of the start.
std::string timeline_svg(const WorldView& view);

}  // namespace shoal::info
