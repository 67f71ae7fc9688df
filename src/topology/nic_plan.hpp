// SPDX-License-Identifier: Apache-2.0
// nic_plan.hpp: which NICs each PE of a host uses.
//
// The plan belongs to the physical host. It covers all seats of the host, and a PE uses the NICs of
// its seat in every job, world and team: plans per job would assign the same NIC to several jobs.
// Everything here is a pure function, so all PEs of a host compute the same plan without
// communication.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "topology/identity.hpp"
#include "topology/machine.hpp"
#include "topology/nic_binding.hpp"

namespace shoal::topology {

/// The seats of a host: one per GPU, by PCI address; on a host without GPUs, `pes` seats without a
/// location. PEs that share a GPU share its seat.
std::vector<Location> host_seats(const Machine& machine, std::int32_t pes);

/// The seat of one PE among host_seats: that of GPU `gpu` (PCI address) if its heap is in GPU
/// memory; with an empty `gpu`, seat `local_index` modulo their number. Throws
/// Error{invalid_argument} for a GPU that the machine does not have.
std::int32_t seat_of(const Machine& machine, std::int32_t seats, std::string_view gpu,
                     std::int32_t local_index);

struct NicUse {
  std::int32_t nic = 0;  ///< index of Machine::nics
  Distance distance = Distance::sys;

  bool operator==(const NicUse&) const = default;
};

struct NicPlan {
  /// Indexed by seat, planes ascending; empty only if no NIC is usable.
  std::vector<std::vector<NicUse>> of_seat;
  std::vector<std::int32_t> load;  ///< by NIC of the machine: seats that use it
  /// Indexed by NIC of the machine: why no seat uses it; empty if one does.
  std::vector<std::string> unused;
  std::string rule;  ///< "by distance", ...: for reports
};

/// The rule by distance assigns, per plane, max(1, NICs / seats) NICs to each seat, none farther
/// than the nearest one. Loads of equally near NICs differ by at most one if a single move can
/// balance them. One port of each card is used before a second port of any. Ties are resolved in
/// the order of SHOAL_NIC_LIST, or of PCI addresses, so the system's enumeration order has no
/// effect. Round robin and mapping: one NIC per seat; a mapping has priority. Throws like
/// usable_nics and mapped_nics.
NicPlan plan_nics(const Machine& machine, std::span<const Location> seats,
                  const NicBinding& binding);

/// The two rounds of the plan by distance. `table[s][n]` is the distance from seat s to NIC n,
/// `card[n]` the number of the card that NIC n is a port of. Round 1 gives each seat, nearest
/// first, up to `per_seat` of its nearest NICs, always the least loaded one. Round 2 moves seats
/// between equally near NICs while this balances the loads. Result: the NICs of each seat,
/// ascending.
std::vector<std::vector<std::int32_t>> assign_by_distance(
    std::span<const std::vector<Distance>> table, std::span<const std::int32_t> card,
    std::int32_t per_seat);

/// Warnings about a plan: a seat without a PCIe switch in common with its NIC, so that GPUDirect
/// RDMA crosses a processor; seats without a common plane; no NIC at all. Empty: none.
std::vector<std::string> remarks(const Machine& machine, std::span<const Location> seats,
                                 const NicPlan& plan);

/// Rail i: the PEs with index i on their nodes, by node.
std::vector<std::vector<Pe>> rails(const HostMap& hosts);

/// The planes that the NICs of one seat are on, ascending, each once.
std::vector<std::int32_t> planes_of(const Machine& machine, std::span<const NicUse> nics);

/// The networks (Nic::network) of the NICs, ascending, each once. Empty if one of them is not
/// known: their reach is then unknown too.
std::vector<std::string> networks_of(const Machine& machine, std::span<const NicUse> nics);

/// The NICs of a PE, for its rail.
struct RailEnd {
  std::int32_t host = 0;              ///< as in HostMap::host_of
  std::string host_name;              ///< for messages
  std::vector<std::string> nics;      ///< labels
  std::vector<std::string> networks;  ///< as networks_of has them
};

/// `ends` is by PE. Throws Error{unsupported} naming the rail and two of its PEs on different hosts
/// whose NICs have no network in common. PEs with unknown networks pass.
void check_rails(std::span<const std::vector<Pe>> rails, std::span<const RailEnd> ends);

}  // namespace shoal::topology
