// SPDX-License-Identifier: Apache-2.0
// loads.hpp: what the calls of a group keep in flight between two ranks of different nodes, to be
// compared with the queues of the transport when the group is created.
#pragma once

#include <vector>

#include "ep/host/group/group.hpp"
#include "transport/transport.hpp"

namespace shoal::ep::host {

/// At most, towards one rank; empty without other nodes. A pure function.
std::vector<transport::Load> internode_loads(const Shape& shape, const GroupLayout& layout);

/// Logs on rank 0, whose settings all ranks have, why calls of this group would wait for room in
/// the queues of a transport, with the remedy. The group works all the same.
void report_shortfalls(const HostGroup& group);

}  // namespace shoal::ep::host
