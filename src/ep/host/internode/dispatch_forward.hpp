// SPDX-License-Identifier: Apache-2.0
// dispatch_forward.hpp: the part of a dispatch that crosses nodes.
#pragma once

#include <cstdint>

#include "ep/host/normal/normal.hpp"

namespace shoal::ep::host {

/// The local part of the same operation, in steps.
struct LocalWork {
  virtual ~LocalWork() = default;
  /// Does at most the next `tokens`; returns whether there were any.
  virtual bool some(std::int64_t tokens) = 0;
  virtual bool done() const = 0;
};

/// Sends this rank's tokens to its rail peers, each token once to every node that needs it,
/// forwards the peers' tokens to the ranks of this node, and does `local` in between. Returns when
/// all is done.
void dispatch_forward(HostGroup& group, const DispatchCall& call, const DispatchPlan& plan,
                      LocalWork& local);

}  // namespace shoal::ep::host
