// SPDX-License-Identifier: Apache-2.0
// fault_messages.cpp: from a kernel's report (device/faults.cuh) to the error that a call throws.
#include "base/check.hpp"
#include "ep/checks.hpp"
#include "ep/cuda/group.hpp"
#include "world/device_side.hpp"

namespace shoal::ep::cuda {
namespace {

const char* phase_name(Phase phase) {
  switch (phase) {
    case Phase::none:
      return "route";
    case Phase::dispatch_notify:
      return "notify";
    case Phase::dispatch_receive:
    case Phase::low_latency_dispatch_receive:
    case Phase::low_latency_combine_receive:
      return "receive";
    case Phase::combine_notify:
      return "notify";
    case Phase::combine_fetch:
      return "fetch";
    case Phase::combine_finish:
      return "finish";
    case Phase::low_latency_dispatch_grant:
    case Phase::low_latency_combine_grant:
    case Phase::low_latency_combine_weights:
      return "send";
    case Phase::dispatch_rail:
    case Phase::combine_rail:
      return "rail";
  }
  return "unknown";
}

/// What the wait was for, to be followed by "from PE n".
const char* awaited(Phase phase) {
  switch (phase) {
    case Phase::none:
      return "nothing";
    case Phase::dispatch_notify:
      return "its counts";
    case Phase::dispatch_receive:
    case Phase::low_latency_dispatch_receive:
      return "rows";
    case Phase::combine_notify:
    case Phase::combine_fetch:
    case Phase::low_latency_combine_receive:
      return "its expert outputs";
    case Phase::combine_finish:
      return "its acknowledgement of fetched rows";
    case Phase::low_latency_dispatch_grant:
    case Phase::low_latency_combine_grant:
      return "its acknowledgement of read rows";
    case Phase::low_latency_combine_weights:
      return "its weights";
    case Phase::dispatch_rail:
      return "tokens, or room for them,";
    case Phase::combine_rail:
      return "sums, or room for them,";
  }
  return "unknown";
}

const char* operation_of(const FaultReport& report) {
  switch (report.phase) {
    case Phase::none:
      return "route";
    case Phase::dispatch_notify:
    case Phase::dispatch_receive:
    case Phase::dispatch_rail:
      return "dispatch";
    case Phase::combine_notify:
    case Phase::combine_fetch:
    case Phase::combine_finish:
    case Phase::combine_rail:
      return "combine";
    case Phase::low_latency_dispatch_grant:
    case Phase::low_latency_dispatch_receive:
      return "low_latency_dispatch";
    default:
      return "low_latency_combine";
  }
}

/// The first error of the thread that serves ranks out of reach, if there is one.
std::optional<Error> failure_of_network(const GroupState& state) {
  const auto* const side = state.world->device_side();
  return side == nullptr ? std::nullopt : side->proxy_failure();
}

/// For the faults after which the group cannot continue.
[[noreturn]] void throw_fatal(CudaGroup& group, Fault fault) {
  GroupState& state = group.state;
  const FaultReport& report = *group.report;
  const Pe pe = state.team.world_pe(report.rank);
  const std::uint64_t epoch = report.epoch;
  const auto network = failure_of_network(state);
  if (fault == Fault::network) {
    state.failure = fmt::format(
        "{} (epoch {}) failed on PE {} of {}: the network did not take what kernels send to PE {}: {}",
        operation_of(report), epoch, state.team.world_pe(state.me), state.world->n_pes(), pe,
        network ? network->what() : "no room in its queue within the timeout");
    throw Error(network ? network->code() : Code::timeout, state.failure);
  }
  const std::string waited =
      fmt::format("on PE {} of {}: waiting for {} from PE {}, expected epoch {}, seen {}, phase {}",
                  state.team.world_pe(state.me), state.world->n_pes(), awaited(report.phase), pe,
                  epoch, static_cast<std::uint64_t>(report.seen), phase_name(report.phase));
  if (fault == Fault::timeout) {
    state.failure = fmt::format(
        "{} (epoch {}) timed out after {} ms {}; {}{}. Setting: {}.", operation_of(report), epoch,
        state.timeout.count(), waited, state.world->describe_progress(pe),
        network ? fmt::format("; its network had failed: {}", network->what()) : "",
        state.options.timeout.count() > 0 ? "GroupOptions.timeout" : "SHOAL_TIMEOUT_MS");
    throw Error(Code::timeout, state.failure);
  }
  state.failure =
      fmt::format("{} (epoch {}) failed {}; {}", operation_of(report), epoch, waited,
                  detail::describe_given_up(state, report.rank, group.cause_of(report.rank)));
  throw Error(Code::peer_failed, state.failure);
}

/// For the faults that leave the group usable.
[[noreturn]] void throw_refused(CudaGroup& group, Fault fault) {
  const GroupState& state = group.state;
  const FaultReport& report = *group.report;
  const Pe pe = state.team.world_pe(report.rank);
  const std::uint64_t epoch = report.epoch;
  const std::int64_t token = report.token, value = report.value, allowed = report.allowed;
  group.report->fault = static_cast<std::uint32_t>(Fault::none);  // each is reported once
  switch (fault) {
    case Fault::mismatch:
      fail(
          Code::mismatch,
          "ranks of the group call different operations: PE {} and PE {} differ in operation, dtype, scales, weights "
          "or handle ({}, epoch {})",
          state.team.world_pe(0), pe, operation_of(report), epoch);
    case Fault::no_dispatch:
      fail(
          Code::invalid_argument,
          "{} (epoch {}): the handle is of a dispatch that did not take place; Group::synchronize says why",
          operation_of(report), epoch);
    case Fault::no_room:
      detail::fail_no_room(state, pe, state.shape.max_received());
    case Fault::too_many_rows:
      fail(Code::exhausted,
           "dispatch: PE {} allows {} rows (DispatchOptions.worst_case_rows) but is sent {}", pe,
           allowed, value);
    case Fault::too_many_expert_major:
      fail(
          Code::exhausted,
          "dispatch: PE {} is sent {} rows, one for each expert of a token and gaps of expert_alignment included, but "
          "its result has room for {} (DispatchOptions.worst_case_rows; where that is 0, what GroupOptions.max_tokens, "
          "now {}, leaves in a result). Raise it; with worst_case_rows a result may also take the room of others "
          "(live_results, now {})",
          pe, value, allowed, state.shape.max_tokens, state.shape.live_results);
    case Fault::bad_index:
      fail(Code::invalid_argument,
           "{}: topk_idx[{}, {}] is {}; allowed: 0 to {}, or -1 for none. It counts as -1",
           operation_of(report), token, allowed, value, state.shape.experts - 1);
    case Fault::bad_row:
      fail(Code::invalid_argument,
           "combine: CombineOptions.topk_rows[{}, {}] is {}; allowed: -1 to {}. It counts as -1",
           token, static_cast<std::uint64_t>(report.seen), value, allowed);
    default:
      fail(Code::invalid_argument,
           "{}: topk_idx[{}] names expert {} twice; each expert may stand once in a row",
           operation_of(report), token, value);
  }
}

}  // namespace

void CudaGroup::throw_failed() {
  require(state.failure.empty(), Code::closed, "the group failed before: {}", state.failure);
  const auto fault = static_cast<Fault>(report->fault);
  if (is_fatal(fault)) throw_fatal(*this, fault);
}

void CudaGroup::throw_reported() {
  const auto fault = static_cast<Fault>(report->fault);
  if (fault == Fault::none) return;
  if (is_fatal(fault)) throw_fatal(*this, fault);
  throw_refused(*this, fault);
}

}  // namespace shoal::ep::cuda
