// SPDX-License-Identifier: Apache-2.0
// state.hpp: what stands behind a Group.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ep/plan/arena.hpp"
#include "ep/plan/layout.hpp"
#include "ep/plan/nodes.hpp"
#include "ep/plan/routing.hpp"
#include "ep/work_queue.hpp"
#include "shoal/ep/group.hpp"
#include "world/state.hpp"

namespace shoal::ep::host {
struct HostGroup;
}

namespace shoal::ep::detail {

class Backend;

struct GroupState : std::enable_shared_from_this<GroupState> {
  GroupState(const Team& owner, const GroupOptions& wanted);
  ~GroupState();

  const Team team;
  const GroupOptions options;
  const std::shared_ptr<shoal::detail::WorldState> world;
  const Pe me;
  const Device device;  ///< where the group's tensors lie
  /// A group of tensors in GPU memory whose members do not all reach each other: its memory is on
  /// the host, in the world's staging, and rows are copied there and back (cuda/staged/staged.cpp).
  const bool staged;
  const Nodes nodes;
  const Shape shape;
  const std::chrono::milliseconds timeout;

  std::byte* block = nullptr;    ///< this member's block of the heap
  std::size_t block_offset = 0;  ///< of the block in everybody's heap, or staging
  std::size_t host_offset = 0;   ///< of the block in everybody's host memory, where it is there
  std::vector<std::byte*>
      peers;               ///< every member's block, as addresses here; nullptr on other nodes
  std::size_t heap_bytes;  ///< of the block
  std::unique_ptr<Backend> backend;
  std::unique_ptr<host::HostGroup> host;  ///< the host backend's part
  Arena arena;
  std::unique_ptr<Stream> stream;  ///< made by the first asynchronous call

  // Numbers of the last operation of each kind on this member; they only grow (DESIGN.md, idea 2).
  std::uint64_t epoch = 0;  ///< normal mode
  std::uint64_t low_latency_dispatch_epoch = 0;
  std::uint64_t low_latency_combine_epoch = 0;
  std::uint64_t low_latency_dispatch_received = 0;  ///< received in order, so these say all
  std::uint64_t low_latency_combine_received = 0;

  TensorView combine_buffer;  ///< what next_combine_buffer returned last
  std::string failure;        ///< why the group is unusable; empty while it is not
  bool closed = false;
  Statistics statistics;

  /// Where member `rank`'s heap byte `offset` lies here; nullptr on other nodes.
  std::byte* heap_of(std::int32_t rank, std::uint64_t offset) const {
    return peers[rank] == nullptr ? nullptr : peers[rank] - block_offset + offset;
  }
};

/// A region of the receive area; returns to the arena with the last tensor that looks into it.
struct Region {
  Region(std::shared_ptr<GroupState> state, std::size_t at) : group(std::move(state)), offset(at) {}
  ~Region() { group->arena.release(offset); }
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  std::shared_ptr<GroupState> group;
  std::size_t offset;  ///< in the arena
};

/// Where one row of a token from another node went.
struct ForwardedRow {
  std::int32_t rank;
  std::int32_t lane;  ///< expert-major; else -1
  std::int64_t row;
};

/// The tokens that this member has passed on for its rail peer on one node, in the order in which
/// they came.
struct Forwarded {
  /// Next row of the peer's tokens at each member; expert-major: of each expert.
  std::vector<std::int32_t> next;
  std::vector<std::int32_t> first{0};  ///< [tokens + 1]: where the rows of each token start
  std::vector<ForwardedRow> rows;      ///< of a token in the order in which combine adds them

  std::int64_t tokens() const { return static_cast<std::int64_t>(first.size()) - 1; }
  std::span<const ForwardedRow> rows_of(std::int64_t token) const {
    return {rows.data() + first[token], static_cast<std::size_t>(first[token + 1] - first[token])};
  }
};

struct HandleState {
  std::shared_ptr<const RoutingState> routing;
  std::weak_ptr<const GroupState> group;  ///< which group made it
  std::uint64_t epoch = 0;                ///< of the dispatch that made the layout
  std::vector<std::int32_t> counts;       ///< [ranks][ranks]: rows from source i to member j
  std::vector<std::int32_t> first_row;  ///< [ranks]: where this member's rows start at each member
  std::int64_t received =
      0;  ///< rows of this member; expert-major: up to the end of the last block
  std::int64_t result_rows = 0;  ///< received, or worst_case_rows
  /// Expert-major layout (DispatchOptions.expert_major): the alignment of the experts' blocks; 0:
  /// flat.
  std::int32_t expert_alignment = 0;
  ExpertRows expert_rows;                       ///< of the expert-major layout
  std::vector<std::int32_t> tokens_per_expert;  ///< [local_experts] received here; empty on GPUs
  std::vector<Forwarded>
      forwarded;  ///< [nodes], where there are several: what this member passed on for each

  std::int64_t received_by(std::int32_t rank) const;
  std::int32_t lanes(std::int32_t top_k) const {
    return expert_alignment > 0 ? 1 : top_k;
  }  ///< beside a row
};

/// The tokens that a member of another node has sent with their weights: which answers make up the
/// sum of each.
struct FarTokens {
  struct Part {
    std::int32_t expert;
    std::int32_t row;
    float weight;
  };
  std::vector<std::int32_t> first{
      0};  ///< [tokens + 1]: where the parts of each token start, in the order they came in
  std::vector<Part> parts;  ///< of a token by ascending lane

  std::int64_t tokens() const { return static_cast<std::int64_t>(first.size()) - 1; }
  std::span<const Part> parts_of(std::int64_t token) const {
    return {parts.data() + first[token], static_cast<std::size_t>(first[token + 1] - first[token])};
  }
};

struct LowLatencyHandleState {
  std::weak_ptr<const GroupState> group;  ///< which group made it
  std::uint64_t epoch = 0;
  std::shared_ptr<const RoutingState> routing;
  std::vector<std::int32_t> first_row;  ///< [local_experts][ranks] of the rows received here
  std::vector<std::int32_t> counts;     ///< [local_experts] rows received here
  bool has_weights = false;             ///< whether the weights were given to the dispatch
  std::vector<float> weights;           ///< [tokens, top_k] a copy of them; empty on GPUs
  std::vector<std::optional<FarTokens>>
      far_tokens;  ///< [ranks]: of members of other nodes whose weights travelled
};

}  // namespace shoal::ep::detail
