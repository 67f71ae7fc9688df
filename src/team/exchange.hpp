// SPDX-License-Identifier: Apache-2.0
// exchange.hpp: the operations over a team that all collectives consist of. All are collective.
// After one has failed on this PE, later ones on the same team throw the same error.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "pe/control.hpp"
#include "team/team_state.hpp"

namespace shoal::detail {

/// All-gather of a blob of at most kExchangeBytes bytes, of the same length on all PEs of the team.
/// `what` names the call in messages. Result: size() blobs, by PE.
///
/// `declared`: compared among the PEs in place of `bytes`. For blobs whose length follows from what
/// their start says: on a disagreement every PE still gets the start of each blob.
inline constexpr std::size_t kExchangeBytes = ExchangeEntry::kBlobBytes;
std::vector<std::byte> exchange(TeamState& team, const void* mine, std::size_t bytes,
                                const char* what, std::size_t declared = 0);

/// Waits for all PEs of the team. Does not complete outstanding operations. In teams of at most
/// ControlLayout::kDirectPes PEs, what other PEs have put to this one before they called is there.
void sync(TeamState& team, const char* what);

/// Bytes for the heap of another PE.
struct Delivery {
  std::size_t offset = 0;
  const void* source = nullptr;
  std::size_t bytes = 0;
};
/// Like sync, but writes deliveries[i] to PE i of the team first; that of this PE itself is
/// ignored. On return the deliveries of the other PEs to this one have arrived, and the sources may
/// be reused. Heaps are on the host. Half a round trip, where a get takes a whole one.
void deliver(TeamState& team, std::span<const Delivery> deliveries, const char* what);

}  // namespace shoal::detail
