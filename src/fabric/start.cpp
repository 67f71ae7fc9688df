// SPDX-License-Identifier: Apache-2.0
// The start of a Fabric: creates transports, connects them, and chooses one per pair of PEs.
//
// The transports inside a host come first. As long as some pair is not served as the settings ask,
// a network is started and tried, and the choice is made again. All PEs choose from the same map,
// so they choose alike.
#include <algorithm>

#include "base/blob.hpp"
#include "base/log.hpp"
#include "fabric/fabric.hpp"
#include "fabric/trial.hpp"

namespace shoal::detail {

void Fabric::start_transports(const transport::Context& context, BlobWriter& mine) {
  for (const transport::Factory make : transport::factories()) {
    transports_.push_back(make(context));
    host_map_.names.emplace_back(transports_.back()->name());
    mine.bytes(transports_.back()->address());
  }
  if (!memory_.heap_on_gpu()) return;
  for (const transport::HeapFactory make : transport::heap_factories()) {
    gpu_transports_.push_back(make(context));
    gpu_map_.names.emplace_back(gpu_transports_.back()->name());
    mine.bytes(gpu_transports_.back()->address());
  }
}

void Fabric::connect_transports(const Blobs& all) {
  std::vector<BlobReader> readers(all.begin(), all.end());
  const auto connect = [&](const auto& transport) {
    Blobs addresses;
    for (BlobReader& reader : readers) addresses.push_back(reader.bytes());
    transport->connect(addresses);
  };
  std::ranges::for_each(transports_, connect);
  std::ranges::for_each(gpu_transports_, connect);
}

transport::Reach Fabric::reach(std::size_t transport, Pe pe) const {
  const std::size_t first = transport::factories().size();
  if (transport >= first) {
    const Network& network = networks_[transport - first];
    if (transports_[transport] == nullptr) return {0, network.obstacle};
    const std::string& failed = network.failed_trials[static_cast<std::size_t>(pe)];
    if (!failed.empty()) return {0, failed};
  }
  return transports_[transport]->reach(pe);
}

void Fabric::describe_connections(const Settings& settings, BlobWriter& mine) {
  host_map_.names.resize(transport::factories().size());
  for (const Network& network : networks_) host_map_.names.push_back(network.name);
  const auto describe = [&](Connectivity& map, auto&& reach_by) {
    map.n_pes = static_cast<std::size_t>(placement_.n_pes);
    map.node_of = placement_.node_of;
    map.reasons.clear();
    for (Pe pe = 0; pe < placement_.n_pes; ++pe) {
      std::vector<std::string>& reasons = map.reasons.emplace_back();
      for (std::size_t t = 0; t < map.names.size(); ++t) {
        const transport::Reach reached = reach_by(t, pe);
        mine.value(reached.capabilities);
        reasons.push_back(reached.reason);
      }
    }
  };
  describe(host_map_, [&](std::size_t t, Pe pe) { return reach(t, pe); });
  describe(gpu_map_, [&](std::size_t t, Pe pe) { return gpu_transports_[t]->reach(pe); });
  if (rdma_obstacles_.empty()) mine.text(rdma_obstacle(settings));
  if (!network_.empty()) describe_network(settings, mine);
}

/// The modules of this PE, and its first fault.
void Fabric::describe_network(const Settings& settings, BlobWriter& mine) const {
  mine.value(transport::installed_networks(settings));
  std::string fault;
  for (const Pe pe : wanted_)
    if (const std::string& why = host_map_.reasons[static_cast<std::size_t>(pe)].back();
        fault.empty() && !why.empty())
      fault = fmt::format("PE {} to PE {}: {}", placement_.my_pe, pe, why);
  mine.text(fault);
}

void Fabric::choose_connections(const Settings& settings, const Blobs& all) {
  const bool first = rdma_obstacles_.empty();
  host_map_.map.clear();
  gpu_map_.map.clear();
  host_map_.installed.clear();
  std::vector<std::string> faults;
  for (const auto& blob : all) {
    BlobReader reader(blob);
    for (auto* const map : {&host_map_, &gpu_map_})
      for (std::size_t i = 0; i < map->names.size() * map->n_pes; ++i)
        map->map.push_back(reader.value<transport::Capabilities>());
    if (first) rdma_obstacles_.push_back(reader.text());
    if (network_.empty()) continue;
    host_map_.installed.push_back(reader.value<std::uint32_t>());
    faults.push_back(reader.text());
  }
  const bool rdma = std::ranges::all_of(rdma_obstacles_, &std::string::empty);
  read_preferences(host_map_, settings, kHostTransports, rdma);
  read_preferences(gpu_map_, settings, kHeapTransports, rdma);
  if (!network_.empty()) {
    drop_where_broken(host_map_, network_, faults);
    const std::string& dropped = host_map_.dropped.back();
    if (!dropped.empty())
      log::info("PE {}: transport {} is {}", placement_.my_pe, network_, dropped);
  }
  network_ = next_network(host_map_, transport::network_names());
  if (network_.empty()) use_connections(settings);
}

std::string Fabric::other_transports(Pe pe) const {
  if (host_map_.transport_of.empty()) return "";
  return detail::other_transports(host_map_, transport::network_names(), placement_.my_pe, pe);
}

template <typename Step>
void Fabric::guarded(Step&& step) {
  try {
    step();
  } catch (const std::exception& error) {
    transports_.back() = nullptr;
    networks_.back().obstacle = reason_of(error);
  }
}

void Fabric::start_network(transport::Context context, BlobWriter& mine) {
  wanted_.clear();
  for (Pe pe = 0; pe < placement_.n_pes; ++pe) {
    context.wanted.push_back(wants(host_map_, placement_.my_pe, pe, network_));
    if (context.wanted.back()) wanted_.push_back(pe);
  }
  context.nics = nics_.value_or(std::vector<std::string>());
  networks_.push_back(
      {.name = network_, .failed_trials = std::vector<std::string>(host_map_.n_pes)});
  transports_.emplace_back();
  std::vector<std::byte> address;
  guarded([&] {
    transports_.back() = transport::make_network(network_, context);
    address = transports_.back()->address();
  });
  mine.bytes(address);
}

void Fabric::open_network(const Blobs& all) {
  network_addresses_.clear();
  for (const auto& blob : all) network_addresses_.push_back(BlobReader(blob).bytes());
  networks_.back().started =
      std::ranges::any_of(network_addresses_, [](const auto& address) { return !address.empty(); });
  if (transports_.back()) guarded([&] { transports_.back()->open(network_addresses_); });
}

void Fabric::connect_network(std::chrono::milliseconds trial_limit) {
  if (transports_.back()) guarded([&] { transports_.back()->connect(network_addresses_); });
  const bool connected = std::ranges::all_of(wanted_, [&](Pe pe) {
    return (reach(transports_.size() - 1, pe).capabilities &
            transport::capability::all_operations) == transport::capability::all_operations;
  });
  if (!connected || wanted_.empty()) return;  // it is dropped, or not needed
  const auto memory = std::make_shared<TrialMemory>(wanted_.size());
  keep(memory);
  const std::vector<std::string> failed = try_operations(
      *transports_.back(), placement_.my_pe, static_cast<std::uint8_t>(networks_.size()), wanted_,
      memory_.layout().trial(placement_.my_pe), trial_limit, *memory);
  for (std::size_t i = 0; i < wanted_.size(); ++i)
    networks_.back().failed_trials[static_cast<std::size_t>(wanted_[i])] = failed[i];
}

void Fabric::use_connections(const Settings& settings) {
  choose_transports(host_map_, placement_.my_pe);
  log_networks(settings);
  // Ends dropped networks: their threads would poll in vain, and the end of their connections means
  // nothing.
  for (std::size_t t = 0; t < host_map_.dropped.size(); ++t)
    if (!host_map_.dropped[t].empty()) transports_[t] = nullptr;
  choose_heap_transports(gpu_map_, placement_.my_pe);
  for (Pe pe = 0; pe < placement_.n_pes; ++pe) peer_bases_.push_back(find_peer_base(pe));
  for (std::size_t t = 0; t < gpu_transports_.size(); ++t) {
    std::vector<Pe> carried;
    for (Pe pe = 0; pe < placement_.n_pes; ++pe)
      if (gpu_map_.transport_of[static_cast<std::size_t>(pe)] == t) carried.push_back(pe);
    gpu_transports_[t]->carry(carried);
  }
}

std::byte* Fabric::find_peer_base(Pe pe) const {
  if (!memory_.heap_on_gpu()) {
    std::byte* const base = route(pe).base(pe);
    return base == nullptr ? nullptr : base + memory_.layout().bytes();
  }
  const auto i = static_cast<std::size_t>(pe);
  if ((gpu_map_.capabilities[i] & transport::capability::load_store) == 0) return nullptr;
  return gpu_transports_[gpu_map_.transport_of[i]]->base(pe);
}

}  // namespace shoal::detail
