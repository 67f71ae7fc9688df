// SPDX-License-Identifier: Apache-2.0
// connectivity.hpp: the choice of one transport per pair of PEs. All PEs make it from the same map,
// once, so they choose alike. Pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "transport/transport.hpp"

namespace shoal::detail {

/// The choice of one PE, and the map from which it is made.
struct Connectivity {
  std::vector<std::string> names;         ///< of the transports, preferred ones first
  std::vector<std::size_t> transport_of;  ///< by PE: index into names
  /// Indexed by PE: capabilities of the chosen transport in both directions.
  std::vector<transport::Capabilities> capabilities;
  /// Indexed by PE and transport: why this PE does not reach the other; empty where it does.
  std::vector<std::vector<std::string>> reasons;

  /// Transports that the settings allow, first choice first: for PEs of one node, and of different
  /// nodes (node_of). Empty: all, as in `names`.
  std::vector<std::string> inside, between;
  std::vector<std::int32_t> node_of;  ///< by PE; empty: all on one node
  /// Indexed by transport: why no pair uses it any more; empty: it may be used.
  std::vector<std::string> dropped;
  /// Indexed by PE: transport::installed_networks(). Empty while no network is in use.
  std::vector<std::uint32_t> installed;

  /// Capabilities of every transport for every ordered pair of PEs.
  std::vector<transport::Capabilities> map;
  std::size_t n_pes = 0;

  transport::Capabilities at(Pe from, Pe to, std::size_t transport) const {
    return map[(static_cast<std::size_t>(from) * n_pes + static_cast<std::size_t>(to)) *
                   names.size() +
               transport];
  }
};

/// The transports that users can name: for control blocks and for heaps on the host, and for heaps
/// in GPU memory. Both in the order of "automatic" where PEs have an active RDMA port.
inline constexpr std::array<std::string_view, 4> kHostTransports = {"shm", "verbs", "ucx", "ofi"};
inline constexpr std::array<std::string_view, 2> kHeapTransports = {"cuda_p2p", "staged"};

/// The networks in the order of "network" and "automatic". Without an active RDMA port on some PE,
/// verbs cannot serve all pairs, and libfabric has the better transport over TCP.
std::array<std::string_view, 3> automatic_networks(bool rdma);

/// Fills `inside` and `between` from SHOAL_TRANSPORT_INSIDE and SHOAL_TRANSPORT_BETWEEN with the
/// transports of `kind` that they name, or all of that kind where they name none. `rdma`: whether
/// all PEs that need a network have an active RDMA port. Throws Error{invalid_argument} naming the
/// setting, the unknown transport and the known ones.
void read_preferences(Connectivity& connectivity, const Settings& settings,
                      std::span<const std::string_view> kind, bool rdma = false);

/// True if the pair prefers transport `name`, which may not be in the map yet, to its present one.
bool wants(const Connectivity& connectivity, Pe a, Pe b, std::string_view name);

/// The network transport to try next: the first that is not in the map and that some pair wants;
/// empty: none.
std::string_view next_network(const Connectivity& connectivity,
                              std::span<const std::string_view> networks);

/// Drops transport `name` for all pairs where it lacks a capability, in either direction, for a
/// pair that wants it. A network that fails for one pair is not trusted for others. `faults`, by
/// PE: "PE 1 to PE 0: no route", why it lacks one there; empty: it does not, or the PE cannot say.
void drop_where_broken(Connectivity& connectivity, std::string_view name,
                       std::span<const std::string> faults = {});

/// The transports other than the chosen one that both PEs have, and the setting, to follow the
/// error of a lost connection: "; both PEs also have ucx (not tried). Setting:
/// SHOAL_TRANSPORT_BETWEEN".
std::string other_transports(const Connectivity& map, std::span<const std::string_view> networks,
                             Pe a, Pe b);

/// The setting that limits the transports of the pair.
std::string_view setting_of(const Connectivity& map, Pe a, Pe b);

/// The transport of the pair: the first in its order that has all capabilities in both directions
/// and is not dropped.
std::optional<std::size_t> chosen_for(const Connectivity& connectivity, Pe a, Pe b);
/// Like chosen_for, for heaps in GPU memory: where none has all capabilities, the first that has
/// any.
std::optional<std::size_t> chosen_for_heap(const Connectivity& connectivity, Pe a, Pe b);
/// The names of the transports that the settings allow the pair, first choice first. "self", which
/// serves a PE alone, is always allowed.
const std::vector<std::string>& order_of(const Connectivity& connectivity, Pe a, Pe b);

/// "cuda_p2p offers nothing (no peer access)": the capabilities of each transport for the pair,
/// with the reasons that `my_pe` knows.
std::string why_not(const Connectivity& map, Pe my_pe, Pe a, Pe b);

/// Like choose_transports, for the heaps in GPU memory. A pair without a transport is not an error,
/// since only operations between those two PEs need one: transport_of is then kNoTransport. A
/// transport that lacks capabilities is better than none.
inline constexpr std::size_t kNoTransport = static_cast<std::size_t>(-1);
void choose_heap_transports(Connectivity& connectivity, Pe my_pe);

/// Chooses for `my_pe`, towards every PE, the first transport that has all capabilities in both
/// directions. Throws Error{unsupported} on every PE where no transport connects a pair, naming the
/// pair and the reason of each transport (those that my_pe knows).
void choose_transports(Connectivity& connectivity, Pe my_pe);

/// The PEs that `my_pe` reaches by loads and stores, ascending; only my_pe where that relation is
/// not an equivalence among them.
std::vector<Pe> load_store_peers(const Connectivity& connectivity, Pe my_pe);

/// Indexed by PE: the number of its set of load_store_peers, numbered by first appearance.
std::vector<std::int32_t> load_store_domains(const Connectivity& connectivity);

}  // namespace shoal::detail
