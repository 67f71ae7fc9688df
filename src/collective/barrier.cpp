// Barrier and sync: collectives without data.
#include "collective/puller.hpp"
#include "shoal/collective.hpp"

namespace shoal {

void barrier(const Team& team) {
  detail::TeamState& state = team.state();
  collective::quiet(*state.world);
  state.world->sync(state, "barrier");
}

void sync(const Team& team) {
  detail::TeamState& state = team.state();
  state.world->sync(state, "sync");
}

}  // namespace shoal
