// SPDX-License-Identifier: Apache-2.0
#include "ep/group/state.hpp"

#include <numeric>
#include <set>

#include "base/check.hpp"
#include "base/log.hpp"
#include "ep/group/modes.hpp"
#include "pe/forks.hpp"
#include "pe/placement.hpp"

namespace shoal::ep::detail {

namespace {

std::vector<Pe> pes_of(const Team& team) {
  std::vector<Pe> pes;
  for (Pe rank = 0; rank < team.size(); ++rank) pes.push_back(team.world_pe(rank));
  return pes;
}

std::int64_t hosts_of(const Team& team) {
  const auto& placement = state_of(team).world->placement();
  std::set<std::int32_t> hosts;
  for (const Pe pe : pes_of(team)) hosts.insert(placement.host_of[static_cast<std::size_t>(pe)]);
  return static_cast<std::int64_t>(hosts.size());
}

}  // namespace

GroupState::GroupState(const Team& owner, const GroupOptions& wanted,
                       const GroupPlacement& placement)
    : team(owner),
      options(wanted),
      world(state_of(owner).world),
      me(owner.my_pe()),
      device(placement.device),
      nodes(placement.nodes),
      shape(make_shape(wanted, owner.size(), nodes.count)),
      timeout(wanted.timeout.count() > 0 ? wanted.timeout : world->settings().timeout),
      backend(placement.make_backend(*this)),
      plan(backend->block_plan()),
      arena(plan.arena_bytes, plan.arena_results, plan.arena_transient),
      recorder(world->settings(), world->recorder(), world->my_pe(), me, pes_of(owner),
               hosts_of(owner), shape.first_expert(me), shape.experts_of(me)) {}

GroupState::~GroupState() {
  backend->stop_counting();  // before the record goes
  if (keeps_memory) memory.keep();
}

WorkQueue& GroupState::work_queue(const char* call) {
  const std::lock_guard lock(work_queue_mutex_);
  require(!closed && !closing_, Code::closed, "SHOAL-N510: {}: the group is closed", call);
  if (!world->is_open() && shoal::detail::is_inherited(*world))
    fail(Code::closed, "SHOAL-N172: {}: {}", call, shoal::detail::why_closed(world.get()));
  if (!work_queue_) work_queue_ = std::make_unique<WorkQueue>();
  has_work_queue_.store(true, std::memory_order_release);
  return *work_queue_;
}

void GroupState::drain_work_queue() {
  if (!world->is_open() && shoal::detail::is_inherited(*world)) return;  // no thread serves it
  // The queue, once created, lives as long as the group.
  if (has_work_queue_.load(std::memory_order_acquire)) work_queue_->drain();
}

std::string describe_combine_rows(CombineRowForm agreed, CombineRowForm sent) {
  return fmt::format("{}{}{} that are rounded {}", name_of(encoding_of(agreed)),
                     is_encoded(agreed) ? " " : "", is_sums(sent) ? "sums" : "rows",
                     is_sums(agreed) ? "once per PE (per_rank)" : "once (exact)");
}

std::string describe_given_up(const GroupState& group, std::int32_t by, std::int32_t cause) {
  const Pe pe = group.world_pe(by);
  const auto world_failure = group.world->health().failure();
  const std::string reason = world_failure ? fmt::format(" ({})", *world_failure) : "";
  if (cause == by)
    return fmt::format("PE {} has given this group up{}: its own message says why", pe, reason);
  return fmt::format(
      "PE {} has given this group up because of PE {}{}, which failed first or did not come{}", pe,
      group.world_pe(cause), cause == group.me ? " (this PE)" : "", reason);
}

void GroupState::close_with_world(shoal::detail::WorldEnd end) noexcept {
  end_calls(end);
  if (arena.regions() > 0) mapping = world->heap().memory_owner();
}

void GroupState::end_calls(shoal::detail::WorldEnd end) noexcept {
  if (closed) return;
  WorkQueue* queue = nullptr;
  {
    const std::lock_guard lock(work_queue_mutex_);
    closing_ = true;
    queue = work_queue_.get();
  }
  if (end == shoal::detail::WorldEnd::failed) closed = true;  // queued calls fail when they begin
  try {
    if (queue != nullptr) queue->finish(timeout);
    closed = true;  // a call that another thread queued meanwhile fails when it begins
    if (queue != nullptr) queue->finish(timeout);
    backend->drain();
  } catch (const std::exception& error) {
    log::debug("work of an ep::Group ended with its world: {}", error.what());
  }
  backend->stop_counting();
  closed = true;
}

std::int64_t HandleState::received_by(std::int32_t rank) const {
  return expert_alignment > 0 ? expert_rows.end[rank] : rows_by_rank[rank];
}

}  // namespace shoal::ep::detail
