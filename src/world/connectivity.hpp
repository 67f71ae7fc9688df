// connectivity.hpp: which transport each pair of PEs uses: decided once, for all pairs, by all PEs alike (requirement
// D12).
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "transport/transport.hpp"

namespace shoal::detail {

/// The choice for one PE, and the map that it was made from.
struct Connectivity {
  std::vector<std::string> names;                     ///< of the transports, the preferred ones first
  std::vector<std::size_t> transport_of;              ///< by PE: index into names
  std::vector<transport::Capabilities> capabilities;  ///< by PE: what the chosen transport can do in both directions
  std::vector<std::vector<std::string>> reasons;  ///< by PE and transport: why it does not reach; empty where it does

  /// Capabilities of every transport for every ordered pair of PEs.
  std::vector<transport::Capabilities> map;
  std::size_t n_pes = 0;

  transport::Capabilities at(Pe from, Pe to, std::size_t transport) const {
    return map[(static_cast<std::size_t>(from) * n_pes + static_cast<std::size_t>(to)) * names.size() + transport];
  }
};

/// One PE's row of the map, from its transports: n_pes x transports capabilities.
std::vector<transport::Capabilities> connectivity_row(std::span<const std::unique_ptr<transport::Transport>> transports,
                                                      Pe n_pes);

/// "cuda_p2p offers nothing (no peer access)": what each transport offers for the pair, with the reasons that `my_pe`
/// knows.
std::string why_not(const Connectivity& map, Pe my_pe, Pe a, Pe b);

/// As choose_transports for the heaps in GPU memory. A pair without any transport is no error, since only operations
/// between those two need one: transport_of is then kNoTransport. One that does not do everything is better than none.
inline constexpr std::size_t kNoTransport = static_cast<std::size_t>(-1);
void choose_heap_transports(Connectivity& connectivity, Pe my_pe);

/// Chooses, for every PE of the world as seen from `my_pe`, the first transport that can do all operations in both
/// directions. A pure function of the map, so that the two PEs of a pair choose alike. `reasons` are my_pe's own, for
/// the message. Throws Error{unsupported} naming a pair that no transport connects and why each does not, on every PE.
void choose_transports(Connectivity& connectivity, Pe my_pe);

/// PEs that `my_pe` and each other reach by load and store, ascending; only my_pe where that is no equivalence among
/// them.
std::vector<Pe> load_store_peers(const Connectivity& connectivity, Pe my_pe);

class WorldState;
/// Why loads and stores do not reach the heap of `pe` from here: to be asked where WorldState::peer_base is nullptr.
std::string why_out_of_reach(const WorldState& state, Pe pe);

}  // namespace shoal::detail
