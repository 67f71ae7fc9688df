// SPDX-License-Identifier: Apache-2.0
// Barrier, sync and exchange_bytes: collectives that use no heap memory.
#include "base/check.hpp"
#include "shoal/collective.hpp"
#include "world/state.hpp"

namespace shoal {

using detail::record::CountedCollective;
using detail::record::WorldOperation;

void barrier(const Team& team) {
  detail::TeamState& state = team.state();
  const CountedCollective counted(state.world->recorder(), WorldOperation::barrier);
  state.world->quiet();
  state.world->sync(state, "barrier");
}

void sync(const Team& team) {
  detail::TeamState& state = team.state();
  const CountedCollective counted(state.world->recorder(), WorldOperation::sync);
  state.world->sync(state, "sync");
}

std::vector<std::byte> exchange_bytes(const Team& team, std::span<const std::byte> mine) {
  static_assert(kMaxExchangeBytes == detail::WorldState::kExchangeBytes);
  detail::TeamState& state = team.state();
  state.world->checked(state, [&] {
    require(mine.size() <= kMaxExchangeBytes, Code::invalid_argument,
            "exchange_bytes of {} bytes; allowed: up to {}", mine.size(), kMaxExchangeBytes);
  });
  const CountedCollective counted(state.world->recorder(), WorldOperation::exchange, mine.size());
  return state.world->exchange(state, mine.data(), mine.size(), "exchange_bytes");
}

}  // namespace shoal
