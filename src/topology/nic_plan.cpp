// SPDX-License-Identifier: Apache-2.0
#include "topology/nic_plan.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "base/check.hpp"

namespace shoal::topology {
namespace {

std::size_t at(std::int32_t index) {
  return static_cast<std::size_t>(index);
}

/// Card number of each NIC: functions of one PCI device are one card.
std::vector<std::int32_t> cards_of(const Machine& machine, std::span<const std::int32_t> nics) {
  std::map<std::string, std::int32_t> numbers;
  std::vector<std::int32_t> cards;
  for (const std::int32_t nic : nics) {
    const Nic& entry = machine.nics[at(nic)];
    const std::string_view pci = entry.at.pci();
    const std::string card = pci.empty() ? entry.name : std::string(pci.substr(0, pci.rfind('.')));
    cards.push_back(numbers.emplace(card, static_cast<std::int32_t>(numbers.size())).first->second);
  }
  return cards;
}

std::vector<std::int32_t> identity_order(std::size_t count) {
  std::vector<std::int32_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  return order;
}

std::vector<std::int32_t> in_both(std::span<const std::int32_t> a,
                                  std::span<const std::int32_t> b) {
  std::vector<std::int32_t> both;
  std::ranges::set_intersection(a, b, std::back_inserter(both));
  return both;
}

void plan_by_distance(const Machine& machine, std::span<const Location> seats,
                      std::span<const std::int32_t> usable, NicPlan& plan) {
  // Seats by location, so that the order of enumeration has no effect.
  std::vector<std::int32_t> order = identity_order(seats.size());
  std::ranges::sort(order, {}, [&](std::int32_t seat) {
    return std::tuple<const Location&, std::int32_t>(seats[at(seat)], seat);
  });
  std::map<std::int32_t, std::vector<std::int32_t>> planes;
  for (const std::int32_t nic : usable) planes[machine.nics[at(nic)].plane].push_back(nic);
  for (const auto& [plane, nics] : planes) {
    std::vector<std::vector<Distance>> table;
    for (const std::int32_t seat : order) {
      table.emplace_back();
      for (const std::int32_t nic : nics)
        table.back().push_back(distance(seats[at(seat)], machine.nics[at(nic)].at));
    }
    const auto per_seat = static_cast<std::int32_t>(
        std::max<std::size_t>(1, nics.size() / std::max<std::size_t>(1, seats.size())));
    const auto assigned = assign_by_distance(table, cards_of(machine, nics), per_seat);
    for (std::size_t i = 0; i < order.size(); ++i)
      for (const std::int32_t nic : assigned[i])
        plan.of_seat[at(order[i])].push_back({nics[at(nic)], table[i][at(nic)]});
  }
}

}  // namespace

std::vector<Location> host_seats(const Machine& machine, std::int32_t pes) {
  std::vector<Location> seats;
  for (const Gpu& gpu : machine.gpus) seats.push_back(gpu.at);
  if (seats.empty()) seats.resize(at(std::max(1, pes)), {{}, machine.numa_nodes == 1 ? 0 : -1});
  return seats;
}

std::int32_t seat_of(const Machine& machine, std::int32_t seats, std::string_view gpu,
                     std::int32_t local_index) {
  if (gpu.empty()) return local_index % seats;
  const std::string address = normal_pci_address(gpu);
  const auto found =
      std::ranges::find(machine.gpus, address, [](const Gpu& entry) { return entry.at.pci(); });
  require(found != machine.gpus.end(), Code::invalid_argument,
          "SHOAL-N234: this machine has no GPU {}; it has {} others", address, machine.gpus.size());
  return static_cast<std::int32_t>(found - machine.gpus.begin());
}

std::vector<std::vector<std::int32_t>> assign_by_distance(
    std::span<const std::vector<Distance>> table, std::span<const std::int32_t> card,
    std::int32_t per_seat) {
  const std::size_t n_nics = card.size();
  std::vector<std::set<std::int32_t>> held(table.size());
  std::vector<std::int32_t> load(n_nics), card_load(n_nics);
  if (n_nics == 0) return std::vector<std::vector<std::int32_t>>(table.size());
  const auto nearest = [&](std::int32_t seat) {
    return *std::ranges::min_element(table[at(seat)]);
  };
  const auto give = [&](std::int32_t seat, std::int32_t nic, std::int32_t amount) {
    if (amount > 0)
      held[at(seat)].insert(nic);
    else
      held[at(seat)].erase(nic);
    load[at(nic)] += amount;
    card_load[at(card[at(nic)])] += amount;
  };
  /// The nearest, then least loaded NIC that the seat does not have; -1: it has all.
  const auto best_for = [&](std::int32_t seat) {
    std::int32_t best = -1;
    const auto key = [&](std::int32_t nic) {
      return std::tuple(load[at(nic)], card_load[at(card[at(nic)])], nic);
    };
    for (std::int32_t nic = 0; at(nic) < n_nics; ++nic)
      if (table[at(seat)][at(nic)] == nearest(seat) && !held[at(seat)].contains(nic) &&
          (best < 0 || key(nic) < key(best)))
        best = nic;
    return best;
  };

  std::vector<std::int32_t> order = identity_order(table.size());
  std::ranges::sort(order, {}, [&](std::int32_t seat) { return std::pair(nearest(seat), seat); });
  for (std::int32_t turn = 0; turn < per_seat; ++turn)
    for (const std::int32_t seat : order)
      if (const std::int32_t nic = best_for(seat); nic >= 0) give(seat, nic, 1);

  // Each move lowers the sum of squared loads, so the loop terminates.
  for (bool moved = true; moved;) {
    moved = false;
    for (const std::int32_t seat : order) {
      const std::int32_t to = best_for(seat);
      if (to < 0) continue;
      const std::int32_t from = *std::ranges::max_element(
          held[at(seat)], {}, [&](std::int32_t nic) { return load[at(nic)]; });
      if (load[at(from)] - load[at(to)] < 2) continue;
      give(seat, from, -1);
      give(seat, to, 1);
      moved = true;
    }
  }
  std::vector<std::vector<std::int32_t>> result;
  for (const auto& nics : held) result.emplace_back(nics.begin(), nics.end());
  return result;
}

NicPlan plan_nics(const Machine& machine, std::span<const Location> seats,
                  const NicBinding& binding) {
  NicPlan plan;
  plan.of_seat.resize(seats.size());
  plan.load.resize(machine.nics.size());
  const auto use = [&](std::size_t seat, std::int32_t nic) {
    plan.of_seat[seat].push_back({nic, distance(seats[seat], machine.nics[at(nic)].at)});
  };
  if (!binding.mapping.empty()) {
    const auto nics = mapped_nics(machine, binding, static_cast<std::int32_t>(seats.size()));
    for (std::size_t seat = 0; seat < seats.size(); ++seat) use(seat, nics[seat]);
    plan.unused.assign(machine.nics.size(), "not in SHOAL_NIC_MAPPING");
    plan.rule = "by SHOAL_NIC_MAPPING";
  } else {
    UsableNics usable = usable_nics(machine, binding);
    if (!usable.nics.empty()) {
      if (binding.round_robin) {
        for (std::size_t seat = 0; seat < seats.size(); ++seat)
          use(seat, usable.nics[seat % usable.nics.size()]);
      } else {
        plan_by_distance(machine, seats, usable.nics, plan);
      }
    }
    plan.unused = std::move(usable.excluded);
    plan.rule = fmt::format("{}{}", binding.round_robin ? "round robin" : "by distance",
                            binding.list.empty() ? "" : ", among those of SHOAL_NIC_LIST");
  }
  for (const auto& nics : plan.of_seat)
    for (const NicUse& entry : nics) ++plan.load[at(entry.nic)];
  for (std::size_t nic = 0; nic < machine.nics.size(); ++nic) {
    if (plan.load[nic] > 0) {
      plan.unused[nic].clear();
    } else if (plan.unused[nic].empty()) {
      plan.unused[nic] = binding.round_robin ? "more NICs than PEs"
                                             : "every PE has others that are nearer, or enough";
    }
  }
  return plan;
}

std::vector<std::string> remarks(const Machine& machine, std::span<const Location> seats,
                                 const NicPlan& plan) {
  std::vector<std::string> result;
  for (std::size_t seat = 0; seat < seats.size(); ++seat) {
    if (plan.of_seat[seat].empty())
      return {"no NIC is there to use: PEs of this host reach no other host"};
    if (seats[seat].path.empty()) continue;
    for (const NicUse& use : plan.of_seat[seat])
      if (use.distance > Distance::pxb && machine.nics[at(use.nic)].kind == Nic::Kind::rdma)
        result.push_back(fmt::format(
            "GPU {} ({}) is {} away from its NIC {}: GPUDirect RDMA passes a processor, which is slower than a PCIe "
            "switch; no PCIe switch joins the two",
            seat, seats[seat].pci(), name_of(use.distance), machine.nics[at(use.nic)].label()));
  }
  for (std::size_t seat = 1; seat < seats.size(); ++seat) {
    const auto first = planes_of(machine, plan.of_seat[0]);
    const auto mine = planes_of(machine, plan.of_seat[seat]);
    if (in_both(first, mine).empty()) {
      result.push_back(fmt::format(
          "seats 0 and {} have NICs on different planes, [{}] and [{}]: their PEs reach each other on no other host",
          seat, fmt::join(first, ", "), fmt::join(mine, ", ")));
      break;
    }
  }
  return result;
}

std::vector<std::vector<Pe>> rails(const HostMap& hosts) {
  std::vector<std::vector<Pe>> result(at(hosts.pes_per_node));
  for (const std::vector<Pe>& node : hosts.nodes)
    for (std::size_t i = 0; i < node.size(); ++i) result[i].push_back(node[i]);
  return result;
}

std::vector<std::int32_t> planes_of(const Machine& machine, std::span<const NicUse> nics) {
  std::set<std::int32_t> planes;
  for (const NicUse& use : nics) planes.insert(machine.nics[at(use.nic)].plane);
  return {planes.begin(), planes.end()};
}

std::vector<std::string> networks_of(const Machine& machine, std::span<const NicUse> nics) {
  std::set<std::string> networks;
  for (const NicUse& use : nics) networks.insert(machine.nics[at(use.nic)].network);
  if (networks.contains("")) return {};
  return {networks.begin(), networks.end()};
}

void check_rails(std::span<const std::vector<Pe>> rails, std::span<const RailEnd> ends) {
  for (std::size_t rail = 0; rail < rails.size(); ++rail) {
    for (const Pe a : rails[rail]) {
      for (const Pe b : rails[rail]) {
        const RailEnd &mine = ends[at(a)], &other = ends[at(b)];
        if (a >= b || mine.host == other.host || mine.networks.empty() || other.networks.empty())
          continue;
        require(
            std::ranges::find_first_of(mine.networks, other.networks) != mine.networks.end(),
            Code::unsupported,
            "SHOAL-N235: rail {} is cut: PE {} on host {} has {} on [{}], PE {} on host {} has {} "
            "on [{}], which do not reach each other; bind NICs of one plane with SHOAL_NIC_LIST",
            rail, a, mine.host_name, fmt::join(mine.nics, ", "), fmt::join(mine.networks, ", "), b,
            other.host_name, fmt::join(other.nics, ", "), fmt::join(other.networks, ", "));
      }
    }
  }
}

}  // namespace shoal::topology
