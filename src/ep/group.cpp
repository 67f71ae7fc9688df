// SPDX-License-Identifier: Apache-2.0
#include "shoal/ep/group.hpp"

#include <exception>

#include "base/check.hpp"
#include "base/log.hpp"
#include "ep/agreement.hpp"
#include "ep/backend.hpp"
#include "ep/checks.hpp"

namespace shoal::ep {
namespace detail {

namespace {

/// Throws unless the group can be used.
GroupState& open_group(const std::shared_ptr<GroupState>& state, const char* call) {
  require(state != nullptr && !state->closed, Code::closed, "{}: the group is closed", call);
  state->team.state();
  require(state->failure.empty(), Code::closed, "{}: the group failed before: {}", call,
          state->failure);
  if (const auto member = state->backend->failed_member(); member && !state->options.mask_failed)
    fail(Code::closed, "{}: PE {} has given this group up: its own message says why", call,
         state->team.world_pe(*member));
  return *state;
}

/// As open_group, and finishes what is queued on the group's stream, so that operations keep their
/// order.
GroupState& usable(const std::shared_ptr<GroupState>& state, const char* call) {
  if (state != nullptr && state->stream) state->stream->drain();
  return open_group(state, call);
}

/// Adds the time of a scope to a counter of the group.
class Timer {
 public:
  explicit Timer(std::chrono::nanoseconds& total)
      : total_(total), start_(std::chrono::steady_clock::now()) {}
  ~Timer() { total_ += std::chrono::steady_clock::now() - start_; }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

