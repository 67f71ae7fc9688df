// SPDX-License-Identifier: Apache-2.0
// group.cpp: the life of a group, and its calls that belong to no mode.
#include "shoal/ep/group.hpp"

#include <exception>

#include "base/check.hpp"
#include "base/log.hpp"
#include "ep/api/agreement.hpp"
#include "ep/api/calls.hpp"
#include "ep/group/block_map.hpp"
#include "ep/group/blocks.hpp"
#include "ep/group/checks.hpp"
#include "ep/group/modes.hpp"
#include "fabric/fabric.hpp"
#include "heap/staging.hpp"
#include "pe/forks.hpp"
#include "pe/memory.hpp"
#include "team/exchange.hpp"

namespace shoal::ep {
namespace detail {

GroupState& open_group(const std::shared_ptr<GroupState>& state, const char* call) {
  require(state != nullptr && !state->closed, Code::closed, "SHOAL-N510: {}: the group is closed",
          call);
  if (!state->world->is_open() && shoal::detail::is_inherited(*state->world))
    fail(Code::closed, "SHOAL-N172: {}: {}", call, shoal::detail::why_closed(state->world.get()));
  return *state;
}

GroupState& working_group(const std::shared_ptr<GroupState>& state, const char* call) {
  GroupState& group = open_group(state, call);
  state_of(group.team);  // throws where the world is closed
  if (!group.failure.empty()) record_failure(group, group.failure);
  require(group.failure.empty(), Code::closed, "SHOAL-N511: {}: the group failed before: {}", call,
          group.failure);
  const auto failed = group.options.mask_failed ? std::nullopt : group.backend->failed_rank();
  if (!failed) return group;
  const std::string reason = describe_given_up(group, *failed, group.backend->cause_of(*failed));
  record_failure(group, reason);
  fail(Code::closed, "SHOAL-N552: {}: {}", call, reason);
}

void fail_closed_result(const char* call, const char* operation, std::uint64_t epoch) {
  fail(Code::closed,
       "SHOAL-N515: {}: the group is closed that made the handle ({} {}); its results can still be "
       "read, and no call takes them",
       call, operation, epoch);
}

GroupState& idle_group(const std::shared_ptr<GroupState>& state, const char* call) {
  if (state != nullptr) state->drain_work_queue();
  return working_group(state, call);
}

namespace {

void take_memory(GroupState& state) {
  auto& world = *state.world;
  if (state.plan.staging) {
    state.host_offset = state.block_offset =
        shoal::detail::allocate_staging(world, state.plan.bytes);
    state.block = world.fabric().host_base(world.my_pe()) + state.host_offset;
  } else {
    state.block = static_cast<std::byte*>(world.heap().malloc(state.plan.bytes));
    state.block_offset = world.heap().offset_of(state.block);
    state.host_offset = world.memory().host_offset(state.block_offset);
  }
  for (std::int32_t rank = 0; rank < state.shape.ranks; ++rank) {
    const Pe pe = state.world_pe(rank);
    std::byte* const base =
        state.plan.staging ? world.fabric().host_base(pe) : world.fabric().peer_base(pe);
    state.peers.push_back(state.nodes.here(rank) ? base + state.block_offset : nullptr);
  }
}

/// Returns the memory to the heap, or leaves that to the last result where a PE holds some.
/// Collective.
void release_memory(GroupState& state) {
  state.backend->drain();  // queued work still uses the memory
  if (const auto failed = state.backend->ask_failed_rank(); failed && !state.options.mask_failed)
    fail(Code::closed, "SHOAL-N552: close: {}",
         describe_given_up(state, *failed, state.backend->cause_of(*failed)));
  const bool held = any_pe(state, state.arena.regions() > 0, "ep group close");
  state.backend->stop_counting();
  state.closed = true;
  if (held) return state.offer_memory();
  state.backend->release();
  state.map = {};
  state.memory.release();
}

/// Ends this PE's use of a group that is not closed. Local: waits only for calls and kernels of
/// this PE, which have deadlines. After a failure other ranks may still write to the memory, which
/// then stays allocated until the world closes.
void abandon(GroupState& state) {
  state.drain_work_queue();
  if (!state.world->is_open()) return;  // it released the memory
  state.keeps_memory = true;
  if (std::uncaught_exceptions() > 0 || !state.failure.empty()) return;
  state.backend->drain();  // throws errors of queued work
  if (state.backend->ask_failed_rank() || state.world->health().failure()) return;
  state.keeps_memory = false;
  state.backend->stop_counting();
}

void require_masks(const GroupState& group, const char* call) {
  require(group.options.mask_failed, Code::invalid_argument,
          "SHOAL-N513: {}: this group was made with GroupOptions.mask_failed = false", call);
}

}  // namespace
}  // namespace detail

using detail::idle_group;
using detail::open_group;

Group::Group(const Team& team, const GroupOptions& options)
    : state_(detail::agree_on_group(team, options)) {
  detail::GroupState& state = *state_;
  detail::release_offered_blocks(*state.world);
  detail::take_memory(state);
  state.backend->open();
  state.memory = detail::Block(*state.world, state.block_offset, state.plan.staging);
  state.map =
      detail::show_block(state, state.plan.staging ? "staging memory" : "heap", state.block_offset,
                         state.plan.bytes, state.peers, state.backend->regions());
  shoal::detail::sync(state_of(team), "ep group");
  state.world->closers().add(state_);
  shoal::detail::keep_in_children(state_);
  if (options.mask_failed) state.world->let_leave_early();
  if (options.preinitialize) warmup();
}

Group& Group::operator=(Group&& other) noexcept {
  Group(std::move(other)).state_.swap(state_);
  return *this;
}

Group::~Group() {
  if (!state_ || state_->closed) return;
  try {
    detail::abandon(*state_);
  } catch (const Error& error) {
    if (error.code() != Code::closed)
      log::warn("SHOAL-N512: an ep::Group could not return its memory: {}", error.what());
  } catch (const std::exception& error) {
    log::warn("SHOAL-N512: an ep::Group could not return its memory: {}", error.what());
  }
  state_->closed = true;
}

void Group::close() {
  if (!state_ || state_->closed) return;
  open_group(state_, "close");  // throws in a child that the PE has forked
  state_->drain_work_queue();
  require(state_->failure.empty(), Code::closed, "SHOAL-N511: close: the group failed before: {}",
          state_->failure);
  try {
    detail::release_memory(*state_);
  } catch (const Error& error) {
    if (!state_->options.mask_failed || error.code() != Code::timeout) throw;
    log::warn(
        "SHOAL-N514: an ep::Group was closed on PE {} alone: the other ranks may continue without "
        "it (GroupOptions.mask_failed); its memory stays allocated until the world closes: {}",
        state_->world->my_pe(), reason_of(error));
    state_->keeps_memory = true;
    state_->closed = true;
    return;
  }
  detail::release_offered_blocks(*state_->world);
}

const Team& Group::team() const {
  require(state_ != nullptr, Code::closed, "SHOAL-N510: team: the group is closed");
  return state_->team;
}

const GroupOptions& Group::options() const {
  require(state_ != nullptr, Code::closed, "SHOAL-N510: options: the group is closed");
  return state_->options;
}

std::int32_t Group::local_experts() const {
  require(state_ != nullptr, Code::closed, "SHOAL-N510: local_experts: the group is closed");
  return state_->shape.experts_of(state_->me);
}

std::int32_t Group::max_local_experts() const {
  require(state_ != nullptr, Code::closed, "SHOAL-N510: max_local_experts: the group is closed");
  return state_->shape.local_experts;
}

const std::vector<std::int32_t>& Group::first_expert() const {
  require(state_ != nullptr, Code::closed, "SHOAL-N510: first_expert: the group is closed");
  return state_->shape.partition->firsts();
}

std::vector<int> Group::masked() const {
  return idle_group(state_, "masked").backend->low_latency().masked();
}

void Group::set_mask(std::int32_t rank, bool masked) {
  detail::GroupState& group = idle_group(state_, "set_mask");
  detail::require_masks(group, "set_mask");
  require(rank >= 0 && rank < group.shape.ranks && rank != group.me, Code::invalid_argument,
          "SHOAL-N516: set_mask: rank {}; allowed: 0 to {}, except this rank ({})", rank,
          group.shape.ranks - 1, group.me);
  group.backend->low_latency().set_mask(rank, masked);
}

void Group::clear_masks() {
  detail::GroupState& group = idle_group(state_, "clear_masks");
  detail::require_masks(group, "clear_masks");
  group.backend->low_latency().clear_masks();
}

Statistics Group::statistics() const {
  require(state_ != nullptr, Code::closed, "SHOAL-N510: statistics: the group is closed");
  state_->drain_work_queue();
  Statistics statistics = state_->statistics;
  if (!state_->closed && state_->world->is_open()) state_->backend->add_counts(statistics);
  return statistics;
}

void Group::warmup() {
  detail::GroupState& group = open_group(state_, "warmup");
  const Statistics before = group.statistics;
  const struct Paused {
    explicit Paused(detail::record::GroupRecorder& of) : recorder(of), counting(of.counting()) {
      recorder.set_counting(false);
    }
    ~Paused() { recorder.set_counting(counting); }
    detail::record::GroupRecorder& recorder;
    bool counting;
  } paused(group.recorder);
  group.backend->warmup(*this);
  group.statistics = before;
}

Stream Group::stream() const {
  return open_group(state_, "stream").backend->stream();
}

void Group::order_after(Stream stream) const noexcept {
  if (state_ != nullptr && !state_->closed && state_->world->is_open())
    state_->backend->order_after(stream);
}

void Group::synchronize() {
  detail::GroupState& group = idle_group(state_, "synchronize");
  try {
    group.backend->synchronize();
  } catch (...) {
    if (!group.failure.empty()) detail::record_failure(group, group.failure);
    throw;
  }
}

}  // namespace shoal::ep
