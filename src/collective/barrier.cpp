// SPDX-License-Identifier: Apache-2.0
// Barrier, sync and exchange_bytes: collectives that use no heap memory.
#include "base/check.hpp"
#include "fabric/fabric.hpp"
#include "shoal/collective.hpp"
#include "team/exchange.hpp"
#include "world/state.hpp"

namespace shoal {

using detail::record::CountedCollective;
using detail::record::WorldOperation;

void barrier(const Team& team) {
  detail::TeamState& state = team.state();
  const CountedCollective counted(state.world->recorder(), WorldOperation::barrier);
  state.world->fabric().quiet();
  detail::sync(state, "barrier");
}

void sync(const Team& team) {
  detail::TeamState& state = team.state();
  const CountedCollective counted(state.world->recorder(), WorldOperation::sync);
  detail::sync(state, "sync");
}

std::vector<std::byte> exchange_bytes(const Team& team, std::span<const std::byte> mine) {
  static_assert(kMaxExchangeBytes == detail::kExchangeBytes);
  detail::TeamState& state = team.state();
  state.world->progress().checked(state.next_call(), [&] {
    require(mine.size() <= kMaxExchangeBytes, Code::invalid_argument,
            "exchange_bytes of {} bytes; allowed: up to {}", mine.size(), kMaxExchangeBytes);
  });
  const CountedCollective counted(state.world->recorder(), WorldOperation::exchange, mine.size());
  return detail::exchange(state, mine.data(), mine.size(), "exchange_bytes");
}

}  // namespace shoal