 private:
  std::chrono::nanoseconds& total_;
  std::chrono::steady_clock::time_point start_;
};

Dispatched run_dispatch(const std::shared_ptr<GroupState>& state, const DispatchCall& call) {
  const Timer timer(state->statistics.dispatch_time);
  return state->backend->dispatch(call);
}

Dispatched dispatch_new(const std::shared_ptr<GroupState>& state, const TensorView& x,
                        const Routing& routing, const DispatchOptions& options) {
  require(routing.state != nullptr && routing.state->shape.ranks == state->shape.ranks &&
              routing.state->shape.experts == state->shape.experts &&
              routing.state->shape.top_k == state->shape.top_k,
          Code::invalid_argument,
          "dispatch: the routing was not made by route() of a group like this one");
  require(routing.tokens() <= state->shape.max_tokens, Code::invalid_argument,
          "dispatch: {} tokens; this group was made for at most {} (GroupOptions.max_tokens)",
          routing.tokens(), state->shape.max_tokens);
  check_rows(*state, x, routing.tokens());
  check_dispatch_options(*state, x, options);
  return run_dispatch(state, {x, options, routing.state});
}

Combined run_combine(const std::shared_ptr<GroupState>& state, const TensorView& y,
                     const Handle& handle, const CombineOptions& options) {
  require(handle.valid() && handle.state()->group.lock() == state, Code::invalid_argument,
          "combine: the handle is not of a dispatch of this group");
  check_combine(*state, y, *handle.state(), options);
  const Timer timer(state->statistics.combine_time);
  return state->backend->combine(y, *handle.state(), options);
}

Stream& stream_of(GroupState& state) {
  if (!state.stream) state.stream = std::make_unique<Stream>();
  return *state.stream;
}

void take_memory(GroupState& state) {
  auto& world = *state.world;
  if (state.staged) {
    state.host_offset = state.block_offset = world.allocate_staging(state.heap_bytes);
    state.block = world.host_base(world.my_pe()) + state.host_offset;
  } else {
    state.block = static_cast<std::byte*>(world.heap().malloc(state.heap_bytes));
    state.block_offset = world.heap().offset_of(state.block);
    state.host_offset = world.host_offset(state.block_offset);
  }
  for (Pe member = 0; member < state.shape.ranks; ++member) {
    const Pe pe = state.team.world_pe(member);
    std::byte* const base = state.staged ? world.host_base(pe) : world.peer_base(pe);
    state.peers.push_back(state.nodes.here(member) ? base + state.block_offset : nullptr);
  }
}

/// Returns the memory unless results are still held somewhere; true when it was returned.
/// Collective.
bool release_memory(GroupState& state) {
  state.backend->drain();  // queued work still uses the memory
  if (any_pe(state, state.arena.regions() > 0, "ep group close")) return false;
  if (state.staged)
    state.world->release_staging(state.host_offset);
  else
    state.world->heap().free(state.block);
  state.closed = true;
  return true;
}

}  // namespace
}  // namespace detail

Group::Group(const Team& team, const GroupOptions& options)
    : state_(detail::agree_on_group(team, options)) {
  detail::GroupState& state = *state_;
  detail::take_memory(state);
  state.backend->open();
  state.world->sync(team.state(), "ep group");
  if (options.preinitialize) warmup();
}

Group& Group::operator=(Group&& other) noexcept {
  Group(std::move(other)).state_.swap(state_);
  return *this;
}

Group::~Group() {
  if (!state_ || state_->closed) return;
  try {
    if (state_->stream) state_->stream->drain();
    state_->team.state();  // throws where the world is closed: it took the memory with it
    // While an exception unwinds, or after a failure, other members may never come: their memory
    // goes when the world does.
    const bool unwinding = std::uncaught_exceptions() > 0;
    if (!unwinding && state_->failure.empty())
      state_->backend->drain();  // what went wrong on a GPU shows here
    const bool orderly = !unwinding && state_->failure.empty() &&
                         !state_->backend->ask_failed_member() && !state_->world->failure();
    if (orderly && !detail::release_memory(*state_))
      log::warn(
          "an ep::Group went while results of its dispatches were still held; its memory stays taken until the world "
          "closes");
  } catch (const Error& error) {
    if (error.code() != Code::closed)  // a closed world took the memory with it
      log::warn("an ep::Group could not return its memory: {}", error.what());
  } catch (const std::exception& error) {
    log::warn("an ep::Group could not return its memory: {}", error.what());
  }
  state_->closed = true;
}

void Group::close() {
  if (!state_ || state_->closed) return;
  if (state_->stream) state_->stream->drain();
  require(state_->failure.empty(), Code::closed, "close: the group failed before: {}",
          state_->failure);
  require(
      detail::release_memory(*state_), Code::invalid_argument,
      "close: a member still holds results of a dispatch; release all tensors of Dispatched first (this PE holds {})",
      state_->arena.regions());
}

const Team& Group::team() const {
  require(state_ != nullptr, Code::closed, "team: the group is closed");
  return state_->team;
}
const GroupOptions& Group::options() const {
  require(state_ != nullptr, Code::closed, "options: the group is closed");
  return state_->options;
}
std::int64_t Handle::received_rows() const {
  require(state_ != nullptr, Code::invalid_argument, "received_rows: the handle is empty");
  return state_->received;
}
std::int32_t Group::local_experts() const {
  require(state_ != nullptr, Code::closed, "local_experts: the group is closed");
  return state_->shape.local_experts;
}

Routing Group::route(const TensorView& topk_idx, const Launch& launch) const {
  require(state_ != nullptr && !state_->closed, Code::closed, "route: the group is closed");
  if (state_->stream) state_->stream->drain();  // it may be in a call of this group
  detail::check_launch(*state_, "route", launch);
  return state_->backend->route(topk_idx, launch);
}

Dispatched Group::dispatch(const TensorView& x, const Routing& routing,
                           const DispatchOptions& options) {
  detail::usable(state_, "dispatch");
  return detail::dispatch_new(state_, x, routing, options);
}

Dispatched Group::dispatch(const TensorView& x, const Handle& handle,
                           const DispatchOptions& options) {
  detail::GroupState& state = detail::usable(state_, "dispatch");
  require(handle.valid() && handle.state()->group.lock().get() == &state, Code::invalid_argument,
          "dispatch: the handle is not of a dispatch of this group");
  detail::check_rows(state, x, handle.state()->routing->tokens);
  detail::check_dispatch_options(state, x, options, handle.state().get());
  return detail::run_dispatch(state_, {x, options, handle.state()->routing, handle.state()});
}

Combined Group::combine(const TensorView& y, const Handle& handle, const CombineOptions& options) {
  detail::usable(state_, "combine");
  return detail::run_combine(state_, y, handle, options);
}

std::future<Dispatched> Group::dispatch_async(const TensorView& x, const Routing& routing,
                                              const DispatchOptions& options, Future after) {
  require(state_ != nullptr && !state_->closed, Code::closed,
          "dispatch_async: the group is closed");
  return detail::stream_of(*state_).submit(
      [state = state_, x, routing, options] {
        detail::open_group(state, "dispatch_async");
        Dispatched received = detail::dispatch_new(state, x, routing, options);
        state->backend->synchronize();
        return received;
      },
      std::move(after));
}

std::future<Combined> Group::combine_async(const TensorView& y, const Handle& handle,
                                           const CombineOptions& options, Future after) {
  require(state_ != nullptr && !state_->closed, Code::closed, "combine_async: the group is closed");
  return detail::stream_of(*state_).submit(
      [state = state_, y, handle, options] {
        detail::open_group(state, "combine_async");
        Combined combined = detail::run_combine(state, y, handle, options);
        state->backend->synchronize();
        return combined;
      },
      std::move(after));
}

// Low latency.

namespace detail {
namespace {

/// Receives are made in the order of the sends, of which at most two are open: the halves of the
/// buffers say so.
void require_next(const char* call, std::uint64_t epoch, std::uint64_t received) {
  require(
      epoch == received + 1, Code::invalid_argument,
      "{}: this is number {} of the group, and number {} has not been received; receive them in the order in which "
      "they were sent",
      call, epoch, received + 1);
}
void require_half(const char* call, std::uint64_t sent, std::uint64_t received) {
  require(sent < received + 2, Code::invalid_argument,
          "{}: two are sent and not received; receive number {} first", call, received + 1);
}

}  // namespace
}  // namespace detail

PendingDispatch Group::low_latency_dispatch(const TensorView& x, const TensorView& topk_idx,
                                            const LowLatencyDispatchOptions& options) {
  const char* call = "low_latency_dispatch";
  detail::GroupState& state = detail::usable(state_, call);
  detail::check_low_latency_dispatch(state, x, topk_idx, options);
  detail::require_half(call, state.low_latency_dispatch_epoch, state.low_latency_dispatch_received);
  const detail::Timer timer(state.statistics.low_latency_dispatch_time);
  return PendingDispatch(state.backend->low_latency_dispatch(x, topk_idx, options));
}

bool PendingDispatch::ready() const {
  require(state_ != nullptr && !state_->received, Code::invalid_argument,
          "ready: this low-latency dispatch has been received, or is empty");
  return detail::usable(state_->group, "ready").backend->ready(*state_);
}

LowLatencyReceived PendingDispatch::receive() {
  require(state_ != nullptr && !state_->received, Code::invalid_argument,
          "receive: this low-latency dispatch has been received, or is empty");
  detail::GroupState& group = detail::usable(state_->group, "low_latency_dispatch");
  detail::require_next("low_latency_dispatch", state_->handle->epoch,
                       group.low_latency_dispatch_received);
  const detail::Timer timer(group.statistics.low_latency_dispatch_time);
  state_->received = true;
  ++group.low_latency_dispatch_received;
  return group.backend->receive(*state_);
}

PendingCombine Group::low_latency_combine(const TensorView& y, const TensorView& topk_idx,
                                          const TensorView& weights, const LowLatencyHandle& handle,
                                          const LowLatencyCombineOptions& options) {
  const char* call = "low_latency_combine";
  detail::GroupState& state = detail::usable(state_, call);
  detail::check_low_latency_combine(state, y, topk_idx, weights, handle.state().get(), options);
  detail::require_half(call, state.low_latency_combine_epoch, state.low_latency_combine_received);
  const detail::Timer timer(state.statistics.low_latency_combine_time);
  PendingCombine pending(
      state.backend->low_latency_combine(y, topk_idx, weights, handle.state(), options));
  state.combine_buffer = {};  // the next combine is answered from the other half
  return pending;
}

bool PendingCombine::ready() const {
  require(state_ != nullptr && !state_->received, Code::invalid_argument,
          "ready: this low-latency combine has been received, or is empty");
  return detail::usable(state_->group, "ready").backend->ready(*state_);
}

Tensor PendingCombine::receive() {
  require(state_ != nullptr && !state_->received, Code::invalid_argument,
          "receive: this low-latency combine has been received, or is empty");
  detail::GroupState& group = detail::usable(state_->group, "low_latency_combine");
  detail::require_next("low_latency_combine", state_->epoch, group.low_latency_combine_received);
  const detail::Timer timer(group.statistics.low_latency_combine_time);
  state_->received = true;
  ++group.low_latency_combine_received;
  return group.backend->receive(*state_);
}

TensorView Group::next_combine_buffer() {
  detail::GroupState& state = detail::usable(state_, "next_combine_buffer");
  detail::check_low_latency_mode(state, "next_combine_buffer");
  return state.combine_buffer = state.backend->next_combine_buffer();
}

std::vector<int> Group::masked() const {
  return detail::usable(state_, "masked").backend->masked();
}

void Group::set_mask(std::int32_t rank, bool masked) {
  detail::GroupState& state = detail::usable(state_, "set_mask");
  require(state.options.mask_failed, Code::invalid_argument,
          "set_mask: this group was made with GroupOptions.mask_failed = false");
  require(rank >= 0 && rank < state.shape.ranks && rank != state.me, Code::invalid_argument,
          "set_mask: rank {}; allowed: 0 to {}, except this rank ({})", rank, state.shape.ranks - 1,
          state.me);
  state.backend->set_mask(rank, masked);
}

void Group::clear_masks() {
  detail::GroupState& state = detail::usable(state_, "clear_masks");
  require(state.options.mask_failed, Code::invalid_argument,
          "clear_masks: this group was made with GroupOptions.mask_failed = false");
  state.backend->clear_masks();
}

Statistics Group::statistics() const {
  require(state_ != nullptr, Code::closed, "statistics: the group is closed");
  if (state_->stream) state_->stream->drain();
  return state_->statistics;
}

void Group::warmup() {
  require(state_ != nullptr && !state_->closed, Code::closed, "warmup: the group is closed");
  const Statistics before = state_->statistics;
  state_->backend->warmup(*this);
  state_->statistics = before;
}

void* Group::stream() const {
  require(state_ != nullptr && !state_->closed, Code::closed, "stream: the group is closed");
  return state_->backend->stream();
}

void Group::synchronize() {
  detail::usable(state_, "synchronize").backend->synchronize();
}

}  // namespace shoal::ep
