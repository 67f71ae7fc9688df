// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/report.hpp"

#include <algorithm>
#include <array>
#include <mutex>

#include "transport/verbs/network.hpp"

namespace shoal::transport::verbs {
namespace {

struct Listed {
  std::mutex mutex;
  std::vector<const Network*> networks;
};

Listed& listed() {
  static Listed all;
  return all;
}

const char* name_of(ibv_port_state state) {
  constexpr std::array kNames = {"unknown", "down", "initializing", "armed", "active"};
  return state < kNames.size() ? kNames[state] : kNames[0];
}

const char* name_of(ibv_atomic_cap atomics) {
  return atomics == IBV_ATOMIC_NONE  ? "none"
         : atomics == IBV_ATOMIC_HCA ? "among operations of this NIC"
                                     : "also towards processors";
}

NicReport report_port(const PortAttributes& port) {
  NicReport report;
  report.port = port.offer.label();
  const bool ethernet = port.port.link_layer == IBV_LINK_LAYER_ETHERNET;
  report.facts = {
      {"state", name_of(port.port.state)},    {"link", ethernet ? "Ethernet" : "InfiniBand"},
      {"LID", std::to_string(port.port.lid)}, {"MTU", std::to_string(128 << port.port.active_mtu)},
      {"firmware", port.device.fw_ver},       {"atomics", name_of(port.device.atomic_cap)}};
  report.limits = {{"queue pairs", port.device.max_qp},
                   {"requests of a send queue", port.device.max_qp_wr},
                   {"completion queues", port.device.max_cq},
                   {"entries of a completion queue", port.device.max_cqe},
                   {"memory regions", port.device.max_mr},
                   {"reads and atomics served per queue pair", port.device.max_qp_rd_atom},
                   {"reads and atomics sent per queue pair", port.device.max_qp_init_rd_atom},
                   {"bytes of a message", port.port.max_msg_sz}};
  return report;
}

}  // namespace

void list_network(const Network& network) {
  const std::lock_guard lock(listed().mutex);
  listed().networks.push_back(&network);
}

void unlist_network(const Network& network) noexcept {
  const std::lock_guard lock(listed().mutex);
  std::erase(listed().networks, &network);
}

std::vector<NicReport> report_nics(const Settings& settings) {
  const auto library = load_library(settings.verbs_library);
  std::vector<NicReport> reports;
  for (const PortAttributes& port : query_ports(*library)) {
    NicReport& report = reports.emplace_back(report_port(port));
    const std::lock_guard lock(listed().mutex);
    for (const Network* const network : listed().networks)
      for (QueuePairReport& pair : network->queue_pairs(report.port))
        report.queue_pairs.push_back(std::move(pair));
  }
  return reports;
}

std::vector<QueuePairReport> Network::queue_pairs(const std::string& port) const {
  std::vector<QueuePairReport> reports;
  const std::lock_guard lock(engine_.lock());
  for (const auto& connection : connections_)
    if (connection->line.port->label() == port)
      reports.push_back({.peer = connection->peer.pe,
                         .number = connection->queue->number(),
                         .state = connection->queue->state(),
                         .in_flight = connection->issued - connection->completed,
                         .depth = connection->posted.size()});
  return reports;
}

}  // namespace shoal::transport::verbs
