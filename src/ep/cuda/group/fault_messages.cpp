// SPDX-License-Identifier: Apache-2.0
// fault_messages.cpp: from a kernel's report (device/faults.cuh) to the error that a call throws.
#include <bit>

#include "base/check.hpp"
#include "base/log.hpp"
#include "device/device_side.hpp"
#include "ep/cuda/device/combine_notice.hpp"
#include "ep/cuda/group/fault_text.hpp"
#include "ep/cuda/group/group.hpp"
#include "ep/group/checks.hpp"
#include "fabric/fabric.hpp"

namespace shoal::ep::cuda {
namespace {

/// Failure that the network of the kernels reports about `pe`, if any.
std::optional<Error> failure_of_network(const CudaGroup& group, Pe pe) {
  const auto* const side = group.state.world->device_side();
  if (side == nullptr) return std::nullopt;
  if (group.network == NetworkPath::proxy) return side->proxy_failure();
  auto failure =
      group.on_own_stream([&](cudaStream_t stream) { return side->nic_failure(pe, stream); });
  if (failure && failure->code() == Code::peer_failed)
    failure.emplace(Code::peer_failed, std::string(failure->reason()) +
                                           group.state.world->fabric().other_transports(pe));
  return failure;
}

/// "; PE 3 refused its call: ..." where this is why a rank did not take part in the operation that
/// the kernels report.
std::string refusal_by(const GroupState& state, const FaultReport& report, std::int32_t rank) {
  using shoal::detail::CallKind;
  const std::string_view operation = operation_of(report.phase);
  const CallKind kind = operation == "low_latency_dispatch"  ? CallKind::low_latency_dispatch
                        : operation == "low_latency_combine" ? CallKind::low_latency_combine
                                                             : CallKind::normal;
  return state.world->progress().refusal(state.team.world_pe(rank), state.call(kind, report.epoch));
}

float float_of_bits(std::uint64_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits));
}

/// A combine as its notice describes it.
std::string describe_combine(std::uint64_t notice) {
  const CombineRowForm form = CombineNoticeWord::form_of(notice);
  const bool unsummed = (notice & CombineNoticeWord::kUnsummed) != 0;
  return fmt::format(
      "dispatch {} {} weights and sends {}", CombineNoticeWord::dispatch_of(notice),
      CombineNoticeWord::has_weights(notice) ? "with" : "without",
      detail::describe_combine_rows(form, unsummed ? detail::unsummed_form(form) : form));
}

/// Describes a fatal fault without calls of CUDA, so that any thread may use it.
FaultContext context_of(const CudaGroup& group, Fault fault) {
  const GroupState& state = group.state;
  FaultContext context;
  context.me = state.team.world_pe(state.me);
  context.n_pes = state.world->n_pes();
  context.pe = state.team.world_pe(group.report->rank);
  context.timeout = state.timeout;
  context.timeout_setting = state.timeout_setting();
  const std::string refusal = refusal_by(state, *group.report, group.report->rank);
  if (fault == Fault::timeout)
    context.peer = state.world->progress().describe(context.pe) + refusal;
  if (fault == Fault::other_mode) context.peer = refusal;
  return context;
}

