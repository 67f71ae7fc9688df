// SPDX-License-Identifier: Apache-2.0
#include "topology/identity.hpp"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <unordered_map>

#include "base/check.hpp"

namespace shoal::topology {
namespace {

/// The first line of a file; empty if the file does not exist or cannot be read.
std::string first_line(const char* path) {
  errno = 0;
  std::ifstream file(path);
  if (!file && (errno == EMFILE || errno == ENFILE))
    fail_errno("SHOAL-N220: cannot read the identity of this host from {}", path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// Network namespace of this thread, such as "net:[4026531840]".
std::string network_namespace() {
  char name[64] = "";
  const ssize_t bytes = readlink("/proc/thread-self/ns/net", name, sizeof name);
  return {name, static_cast<std::size_t>(std::max<ssize_t>(bytes, 0))};
}

std::string host_name() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return name;
}

}  // namespace

HostIdentity read_host_identity(const std::string& override_id) {
  if (!override_id.empty()) return {"override:" + override_id, host_name(), network_namespace()};
  // The boot id alone tells running systems apart; the machine id is missing in many containers.
  const std::string machine = first_line("/etc/machine-id");
  const std::string boot = first_line("/proc/sys/kernel/random/boot_id");
  require(
      !boot.empty() || !machine.empty(), Code::system,
      "SHOAL-N223: this host has neither /etc/machine-id nor /proc/sys/kernel/random/boot_id; set "
      "SHOAL_HOST_ID to a text of its own on each host");
  return {machine + "/" + boot, host_name(), network_namespace()};
}

HostMap place(std::span<const HostIdentity> hosts, std::int64_t node_size) {
  HostMap result;
  std::unordered_map<std::string, std::int32_t> numbers, networks;
  std::vector<std::vector<Pe>> pes_of_host;
  for (std::size_t pe = 0; pe < hosts.size(); ++pe) {
    const auto [entry, is_new] =
        numbers.emplace(hosts[pe].id, static_cast<std::int32_t>(pes_of_host.size()));
    if (is_new) pes_of_host.emplace_back();
    pes_of_host[static_cast<std::size_t>(entry->second)].push_back(static_cast<Pe>(pe));
    result.host_of.push_back(entry->second);
    const std::string network = hosts[pe].id + '\n' + hosts[pe].network;
    const auto number = static_cast<std::int32_t>(networks.size());
    result.network_of.push_back(networks.emplace(network, number).first->second);
  }
  if (pes_of_host.empty()) return result;

  const auto fewer = [](const auto& a, const auto& b) { return a.size() < b.size(); };
  const auto [least, most] = std::minmax_element(pes_of_host.begin(), pes_of_host.end(), fewer);
  const auto name_of_host = [&](const std::vector<Pe>& pes) {
    return hosts[static_cast<std::size_t>(pes.front())].name;
  };
  require(
      least->size() == most->size(), Code::invalid_argument,
      "SHOAL-N224: host {} (PE {}) has {} PEs, host {} (PE {}) has {}; every host must have the "
      "same number. If these are one host or more hosts than that, set SHOAL_HOST_ID",
      name_of_host(*least), least->front(), least->size(), name_of_host(*most), most->front(),
      most->size());

  const auto per_host = static_cast<std::int64_t>(most->size());
  const std::int64_t per_node = node_size == 0 ? per_host : node_size;
  require(per_host % per_node == 0, Code::invalid_argument,
          "SHOAL-N225: SHOAL_NODE_SIZE is {}, which does not divide the {} PEs of each host",
          node_size, per_host);
  result.pes_per_node = static_cast<std::int32_t>(per_node);
  result.node_of.resize(hosts.size());
  result.index_on_node.resize(hosts.size());
  result.index_on_host.resize(hosts.size());
  for (const std::vector<Pe>& pes : pes_of_host) {
    for (std::size_t i = 0; i < pes.size(); ++i) {
      const auto index = static_cast<Pe>(i % static_cast<std::size_t>(per_node));
      if (index == 0) result.nodes.emplace_back();
      const auto pe = static_cast<std::size_t>(pes[i]);
      result.node_of[pe] = static_cast<std::int32_t>(result.nodes.size()) - 1;
      result.index_on_node[pe] = index;
      result.index_on_host[pe] = static_cast<Pe>(i);
      result.nodes.back().push_back(pes[i]);
    }
  }
  return result;
}

}  // namespace shoal::topology
