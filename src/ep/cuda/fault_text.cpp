// SPDX-License-Identifier: Apache-2.0
#include "ep/cuda/fault_text.hpp"

#include "base/check.hpp"

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

/// "; its network: ...", or nothing.
std::string describe_network(const std::optional<Error>& network) {
  return network ? fmt::format("; the network of this PE: {}", network->reason()) : std::string();
}

}  // namespace

const char* operation_of(Phase phase) {
  switch (phase) {
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

Error fatal_error(const FaultReport& report, const FaultContext& context) {
  const char* const operation = operation_of(report.phase);
  const std::uint64_t epoch = report.epoch;
  const auto fault = static_cast<Fault>(report.fault);
  if (fault == Fault::network)
    return Error(
        context.network ? context.network->code() : Code::timeout,
        fmt::format(
            "{} (epoch {}) failed on PE {} of {}: the network did not take what kernels send to PE {}, phase {}: {}",
            operation, epoch, context.me, context.n_pes, context.pe, phase_name(report.phase),
            context.network
                ? context.network->reason()
                : "no room in its queue, or no completion, within the timeout. Setting: SHOAL_TIMEOUT_MS."));
  const std::string waited =
      fmt::format("on PE {} of {}: waiting for {} from PE {}, expected epoch {}, seen {}, phase {}",
                  context.me, context.n_pes, awaited(report.phase), context.pe, epoch,
                  static_cast<std::uint64_t>(report.seen), phase_name(report.phase));
  const std::string network = describe_network(context.network);
  if (fault == Fault::timeout)
    return Error(Code::timeout,
                 fmt::format("{} (epoch {}) timed out after {} ms {}; {}{}. Setting: {}.",
                             operation, epoch, context.timeout.count(), waited, context.peer,
                             network, context.timeout_setting));
  return Error(Code::peer_failed, fmt::format("{} (epoch {}) failed {}; {}{}", operation, epoch,
                                              waited, context.peer, network));
}

}  // namespace shoal::ep::cuda
