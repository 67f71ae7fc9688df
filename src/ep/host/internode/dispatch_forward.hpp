// SPDX-License-Identifier: Apache-2.0
// dispatch_forward.hpp: the part of a dispatch that crosses nodes.
#pragma once

#include <cstdint>

#include "ep/host/normal/normal.hpp"

namespace shoal::ep::host {

/// What a member has to do on its own node meanwhile, in parts.
struct LocalWork {
  virtual ~LocalWork() = default;
  virtual bool some(
      std::int64_t tokens) = 0;  ///< does the next `tokens` at most; whether there were any
  virtual bool done() const = 0;
};

/// Sends this member's tokens to its rail peers, each token once to every node that needs it,
/// passes the peers' tokens on to the members of this node, and does `local` while nothing has
/// come. Returns when all of it is done.
void dispatch_forward(HostGroup& group, const DispatchCall& call, const DispatchPlan& plan,
                      LocalWork& local);

}  // namespace shoal::ep::host
