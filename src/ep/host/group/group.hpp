// SPDX-License-Identifier: Apache-2.0
// group.hpp: the state that the host backend keeps for a group.
#pragma once

#include <optional>
#include <vector>

#include "ep/group/state.hpp"
#include "ep/host/group/layout.hpp"
#include "ep/host/rows/worker_pool.hpp"
#include "pe/wait_order.hpp"

namespace shoal::ep::host {

/// The arrays of one low-latency dispatch's result.
struct LowLatencyResult {
  Tensor x, scales, counts, source_token, layout;
};

struct HostGroup {
  HostGroup(detail::GroupState& owner, std::int32_t threads)
      : state(owner),
        layout(owner.shape, owner.world->settings()),
        workers(threads),
        pes(state_of(owner.team).pes),
        meets_at_first(owner.nodes.count == 1 && !owner.options.mask_failed &&
                       state_of(owner.team).meeting == shoal::detail::Meeting::at_first),
        masked(static_cast<std::size_t>(owner.shape.ranks), 0),
        out_of_reach(static_cast<std::size_t>(owner.shape.ranks), 0),
        chunks_sent(static_cast<std::size_t>(owner.shape.nodes), 0),
        chunks_read(static_cast<std::size_t>(owner.shape.nodes), 0) {}

  detail::GroupState& state;
  const GroupLayout layout;
  WorkerPool workers;
  const std::vector<Pe> pes;  ///< [ranks]: the number of each rank in the world
  /// Ranks raise signals in the block of the first one alone, where normal mode has its notices
  /// too, and the last to come releases the others (Meeting::at_first).
  const bool meets_at_first;
  std::vector<char> masked;        ///< [ranks]: masked in low-latency operations
  std::vector<char> out_of_reach;  ///< [ranks]: masked, and writing to them fails
  /// [nodes]: chunks to and from the rail peer there (Rail).
  std::vector<std::uint64_t> chunks_sent, chunks_read;
  shoal::detail::WaitOrder wait_order;
  std::optional<LowLatencyResult> low_latency_results[2];  ///< by parity of the epoch
};

}  // namespace shoal::ep::host
