// state.hpp: what stands behind a Group.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ep/arena.hpp"
#include "ep/host/worker_pool.hpp"
#include "ep/layout.hpp"
#include "ep/routing.hpp"
#include "ep/stream.hpp"
#include "shoal/ep/group.hpp"
#include "world/state.hpp"

namespace shoal::ep::detail {

struct GroupState : std::enable_shared_from_this<GroupState> {
  GroupState(const Team& owner, const GroupOptions& wanted);

  const Team team;
  const GroupOptions options;
  const Shape shape;
  const GroupLayout layout;
  const std::shared_ptr<shoal::detail::WorldState> world;
  const Pe me;
  const std::chrono::milliseconds timeout;

  std::byte* block = nullptr;     ///< this member's block of the heap
  std::size_t block_offset = 0;   ///< of the block in everybody's heap
  std::vector<std::byte*> peers;  ///< every member's block, as addresses here
  Arena arena;
  host::WorkerPool workers;
  std::unique_ptr<Stream> stream;  ///< made by the first asynchronous call

  // Numbers of the last operation of each kind on this member; they only grow (DESIGN.md, idea 2).
  std::uint64_t epoch = 0;  ///< normal mode
  std::uint64_t low_latency_dispatch_epoch = 0;
  std::uint64_t low_latency_combine_epoch = 0;
  std::uint64_t low_latency_dispatch_received = 0;  ///< received in order, so these say all
  std::uint64_t low_latency_combine_received = 0;

  std::vector<char> masked;  ///< [ranks]: left out of low-latency operations
  std::string failure;       ///< why the group is unusable; empty while it is not
  bool closed = false;
  Statistics statistics;

  /// Results of low-latency dispatch: two, used in turn.
  struct LowLatencyResult {
    Tensor x, scales, counts, source_token, layout;
  };
  std::optional<LowLatencyResult> low_latency_results[2];

  /// Where member `rank`'s heap byte `offset` lies here.
  std::byte* heap_of(std::int32_t rank, std::uint64_t offset) const { return peers[rank] - block_offset + offset; }
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

struct HandleState {
  std::shared_ptr<const RoutingState> routing;
  std::weak_ptr<const GroupState> group;  ///< which group made it
  std::uint64_t epoch = 0;                ///< of the dispatch that made the layout
  std::vector<std::int32_t> counts;       ///< [ranks][ranks]: rows from source i to member j
  std::vector<std::int32_t> first_row;    ///< [ranks]: where this member's rows start at each member
  std::int64_t received = 0;
  std::int64_t result_rows = 0;  ///< received, or worst_case_rows

  std::int64_t received_by(std::int32_t rank) const;
};

struct LowLatencyHandleState {
  std::weak_ptr<const GroupState> group;  ///< which group made it
  std::uint64_t epoch = 0;
  std::shared_ptr<const RoutingState> routing;
  std::vector<std::int32_t> first_row;  ///< [local_experts][ranks] of the rows received here
  std::vector<std::int32_t> counts;     ///< [local_experts] rows received here
};

}  // namespace shoal::ep::detail
