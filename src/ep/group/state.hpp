// SPDX-License-Identifier: Apache-2.0
// state.hpp: the state of a Group and of the handles that it returns.
//
// A group is the same for all backends; what a backend keeps for it is in its Backend object
// (modes.hpp), and its memory layout is its own.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ep/group/blocks.hpp"
#include "ep/group/work_queue.hpp"
#include "ep/plan/arena.hpp"
#include "ep/plan/nodes.hpp"
#include "ep/plan/notices.hpp"
#include "ep/plan/place.hpp"
#include "ep/plan/routing.hpp"
#include "ep/plan/shape.hpp"
#include "record/map.hpp"
#include "record/recorder.hpp"
#include "shoal/ep/group.hpp"
#include "team/team_state.hpp"
#include "world/state.hpp"

namespace shoal::ep::detail {

class Backend;
struct GroupState;
struct PendingCombineState;
struct PendingDispatchState;

/// The memory of a group, which its backend asks for; equal on all ranks.
struct BlockPlan {
  std::size_t bytes = 0;                               ///< of a rank's block
  std::size_t arena_bytes = 0;                         ///< of the receive area in it
  std::size_t arena_results = 0, arena_transient = 0;  ///< as for Arena
  bool staging = false;  ///< from the world's staging memory; else from the heap
};

/// The backend of a group, and the nodes as that backend sees them.
struct GroupPlacement {
  Device device;  ///< of the group's tensors
  Nodes nodes;
  /// `state` is complete up to its shape and timeout.
  std::unique_ptr<Backend> (*make_backend)(GroupState& state);
};

struct GroupState final : shoal::detail::Closable, std::enable_shared_from_this<GroupState> {
  GroupState(const Team& owner, const GroupOptions& wanted, const GroupPlacement& placement);
  ~GroupState() override;

  const Team team;
  const GroupOptions options;
  const std::shared_ptr<shoal::detail::WorldState> world;
  std::shared_ptr<void> mapping;  ///< of the heap, once its world is closed and results are held
  Block memory;                   ///< this rank's block; offered once the backend is gone
  const std::int32_t me;          ///< this rank
  const Device device;            ///< of the group's tensors
  const Nodes nodes;
  const Shape shape;
  const std::chrono::milliseconds timeout;
  const std::unique_ptr<Backend> backend;
  const BlockPlan plan;

  std::byte* block = nullptr;     ///< this rank's block
  std::size_t block_offset = 0;   ///< of the block in every heap, or staging memory
  std::size_t host_offset = 0;    ///< of the block in every PE's host memory, if it lies there
  std::vector<std::byte*> peers;  ///< every rank's block as an address here; nullptr: remote
  Arena arena;

  // Numbers of the last operation of each kind on this rank. They only grow.
  std::uint64_t epoch = 0;  ///< normal mode
  std::uint64_t low_latency_dispatch_epoch = 0;
  std::uint64_t low_latency_combine_epoch = 0;
  std::uint64_t low_latency_dispatch_received = 0;  ///< receives are in order
  std::uint64_t low_latency_combine_received = 0;

  /// Low-latency operations that were dropped before their receive, which the group makes itself.
  std::mutex dropped_mutex;
  std::vector<std::shared_ptr<PendingDispatchState>> dropped_dispatches;
  std::vector<std::shared_ptr<PendingCombineState>> dropped_combines;

  TensorView combine_buffer;  ///< the last result of next_combine_buffer
  std::string failure;        ///< why the group is unusable; empty while it is usable
  std::atomic<bool> closed = false;
  Statistics statistics;
  shoal::detail::record::GroupRecorder recorder;
  shoal::detail::record::MapRecorder map;  ///< of the group's block
  bool record_written = false;             ///< to SHOAL_FLIGHT_DIR, after a failure
  /// Other ranks may still write to the memory, which stays allocated until the world closes.
  bool keeps_memory = false;

  /// The address here of heap byte `offset` of a rank; nullptr on other nodes.
  std::byte* heap_of(std::int32_t rank, std::uint64_t offset) const {
    return peers[rank] == nullptr ? nullptr : peers[rank] - block_offset + offset;
  }
  Pe world_pe(std::int32_t rank) const { return team.world_pe(rank); }
  /// The option or setting from which `timeout` was taken; messages name it.
  const char* timeout_setting() const {
    return options.timeout.count() > 0 ? "GroupOptions.timeout" : "SHOAL_TIMEOUT_MS";
  }
  /// Operation `number` of this group, for ProgressBoard::refusal.
  shoal::detail::CallId call(shoal::detail::CallKind kind, std::uint64_t number) const {
    return {kind, block_offset, number};
  }

  /// The queue of asynchronous calls. The first call creates it. Throws Error{closed} once the
  /// group or its world is being closed.
  WorkQueue& work_queue(const char* call);
  /// Waits until all asynchronous calls so far have ended.
  void drain_work_queue();
  /// Offers the memory of a group that is closed for release, unless a result is held.
  void offer_memory() noexcept {
    if (!keeps_memory && arena.regions() == 0) memory.offer();
  }
  /// Completes the queued calls (WorldEnd::closed), or fails those that have not begun; then waits
  /// for the backend's queued work.
  /// Results that are held then stay readable.
  void close_with_world(shoal::detail::WorldEnd end) noexcept override;

