// SPDX-License-Identifier: Apache-2.0
// nic_plan.hpp: which NICs each PE of a host uses (requirements D5, D13, D14).
//
// The plan belongs to the physical host. It is made for all seats of the host, and a PE uses the
// NICs of its seat, whatever jobs, worlds and teams there are: nobody plans for the PEs of one job
// only, which would find the same NIC free for each of them. Everything here is a pure function, so
// all PEs of a host compute the same plan without talking.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "topology/identity.hpp"
#include "topology/machine.hpp"
#include "topology/nic_binding.hpp"

namespace shoal::topology {

/// Where PEs of a host may sit: one seat a GPU, by PCI address; on a host without GPUs `pes` seats
/// that are not bound to any place. PEs that share a GPU share its seat.
std::vector<Location> host_seats(const Machine& machine, std::int32_t pes);

/// The seat of one PE among those of host_seats: of GPU `gpu` (PCI address) where its heap is in
/// GPU memory, else (empty) seat `local_index` modulo their number. Throws Error{invalid_argument}
/// for a GPU that the machine does not have.
std::int32_t seat_of(const Machine& machine, std::int32_t seats, std::string_view gpu,
                     std::int32_t local_index);

struct NicUse {
  std::int32_t nic = 0;  ///< index of Machine::nics
  Distance distance = Distance::sys;

  bool operator==(const NicUse&) const = default;
};

struct NicPlan {
  std::vector<std::vector<NicUse>>
      of_seat;  ///< of each seat, planes ascending; empty only where there is no NIC to use
  std::vector<std::int32_t> load;  ///< seats that use it, for each NIC of the machine
  std::vector<std::string>
      unused;        ///< for each NIC of the machine why no seat uses it; empty when one does
  std::string rule;  ///< "by distance", ...: for people
};

/// By distance, each plane for itself: max(1, NICs / seats) NICs a seat, none farther than the
/// nearest; among equally near ones the loads differ by at most one, as far as a single move can
/// mend it, and both ports of a card are not used before one of each. Equal choices fall in the
/// order of SHOAL_NIC_LIST, or of PCI addresses, so the order in which a system enumerates GPUs and
/// NICs changes nothing. Round robin and mapping: seat by seat, one NIC each. Throws like
/// usable_nics and mapped_nics.
NicPlan plan_nics(const Machine& machine, std::span<const Location> seats,
                  const NicBinding& binding);

/// The two rounds of the plan by distance. `table[s][n]` is the distance from seat s to NIC n,
/// `card[n]` the number of the card that NIC n is a port of. Round 1 gives each seat, nearest
/// first, up to `per_seat` of its nearest NICs, each time the one with the least load; round 2
/// moves seats between equally near NICs while that brings loads closer. Result: the NICs of each
/// seat, ascending.
std::vector<std::vector<std::int32_t>> assign_by_distance(
    std::span<const std::vector<Distance>> table, std::span<const std::int32_t> card,
    std::int32_t per_seat);

/// What a user should know of a plan: seats that no PCIe switch joins to their NIC, so that
/// GPUDirect RDMA crosses a processor; seats without a common plane; no NIC at all. Empty when all
/// is well.
std::vector<std::string> remarks(const Machine& machine, std::span<const Location> seats,
                                 const NicPlan& plan);

/// Rail i: the PEs with index i on their nodes, by node.
std::vector<std::vector<Pe>> rails(const Placement& placement);

/// The planes that the NICs of one seat are on, ascending, each once.
std::vector<std::int32_t> planes_of(const Machine& machine, std::span<const NicUse> nics);

/// The networks (Nic::network) that some NICs are on, ascending, each once; empty when one of them
/// is not known, since nothing can be said then about whom they reach.
std::vector<std::string> networks_of(const Machine& machine, std::span<const NicUse> nics);

/// The NICs of a PE, for its rail.
struct RailEnd {
  std::int32_t host = 0;              ///< as in Placement::host_of
  std::string host_name;              ///< for messages
  std::vector<std::string> nics;      ///< labels
  std::vector<std::string> networks;  ///< as networks_of has them
};

/// `ends` is by PE. Throws Error{unsupported} naming the rail and two of its PEs on different hosts
/// when their NICs have no network in common. Says nothing about PEs whose networks are not known.
void check_rails(std::span<const std::vector<Pe>> rails, std::span<const RailEnd> ends);

}  // namespace shoal::topology
