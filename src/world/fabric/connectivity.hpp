// SPDX-License-Identifier: Apache-2.0
// connectivity.hpp: which transport each pair of PEs uses: decided once, for all pairs, by all PEs
// alike (requirement D12).
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "transport/transport.hpp"

namespace shoal::detail {

/// The choice for one PE, and the map that it was made from.
struct Connectivity {
  std::vector<std::string> names;         ///< of the transports, the preferred ones first
  std::vector<std::size_t> transport_of;  ///< by PE: index into names
  std::vector<transport::Capabilities>
      capabilities;  ///< by PE: what the chosen transport can do in both directions
  std::vector<std::vector<std::string>>
      reasons;  ///< by PE and transport: why it does not reach; empty where it does

  /// What the settings allow, first choice first: names for PEs of one node, and of different nodes
  /// (node_of). Empty: every transport, as in `names`.
  std::vector<std::string> inside, between;
  std::vector<std::int32_t> node_of;  ///< by PE; empty: all on one node
  std::vector<std::string>
      dropped;  ///< by transport: why no pair uses it any more; empty: it may be used

  /// Capabilities of every transport for every ordered pair of PEs.
  std::vector<transport::Capabilities> map;
  std::size_t n_pes = 0;

  transport::Capabilities at(Pe from, Pe to, std::size_t transport) const {
    return map[(static_cast<std::size_t>(from) * n_pes + static_cast<std::size_t>(to)) *
                   names.size() +
               transport];
  }
};

/// The transports that users can name, in the order of "automatic": for control blocks and heaps on
/// the host, and for heaps in GPU memory.
inline constexpr std::array<std::string_view, 3> kHostTransports = {"shm", "ofi", "ucx"};
inline constexpr std::array<std::string_view, 2> kHeapTransports = {"cuda_p2p", "staged"};

/// Fills inside and between from SHOAL_TRANSPORT_INSIDE and SHOAL_TRANSPORT_BETWEEN with those of
/// `kind` that they name, or all of that kind where they name none of it. Throws
/// Error{invalid_argument} naming the setting, the transport and those that there are.
void read_preferences(Connectivity& connectivity, const Settings& settings,
                      std::span<const std::string_view> kind);

/// Whether the pair would use transport `name`, which may not be in the map yet, rather than what
/// it has.
bool wants(const Connectivity& connectivity, Pe a, Pe b, std::string_view name);

/// The network transport to try next: the first one that is not in the map and that some pair
/// wants; empty: none.
std::string_view next_network(const Connectivity& connectivity,
                              std::span<const std::string_view> networks);

/// Drops transport `name` for all pairs when it does not do everything, both ways, for a pair that
/// wants it (D12): what fails for one pair is not to be trusted for others, and all PEs choose
/// again alike.
void drop_where_broken(Connectivity& connectivity, std::string_view name);

/// One PE's row of the map, from its transports: n_pes x transports capabilities.
std::vector<transport::Capabilities> connectivity_row(
    std::span<const std::unique_ptr<transport::Transport>> transports, Pe n_pes);

/// The transport that the pair uses: the first in its order that does everything, both ways, and is
/// not dropped.
std::optional<std::size_t> chosen_for(const Connectivity& connectivity, Pe a, Pe b);
/// As chosen_for, for heaps in GPU memory: where none does everything, the first that does
/// anything.
std::optional<std::size_t> chosen_for_heap(const Connectivity& connectivity, Pe a, Pe b);
/// The names of the transports that the settings allow the pair, first choice first.
const std::vector<std::string>& order_of(const Connectivity& connectivity, Pe a, Pe b);

/// "cuda_p2p offers nothing (no peer access)": what each transport offers for the pair, with the
/// reasons that `my_pe` knows.
std::string why_not(const Connectivity& map, Pe my_pe, Pe a, Pe b);

/// As choose_transports for the heaps in GPU memory. A pair without any transport is no error,
/// since only operations between those two need one: transport_of is then kNoTransport. One that
/// does not do everything is better than none.
inline constexpr std::size_t kNoTransport = static_cast<std::size_t>(-1);
void choose_heap_transports(Connectivity& connectivity, Pe my_pe);

/// Chooses, for every PE of the world as seen from `my_pe`, the first transport that can do all
/// operations in both directions. A pure function of the map, so that the two PEs of a pair choose
/// alike. `reasons` are my_pe's own, for the message. Throws Error{unsupported} naming a pair that
/// no transport connects and why each does not, on every PE.
void choose_transports(Connectivity& connectivity, Pe my_pe);

/// PEs that `my_pe` and each other reach by load and store, ascending; only my_pe where that is no
/// equivalence among them.
std::vector<Pe> load_store_peers(const Connectivity& connectivity, Pe my_pe);

/// By PE: the number of its set of load_store_peers, numbered by first appearance.
std::vector<std::int32_t> load_store_domains(const Connectivity& connectivity);

class WorldState;
/// Why loads and stores do not reach the heap of `pe` from here: to be asked where
/// WorldState::peer_base is nullptr.
std::string why_out_of_reach(const WorldState& state, Pe pe);

}  // namespace shoal::detail
