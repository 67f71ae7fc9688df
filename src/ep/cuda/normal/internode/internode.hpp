// SPDX-License-Identifier: Apache-2.0
// internode.hpp: what normal mode keeps for ranks on other nodes: rings, rails, and the arrays that
// routings and handles have in addition.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "ep/cuda/group/group.hpp"
#include "ep/cuda/normal/internode/kernels.cuh"
#include "ep/plan/cursor.hpp"
#include "ep/plan/nodes.hpp"

namespace shoal::ep::cuda {

class Internode {
 public:
  /// `nodes`: ranks whose GPUs reach each other by loads and stores. `start`: of the rings in the
  /// group's block in the heap.
  Internode(CudaGroup& group, const detail::Nodes& nodes, std::size_t start);

  /// Why the kernels do not serve such a group; nullopt: they do. Equal on all ranks.
  static std::optional<std::string> why_not(const detail::Shape& shape, const detail::Nodes& nodes);

  /// End of the rings in the block.
  std::size_t end() const { return grid_.layout.end; }
  /// Initialises the memory. Called when the group has it, before any other rank proceeds.
  void open(NetworkPath path);

  const NodeGrid& grid() const { return grid_; }
  std::int32_t nodes() const { return grid_.nodes; }
  /// The arrays of a routing or handle, taken from `cursor`.
  NodeRouting routing_arrays(detail::ArrayCursor& cursor) const;
  RailHandle handle_arrays(detail::ArrayCursor& cursor) const;

  /// Queues the kernels of a routing to nodes, after the one to ranks.
  void route(NormalRoute params, const NodeRouting& routing, cudaStream_t on) const;
  /// Blocks of a launch: as many as wished, 24 if none are, at most those that run at once.
  NormalPlan plan(std::int32_t wished, std::int32_t most, std::uint32_t table_bytes) const;

 private:
  CudaGroup& group_;
  detail::Shape shape_;
  NodeGrid grid_{};
  std::shared_ptr<void> rails_;
  std::shared_ptr<void> node_words_;
  ExpertTable node_table_{};  ///< the node of each expert, as if it were a rank
};

/// Bytes of shared memory that a dispatch needs for the rows of all ranks, or of all experts and of
/// those of this node for each node. Equal on all ranks.
std::uint32_t internode_table_bytes(const detail::Shape& shape, std::int32_t nodes,
                                    bool expert_major);
/// Most bytes of the table of experts that fit next to the kernel's own shared memory.
inline constexpr std::uint32_t kMaxInternodeTable = 40 << 10;

}  // namespace shoal::ep::cuda
