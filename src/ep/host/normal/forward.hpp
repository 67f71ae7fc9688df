// SPDX-License-Identifier: Apache-2.0
// forward.hpp: the parts of a dispatch and of a combine that cross nodes (host/internode).
#pragma once

#include <cstdint>
#include <vector>

#include "ep/host/normal/normal.hpp"

namespace shoal::ep::host {

/// The local part of the same operation, in steps.
struct LocalWork {
  virtual ~LocalWork() = default;
  /// Copies at most the next `tokens` tokens; returns whether it copied any.
  virtual bool some(std::int64_t tokens) = 0;
  virtual bool done() const = 0;
};

/// Sends this rank's tokens to its rail peers, each token once to every node that needs it, and
/// forwards the peers' tokens to the ranks of this node. Runs `local` while it waits. Returns when
/// everything is done.
void dispatch_forward(HostGroup& group, const DispatchCall& call, const DispatchPlan& plan,
                      LocalWork& local);

/// The expert output of the ranks of this node, as addresses in this process; nullptr for remote
/// ranks.
struct LocalExpertOutput {
  std::vector<const std::byte*> rows;     ///< [ranks]
  std::vector<const std::byte*> weights;  ///< [ranks]; float32 [.., top_k], expert-major [.., 1]
};

/// Sums this node's combine rows of the rail peers' tokens and sends each peer its sums. Adds the
/// sums of all nodes for the tokens of this rank. Returns when both are done.
void combine_forward(HostGroup& group, const ConstTensorView& y, const HandleState& handle,
                     const CombineOptions& options, const LocalExpertOutput& local_expert_output,
                     Combined& combined);

}  // namespace shoal::ep::host
