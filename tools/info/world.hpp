// SPDX-License-Identifier: Apache-2.0
// world.hpp: what only an open world shows: the transport of every pair of PEs, and the duration of
// each phase of the start.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "shoal/connectivity.hpp"
#include "shoal/world.hpp"

namespace shoal::info {

/// The start of one PE.
struct PeTimeline {
  std::vector<InitPhase> phases;
};

/// The RDMA NICs of one PE and its queue pairs on them, as JSON; {"missing": reason} without NICs.
using PeNics = nlohmann::json;

struct WorldView {
  Pe my_pe = 0;
  ConnectivityReport connectivity;
  std::vector<PeTimeline> timelines;  ///< indexed by PE
  std::vector<PeNics> nics;           ///< indexed by PE; empty: not asked for
};

/// Opens a world from the environment of this process, alone or under a launcher, collects the view
/// and closes the world. Collective. All PEs get the same view, except my_pe. Throws like
/// World::open.
WorldView collect_world(bool with_nics);

std::string connectivity_text(const WorldView& view);
nlohmann::json connectivity_json(const WorldView& view);

PeNics collect_nics();
std::string nics_text(const WorldView& view);
nlohmann::json nics_json(const WorldView& view);

std::string timeline_text(const WorldView& view);
nlohmann::json timeline_json(const WorldView& view);
/// One row of bars per PE, aligned at the end of the start.
std::string timeline_svg(const WorldView& view);

}  // namespace shoal::info