/// For the faults after which the group cannot continue.
[[noreturn]] void throw_fatal(CudaGroup& group, Fault fault) {
  GroupState& state = group.state;
  group.fault_thrown = true;
  FaultContext context = context_of(group, fault);
  context.network = failure_of_network(group, context.pe);
  const std::int32_t rank = group.report->rank;
  // A rank that has ended does not wait in its mode; its end is the failure.
  if (fault == Fault::other_mode && state.world->health().has_failed(context.pe))
    fault = Fault::peer_failed;
  if (fault == Fault::peer_failed) {
    const bool low_latency = is_low_latency(group.report->phase);
    if (const auto other = group.in_other_mode(rank, low_latency);
        other && !state.world->health().has_failed(state.team.world_pe(*other))) {
      fault = Fault::other_mode;
      context.pe = state.team.world_pe(*other);
      context.peer = refusal_by(state, *group.report, *other);
    } else {
      const std::int32_t cause = group.cause_of(rank);
      context.peer =
          detail::describe_given_up(state, rank, cause) + refusal_by(state, *group.report, cause);
    }
  }
  const Error error = fatal_error(*group.report, fault, context);
  state.failure = error.what();
  throw Error(error);
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
      if (report.phase == Phase::low_latency_combine_receive)
        fail(Code::mismatch,
             "SHOAL-N596: low_latency_combine {}: PE {} combines {}; PE {} combines {}{}", epoch,
             state.team.world_pe(state.me), describe_combine(static_cast<std::uint64_t>(value)), pe,
             describe_combine(report.seen), refusal_by(state, report, report.rank));
      fail(Code::mismatch,
           "SHOAL-N540: ranks of the group call different operations: PE {} and PE {} differ in "
           "operation, dtype, format, global scale, scales, weights or handle ({}, epoch {}){}{}{}",
           state.team.world_pe(0), pe, operation_of(report.phase), epoch,
           value == allowed ? ""
                            : fmt::format("; their rows are sent as {} and {}",
                                          detail::name_of(static_cast<Quantize>(value)),
                                          detail::name_of(static_cast<Quantize>(allowed))),
           refusal_by(state, report, 0), refusal_by(state, report, report.rank));
    case Fault::bad_scale:
      fail(Code::invalid_argument,
           "SHOAL-N583: {}: global_scale is {}; allowed: positive and finite",
           operation_of(report.phase), float_of_bits(report.seen));
    case Fault::other_scale:
      fail(Code::mismatch,
           "SHOAL-N597: low_latency_dispatch {}: PE {} passed quantize nvfp4 and global scale {}, "
           "PE {} passed quantize nvfp4 and global scale {}",
           epoch, state.team.world_pe(state.me), float_of_bits(static_cast<std::uint64_t>(value)),
           pe, float_of_bits(report.seen));
    case Fault::no_dispatch:
      fail(Code::invalid_argument,
           "SHOAL-N541: {} (epoch {}): the handle is of a dispatch that did not take place; "
           "Group::synchronize says why",
           operation_of(report.phase), epoch);
    case Fault::no_room:
      detail::fail_no_room(state, pe, state.shape.max_received());
    case Fault::too_many_rows:
      fail(Code::exhausted,
           "SHOAL-N542: dispatch: PE {} allows {} rows (DispatchOptions.worst_case_rows) but is "
           "sent {}",
           pe, allowed, value);
    case Fault::too_many_expert_major:
      fail(
          Code::exhausted,
          "SHOAL-N542: dispatch: PE {} is sent {} rows, one for each expert of a token and gaps of "
          "expert_alignment included, but its result has room for {} "
          "(DispatchOptions.worst_case_rows; where that is 0, what GroupOptions.max_tokens, now "
          "{}, leaves in a result). Raise it; with worst_case_rows a result may also take the room "
          "of others (live_results, now {})",
          pe, value, allowed, state.shape.max_tokens, state.shape.live_results);
    case Fault::bad_index:
      fail(Code::invalid_argument,
           "SHOAL-N543: {}: topk_idx[{}, {}] is {}; allowed: 0 to {}, or {} for none. It counts as "
           "-1",
           operation_of(report.phase), token, allowed, value, state.shape.experts - 1,
           state.shape.none_ids());
    case Fault::bad_row:
      fail(Code::invalid_argument,
           "SHOAL-N544: combine: CombineOptions.topk_rows[{}, {}] is {}; allowed: -1 to {}. It "
           "counts as -1",
           token, static_cast<std::uint64_t>(report.seen), value, allowed);
    default:
      fail(
          Code::invalid_argument,
          "SHOAL-N545: {}: topk_idx[{}] names expert {} twice; each expert may stand once in a row",
          operation_of(report.phase), token, value);
  }
}

}  // namespace

void CudaGroup::throw_failed() {
  require(state.failure.empty(), Code::closed, "SHOAL-N511: the group failed before: {}",
          state.failure);
  const auto fault = static_cast<Fault>(report->fault);
  if (is_fatal(fault)) throw_fatal(*this, fault);
}

void CudaGroup::warn_of_unnoticed_fault() {
  const auto fault = static_cast<Fault>(report->fault);
  if (!is_fatal(fault) || fault_thrown || unnoticed_++ != 1) return;
  FaultContext context = context_of(*this, fault);
  if (fault == Fault::peer_failed)
    context.peer = fmt::format("PE {} has given this group up", context.pe);
  log::warn(
      "SHOAL-N546: an ep::Group has failed on the GPU, and no call of it has thrown this yet, as "
      "where only graphs are replayed: {}",
      fatal_error(*report, fault, context).what());
}

void CudaGroup::throw_reported() {
  const auto fault = static_cast<Fault>(report->fault);
  if (fault == Fault::none) return;
  if (is_fatal(fault)) throw_fatal(*this, fault);
  throw_refused(*this, fault);
}

}  // namespace shoal::ep::cuda
