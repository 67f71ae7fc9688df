// SPDX-License-Identifier: Apache-2.0
// report.hpp: the ports of this machine and the queue pairs of the open worlds of this process, for
// shoal-info.
#pragma once

#include <vector>

#include "shoal/settings.hpp"
#include "transport/module.hpp"

namespace shoal::transport::verbs {

class Network;

/// All ports. Throws Error{unsupported} without libibverbs or RDMA devices.
std::vector<NicReport> report_nics(const Settings& settings);

/// A network is listed while its queue pairs exist.
void list_network(const Network& network);
void unlist_network(const Network& network) noexcept;

}  // namespace shoal::transport::verbs