 private:
  void end_calls(shoal::detail::WorldEnd end) noexcept;

  std::mutex work_queue_mutex_;
  std::unique_ptr<WorkQueue> work_queue_;
  std::atomic<bool> has_work_queue_ = false;
  bool closing_ = false;
};

/// "PE 0 has given this group up because of PE 1, which failed first or did not come (...)", for
/// ranks `by` and `cause`, which may be the same. The bracket holds the failure of the world, if
/// there is one.
std::string describe_given_up(const GroupState& group, std::int32_t by, std::int32_t cause);

/// The combine rows that a rank sends in low-latency mode as `sent` where the ranks agree on
/// `agreed`, such as "fp8 sums that are rounded once per PE (per_rank)".
std::string describe_combine_rows(CombineRowForm agreed, CombineRowForm sent);

/// A region of the receive area. The last tensor that refers to it releases it.
struct Region {
  Region(std::shared_ptr<GroupState> state, std::size_t at) : group(std::move(state)), offset(at) {}
  ~Region() {
    group->arena.release(offset);
    if (group->closed) group->offer_memory();
  }
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  std::shared_ptr<GroupState> group;
  std::size_t offset;  ///< in the arena
};

/// One row of a forwarded token.
struct ForwardedRow {
  std::int32_t rank;
  std::int32_t topk_slot;  ///< expert-major; else -1
  std::int64_t row;
};

/// The tokens that this rank has forwarded for its rail peer on one node, in order of arrival.
struct Forwarded {
  /// Next row of the peer's tokens at each rank; expert-major: of each expert.
  std::vector<std::int32_t> next;
  std::vector<std::int32_t> first{0};  ///< [tokens + 1]: start of each token's rows
  std::vector<ForwardedRow> rows;      ///< of a token in the order in which combine adds them

  std::int64_t tokens() const { return static_cast<std::int64_t>(first.size()) - 1; }
  std::span<const ForwardedRow> rows_of(std::int64_t token) const {
    return {rows.data() + first[token], static_cast<std::size_t>(first[token + 1] - first[token])};
  }
};

/// The layout of a normal dispatch.
struct HandleState {
  BackendKind backend = BackendKind::host;  ///< for of_backend
  std::shared_ptr<const RoutingState> routing;
  std::weak_ptr<const GroupState> group;  ///< that made the handle
  std::uint64_t epoch = 0;                ///< of the dispatch that made the layout
  std::vector<std::int32_t> counts;       ///< [ranks][ranks]: rows from source i to rank j
  std::vector<std::int32_t> first_row;    ///< [ranks]: first row of this rank's tokens at each rank
  std::vector<std::int64_t> rows_by_rank;  ///< [ranks]: rank-major rows of each rank; host only
  std::int64_t received = 0;          ///< rows here; expert-major: up to the end of the last block
  std::int64_t result_rows = 0;       ///< received, or worst_case_rows
  std::int32_t expert_alignment = 0;  ///< of the blocks of an expert-major layout; 0: rank-major
  ExpertRows expert_rows;             ///< of the expert-major layout
  /// The rank-major layout of the same dispatch, where that was asked for.
  std::shared_ptr<const HandleState> rank_major;
  std::vector<std::int32_t> tokens_per_expert;  ///< [experts here] received here; empty on GPUs
  std::vector<Forwarded> forwarded;  ///< [nodes] if there are several: forwarded for each peer

  std::int64_t received_by(std::int32_t rank) const;
  /// Top-k slots described with a row.
  std::int32_t topk_slots(std::int32_t top_k) const { return expert_alignment > 0 ? 1 : top_k; }
};

/// The tokens of a rank of another node, whose weights travelled: the rows here that make up the
/// sum of each.
struct InternodeTokens {
  struct Part {
    std::int32_t expert;
    std::int32_t row;
    float weight;
  };
  std::vector<std::int32_t> first{0};  ///< [tokens + 1]: start of each token's parts, by slot
  std::vector<Part> parts;             ///< of a token by ascending top-k slot

  std::int64_t tokens() const { return static_cast<std::int64_t>(first.size()) - 1; }
  std::span<const Part> parts_of(std::int64_t token) const {
    return {parts.data() + first[token], static_cast<std::size_t>(first[token + 1] - first[token])};
  }
};

/// The layout of a low-latency dispatch.
struct LowLatencyHandleState {
  BackendKind backend = BackendKind::host;  ///< for of_backend
  std::weak_ptr<const GroupState> group;    ///< that made the handle
  std::uint64_t epoch = 0;
  std::shared_ptr<const RoutingState> routing;
  std::vector<std::int32_t> first_row;  ///< [local_experts][ranks] of the rows received here
  std::vector<std::int32_t> counts;     ///< [local_experts] rows received here
  bool has_weights = false;             ///< the dispatch was given the weights
  std::vector<float> weights;           ///< [tokens, top_k] a copy of them; empty on GPUs
  /// [ranks]: of ranks of other nodes whose weights travelled.
  std::vector<std::optional<InternodeTokens>> remote_tokens;
};

}  // namespace shoal::ep::detail
