// SPDX-License-Identifier: Apache-2.0
// operation_scope.cpp: what the calls of a group add to its statistics and its record.
#include <exception>

#include "base/log.hpp"
#include "ep/api/calls.hpp"
#include "ep/group/modes.hpp"
#include "record/files.hpp"

namespace shoal::ep::detail {
namespace {

std::chrono::nanoseconds& time_of(Statistics& statistics, record::Operation operation) {
  switch (operation) {
    case record::Operation::dispatch:
      return statistics.dispatch_time;
    case record::Operation::combine:
      return statistics.combine_time;
    case record::Operation::low_latency_dispatch:
      return statistics.low_latency_dispatch_time;
    case record::Operation::low_latency_combine:
      break;
  }
  return statistics.low_latency_combine_time;
}

}  // namespace

OperationScope::OperationScope(GroupState& group, record::Operation operation, bool sends)
    : group_(group),
      operation_(operation),
      epoch_(0),
      sends_(sends),
      exceptions_(std::uncaught_exceptions()),
      start_(std::chrono::steady_clock::now()),
      outer_(group.recorder.begin(operation, start_)) {}

OperationScope::OperationScope(GroupState& group, record::Operation operation, std::uint64_t epoch)
    : group_(group),
      operation_(operation),
      epoch_(epoch),
      sends_(false),
      exceptions_(std::uncaught_exceptions()),
      start_(std::chrono::steady_clock::now()),
      outer_(group.recorder.resume(operation, epoch, start_)) {}

std::uint64_t OperationScope::last_epoch() const noexcept {
  switch (operation_) {
    case record::Operation::low_latency_dispatch:
      return group_.low_latency_dispatch_epoch;
    case record::Operation::low_latency_combine:
      return group_.low_latency_combine_epoch;
    default:
      return group_.epoch;
  }
}

OperationScope::~OperationScope() {
  using record::State;
  const bool failed = std::uncaught_exceptions() > exceptions_;
  const Backend& backend = *group_.backend;
  const bool queued = operation_ >= record::Operation::low_latency_dispatch
                          ? backend.low_latency().queues()
                          : backend.normal().queues();
  const auto now = std::chrono::steady_clock::now();
  time_of(group_.statistics, operation_) += now - start_;
  const State state = failed   ? State::failed
                      : sends_ ? State::sent
                      : queued ? State::queued
                               : State::completed;
  if (queued) group_.recorder.queue(epoch_ > 0 ? epoch_ : last_epoch(), now);
  group_.recorder.end(state, start_, now, outer_);
  if (failed && !group_.failure.empty()) record_failure(group_, group_.failure);
}

void record_failure(GroupState& group, std::string_view reason) noexcept {
  if (group.record_written) return;
  group.record_written = true;
  group.recorder.set_failure(reason);
  record::write_after_failure(group.world->recorder().world(), group.world->my_pe(),
                              group.world->settings().flight_dir, record::FailureOf::group);
}

}  // namespace shoal::ep::detail
