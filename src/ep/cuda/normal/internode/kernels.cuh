// SPDX-License-Identifier: Apache-2.0
// kernels.cuh: the kernels of normal mode between nodes and their parameters.
//
//   list_node_tokens     the tokens that go to each node; once per routing
//   internode_dispatch   notify, send, forward and receive in one kernel
//   internode_combine    notify, sum for other nodes, sum here
//   quiet                waits for what has been sent; before the group returns its memory
//
// Ranks with the same index on their nodes are rail peers: rank r is number r % size on node
// r / size. A token goes once to each remote node that has experts for it, to the rail peer there,
// which stores it at its final rows on that node. Sums return the same way.
//
// A block takes whichever work is possible: a chunk that has arrived, a chunk that may be sent,
// local tokens. No block waits for another block of its launch, so any number of blocks can be
// resident, one at least.
#pragma once

#include "ep/cuda/device/network_path.hpp"
#include "ep/cuda/layout/rail_layout.hpp"
#include "ep/cuda/normal/device/kernels.cuh"
#include "shoal/device/types.hpp"

namespace shoal::ep::cuda {

/// State in device memory that a launch keeps for the rail peer on one node.
struct alignas(128) RailState {
  std::uint64_t sent, received;  ///< chunks of earlier operations
  // Counters of the running launch; 0 between launches.
  std::uint32_t send_next, receive_next;          ///< chunks that blocks have taken
  std::uint32_t consumed[detail::kMaxRailDepth];  ///< combine: sums of the chunk in a slot
};

/// The nodes of a group as seen by this rank.
struct NodeGrid {
  device::World world;
  NetworkPath path;
  detail::RailLayout layout;
  RailState* rails;      ///< [nodes]
  std::uint32_t* tiles;  ///< combine: tiles of tokens that blocks have taken; 0 between launches
  std::int32_t nodes, size, mine, rail;
  std::int32_t first_expert, experts;  ///< those of this node
  std::int32_t pes[kMaxDeviceRanks];   ///< by rank: its PE in the world

  SHOAL_HOST_DEVICE std::int32_t peer(std::int32_t node) const { return node * size + rail; }
  SHOAL_HOST_DEVICE bool here(std::int32_t rank) const { return rank / size == mine; }
  SHOAL_HOST_DEVICE std::int32_t first_here() const { return mine * size; }
};

/// The routing of tokens to nodes, in device memory.
struct NodeRouting {
  /// [tokens, copies_per_token]: pack_copy(node, index among the tokens sent there), by the last
  /// top-k slot that names the node, the node of this rank among them; then kNoCopy.
  std::int32_t* copies;
  std::int32_t* counts;  ///< [nodes]
  std::int32_t* tokens;  ///< [nodes][stride]: the tokens that go to a node
  std::int64_t stride;
  std::int32_t copies_per_token;
};

/// Data in device memory that a dispatch keeps, for its combines, about the tokens that it
/// forwards.
struct RailHandle {
  std::int32_t* counts;  ///< [nodes]: tokens of the rail peer there
  /// [nodes][stride][top_k]: pack_copy(rank, row there) of the copies on this node, in the order of
  /// the routing (expert-major: by top-k slot); kNoCopy: none.
  std::int32_t* rows;
  std::int64_t stride;
};

/// list_node_tokens.cu
struct ListNodeTokens {
  NodeRouting routing;
  std::int32_t tokens;
};

/// dispatch.cu
struct InternodeDispatch {
  NormalDispatch normal;
  NodeGrid grid;
  NodeRouting routing;
  RailHandle rail;
};

/// combine.cu
struct InternodeCombine {
  NormalCombine normal;
  NodeGrid grid;
  NodeRouting routing;
  RailHandle rail;
};

/// Threads of a block. Tests use fewer.
inline constexpr std::int32_t kRailWarps = 16;

void launch_list_node_tokens(const ListNodeTokens& params, cudaStream_t stream);
void launch_internode_dispatch(const InternodeDispatch& params, const NormalPlan& plan,
                               cudaStream_t stream);
void launch_internode_combine(const InternodeCombine& params, const NormalPlan& plan,
                              cudaStream_t stream);

/// Load the code of the kernels. `many_slots`: as in normal/device/kernels.cuh.
void preload_internode_dispatch(bool many_slots);
void preload_internode_combine(bool many_slots);
void launch_quiet(const device::World& world, NetworkPath path, cudaStream_t stream);
void preload_quiet();
void preload_list_node_tokens();

}  // namespace shoal::ep::cuda
