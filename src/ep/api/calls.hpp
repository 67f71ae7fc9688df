// SPDX-License-Identifier: Apache-2.0
// calls.hpp: what every public call of a group begins with.
#pragma once

#include <chrono>
#include <memory>
#include <string_view>

#include "ep/group/state.hpp"

namespace shoal::ep::detail {

/// The state of a group that has not been closed. Throws Error{closed}.
GroupState& open_group(const std::shared_ptr<GroupState>& state, const char* call);
/// Like open_group, for a group whose operations work: neither it nor, unless it masks failed
/// ranks, that of another rank has failed. Throws Error{closed}.
GroupState& working_group(const std::shared_ptr<GroupState>& state, const char* call);
/// Like working_group, but also waits for asynchronous calls, so that operations keep their order.
GroupState& idle_group(const std::shared_ptr<GroupState>& state, const char* call);

/// Throws Error{closed} for a handle of operation `epoch` of a closed group.
[[noreturn]] void fail_closed_result(const char* call, const char* operation, std::uint64_t epoch);

/// The idle group of a call that takes a handle. The error names the result of the handle if the
/// group that made it, this one or another, is closed.
template <typename Handle>
GroupState& idle_group_for(const std::shared_ptr<GroupState>& state, const char* call,
                           const char* operation, const Handle& handle) {
  if (state != nullptr && handle.valid()) {
    const auto made_by = state_of(handle)->group.lock();
    if (made_by == nullptr || made_by->closed)
      fail_closed_result(call, operation, state_of(handle)->epoch);
  }
  return idle_group(state, call);
}

using shoal::detail::CallKind;

/// The number of the last operation of a kind.
inline std::uint64_t epoch_of(const GroupState& group, CallKind kind) noexcept {
  return kind == CallKind::low_latency_dispatch  ? group.low_latency_dispatch_epoch
         : kind == CallKind::low_latency_combine ? group.low_latency_combine_epoch
                                                 : group.epoch;
}

/// Runs a call of the group. Where it throws before it has begun an operation, ranks that wait in
/// the next one of this kind learn why this rank does not come.
template <typename Run>
auto refusable(const GroupState& group, CallKind kind, Run&& run) {
  const std::uint64_t before = epoch_of(group, kind);
  try {
    return run();
  } catch (const Error& error) {
    if (epoch_of(group, kind) == before)
      group.world->progress().publish_refusal(group.call(kind, before + 1), error.reason());
    throw;
  }
}

namespace record = shoal::detail::record;

/// The part of a call that runs an operation: adds its time to the group's statistics and shows it
/// in the group's record. After a failure of the group, writes the record to SHOAL_FLIGHT_DIR.
class OperationScope {
 public:
  /// `sends`: a low-latency send, whose operation a receive continues.
  OperationScope(GroupState& group, record::Operation operation, bool sends = false);
  /// Continues the operation of this epoch that was sent.
  static OperationScope receive(GroupState& group, record::Operation operation,
                                std::uint64_t epoch) {
    return {group, operation, epoch};
  }
  ~OperationScope();
  OperationScope(const OperationScope&) = delete;
  OperationScope& operator=(const OperationScope&) = delete;

 private:
  OperationScope(GroupState& group, record::Operation operation, std::uint64_t epoch);

  std::uint64_t last_epoch() const noexcept;

  GroupState& group_;
  const record::Operation operation_;
  const std::uint64_t epoch_;  ///< 0: that of the last operation of this kind
  const bool sends_;
  const int exceptions_;
  const std::chrono::steady_clock::time_point start_;
  record::Entry* const outer_;
};

/// Shows why the group is unusable in its record and, once, writes that of this PE to
/// SHOAL_FLIGHT_DIR. Never throws.
void record_failure(GroupState& group, std::string_view reason) noexcept;

}  // namespace shoal::ep::detail
