// SPDX-License-Identifier: Apache-2.0
#include "ep/cuda/normal/internode/internode.hpp"

#include <algorithm>

#include "device/device_side.hpp"

namespace shoal::ep::cuda {
namespace {

detail::Shape with_nodes(detail::Shape shape, std::int32_t nodes) {
  shape.nodes = nodes;
  return shape;
}

/// Entries of a routing or handle for each node.
std::int64_t tokens_of(const detail::Shape& shape) {
  return std::max(shape.max_tokens, shape.low_latency_max_tokens);
}

/// The most experts of any node. Its ranks follow each other.
std::int32_t most_experts_of_node(const detail::Shape& shape, std::int32_t nodes) {
  const std::int32_t size = shape.ranks / nodes;
  std::int32_t most = 0;
  for (std::int32_t first = 0; first < shape.ranks; first += size)
    most = std::max(most, shape.first_expert(first + size) - shape.first_expert(first));
  return most;
}

}  // namespace

Internode::Internode(CudaGroup& group, const detail::Nodes& nodes, std::size_t start)
    : group_(group), shape_(with_nodes(group.state.shape, nodes.count)) {
  const auto& settings = group.state.world->settings();
  const detail::DeviceLayout device(shape_);
  grid_.layout = detail::RailLayout(
      shape_, device.notice_bytes, start, detail::option_or(shape_.chunk_bytes, settings.ep_chunk),
      detail::chunk_depth(shape_.chunks_in_flight, settings.ep_depth, true));
  grid_.nodes = nodes.count;
  grid_.size = nodes.size;
  grid_.mine = nodes.mine;
  grid_.rail = nodes.rail;
  grid_.first_expert = shape_.first_expert(nodes.mine * nodes.size);
  grid_.experts = shape_.first_expert((nodes.mine + 1) * nodes.size) - grid_.first_expert;
  for (std::int32_t rank = 0; rank < shape_.ranks; ++rank)
    grid_.pes[rank] = group.state.world_pe(rank);
}

std::optional<std::string> Internode::why_not(const detail::Shape& shape,
                                              const detail::Nodes& nodes) {
  for (std::int32_t rank = 0; rank < shape.ranks; ++rank)
    if (nodes.node_of[static_cast<std::size_t>(rank)] != rank / nodes.size)
      return "kernels of normal mode need the ranks of a node to follow each other in the team";
  if (internode_table_bytes(shape, nodes.count, true) > kMaxInternodeTable)
    return fmt::format(
        "kernels of normal mode between nodes have {} bytes for the rows of experts; {} experts, of "
        "which one node holds {}, need {}",
        kMaxInternodeTable, shape.experts, most_experts_of_node(shape, nodes.count),
        internode_table_bytes(shape, nodes.count, true));
  if (shape.max_received() >= kMaxDeviceTokens)
    return fmt::format(
        "kernels of normal mode between nodes count {} rows of a result at most; "
        "GroupOptions.max_tokens allows {}",
        kMaxDeviceTokens - 1, shape.max_received());
  return std::nullopt;
}

void Internode::open(NetworkPath path) {
  const std::size_t rails = static_cast<std::size_t>(grid_.nodes) * sizeof(RailState);
  rails_ = group_.resources->allocate(rails + 128, group_.stream, group_.resources);
  check(cudaMemsetAsync(rails_.get(), 0, rails + 128, group_.stream), "rails of an ep::Group");
  check(cudaMemsetAsync(group_.device.block[group_.state.me] + grid_.layout.start, 0,
                        grid_.layout.control_end - grid_.layout.start, group_.stream),
        "rails of an ep::Group");
  const std::vector<std::int32_t> words = expert_table_words(*shape_.partition, grid_.size);
  const std::size_t bytes = words.size() * sizeof(std::int32_t);
  node_words_ = group_.resources->allocate(bytes, group_.stream, group_.resources);
  check(cudaMemcpyAsync(node_words_.get(), words.data(), bytes, cudaMemcpyHostToDevice,
                        group_.stream),
        "experts of an ep::Group");
  node_table_ =
      ExpertTable::at(static_cast<const std::int32_t*>(node_words_.get()), shape_.experts);
  check(cudaStreamSynchronize(group_.stream), "rails of an ep::Group");
  grid_.rails = static_cast<RailState*>(rails_.get());
  grid_.tiles = reinterpret_cast<std::uint32_t*>(static_cast<std::byte*>(rails_.get()) + rails);
  grid_.path = path;
  grid_.world = group_.state.world->device_side()->world();
  grid_.world.timeout_ns = group_.device.timeout_ns;
  preload_list_node_tokens();
  const bool many_slots = shape_.top_k > kOnePerLane;
  preload_internode_dispatch(many_slots);
  preload_quiet();
  preload_internode_combine(many_slots);
  check(cudaGetLastError(), "kernels of an ep::Group between nodes");
}

NodeRouting Internode::routing_arrays(detail::ArrayCursor& cursor) const {
  NodeRouting arrays{};
  const auto tokens = static_cast<std::size_t>(tokens_of(shape_));
  arrays.copies_per_token = std::min(shape_.top_k, grid_.nodes);
  arrays.stride = tokens_of(shape_);
  arrays.copies =
      cursor.take<std::int32_t>(tokens * static_cast<std::size_t>(arrays.copies_per_token));
  arrays.counts = cursor.take<std::int32_t>(static_cast<std::size_t>(grid_.nodes));
  arrays.tokens = cursor.take<std::int32_t>(tokens * static_cast<std::size_t>(grid_.nodes));
  return arrays;
}

RailHandle Internode::handle_arrays(detail::ArrayCursor& cursor) const {
  RailHandle arrays{};
  arrays.stride = shape_.max_tokens;
  arrays.counts = cursor.take<std::int32_t>(static_cast<std::size_t>(grid_.nodes));
  arrays.rows = cursor.take<std::int32_t>(
      static_cast<std::size_t>(shape_.max_tokens * shape_.top_k * grid_.nodes));
  return arrays;
}

void Internode::route(NormalRoute params, const NodeRouting& routing, cudaStream_t on) const {
  // A node is to this kernel a rank with the experts of all its ranks.
  params.group.ranks = grid_.nodes;
  params.group.expert_table = node_table_;
  params.copies_per_token = routing.copies_per_token;
  params.out.copies = routing.copies;
  params.out.rank_counts = routing.counts;
  params.is_token_in_rank = nullptr;
  params.rank_counts = params.node_counts;
  params.out.node_counts = params.node_counts = params.expert_counts = nullptr;
  launch_normal_route(params, false, on);
  launch_list_node_tokens({routing, params.tokens}, on);
}

NormalPlan Internode::plan(std::int32_t wished, std::int32_t most,
                           std::uint32_t table_bytes) const {
  constexpr std::int32_t kBlocks = 24;
  NormalPlan plan;
  plan.blocks = std::clamp(wished > 0 ? wished : kBlocks, 1, std::max(1, most));
  plan.warps = kRailWarps;
  plan.shared_bytes = table_bytes;
  return plan;
}

std::uint32_t internode_table_bytes(const detail::Shape& shape, std::int32_t nodes,
                                    bool expert_major) {
  return static_cast<std::uint32_t>(expert_major
                                        ? shape.experts + nodes * most_experts_of_node(shape, nodes)
                                        : shape.ranks) *
         static_cast<std::uint32_t>(sizeof(std::int32_t));
}

}  // namespace shoal::ep::cuda
