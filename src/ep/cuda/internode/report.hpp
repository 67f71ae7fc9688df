// SPDX-License-Identifier: Apache-2.0
// report.hpp: what a group whose ranks NVLink does not join logs about the ways of its rows.
#pragma once

#include <optional>
#include <string>

#include "ep/cuda/device/network_path.hpp"
#include "shoal/team.hpp"

namespace shoal::ep::cuda {

/// Paths by which the rows of a group reach the ranks that loads and stores do not reach.
struct InternodeWays {
  std::optional<NetworkPath> normal, low_latency;  ///< of the mode's kernels; nullopt: staged
  std::string reason;  ///< why a mode is staged; empty: it has no such kernels
  /// CUDA loads kernels when they are first used, which can hold up the copies that a proxy makes
  /// for these kernels. Calls of the group wait for the GPU.
  bool loads_lazily = false;
};

/// Logs it on a PE that does not reach all others: a warning where rows pass through host memory
/// and the GPUs of a node should reach each other; information where nodes or settings are the
/// cause.
void report_internode(const Team& team, const InternodeWays& ways);

}  // namespace shoal::ep::cuda
