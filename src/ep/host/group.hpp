// SPDX-License-Identifier: Apache-2.0
// group.hpp: what the host backend keeps for a group.
#pragma once

#include <optional>
#include <vector>

#include "ep/host/rows/worker_pool.hpp"
#include "ep/plan/layout.hpp"
#include "ep/state.hpp"

namespace shoal::ep::host {

/// The arrays of one low-latency dispatch's result.
struct LowLatencyResult {
  Tensor x, scales, counts, source_token, layout;
};

struct HostGroup {
  HostGroup(const detail::Shape& shape, std::int32_t threads)
      : layout(shape),
        workers(threads),
        masked(static_cast<std::size_t>(shape.ranks), 0),
        out_of_reach(static_cast<std::size_t>(shape.ranks), 0),
        chunks_sent(static_cast<std::size_t>(shape.nodes), 0),
        chunks_read(static_cast<std::size_t>(shape.nodes), 0) {}

  const detail::GroupLayout layout;
  WorkerPool workers;
  std::vector<char> masked;        ///< [ranks]: left out of low-latency operations
  std::vector<char> out_of_reach;  ///< [ranks]: masked, and could not be told of it either
  std::vector<std::uint64_t> chunks_sent,
      chunks_read;  ///< [nodes]: to and from the rail peer there; Rail
  std::optional<LowLatencyResult> low_latency_results[2];  ///< used in turn
};

}  // namespace shoal::ep::host
