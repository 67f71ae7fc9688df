// SPDX-License-Identifier: Apache-2.0
// dispatch_forward.hpp: the part of a dispatch that crosses nodes.
#pragma once

#include <cstdint>

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

}  // namespace shoal::ep::host
