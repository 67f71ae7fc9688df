// Barrier and sync: collectives without data.
#include "shoal/collective.hpp"
#include "world/state.hpp"

namespace shoal {

void barrier(const Team& team) {
  detail::TeamState& state = team.state();
  state.world->quiet();
  state.world->sync(state, "barrier");
}

void sync(const Team& team) {
  detail::TeamState& state = team.state();
  state.world->sync(state, "sync");
}

}  // namespace shoal
