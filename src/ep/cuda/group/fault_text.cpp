// SPDX-License-Identifier: Apache-2.0
#include "ep/cuda/group/fault_text.hpp"

#include "base/check.hpp"
#include "ep/cuda/group/phases.hpp"

namespace shoal::ep::cuda {
namespace {

/// "; its network: ...", or nothing.
std::string describe_network(const std::optional<Error>& network) {
  return network ? fmt::format("; the network of this PE: {}", network->reason()) : std::string();
}

}  // namespace

const char* operation_of(Phase phase) {
  if (phase == Phase::none) return "route";
  return shoal::detail::record::kOperationNames[static_cast<std::size_t>(text_of(phase).operation)];
}

bool is_low_latency(Phase phase) {
  return std::string_view(operation_of(phase)).starts_with("low_latency");
}

Error fatal_error(const FaultReport& report, Fault fault, const FaultContext& context) {
  const char* const operation = operation_of(report.phase);
  const std::uint64_t epoch = report.epoch;
  if (fault == Fault::other_mode)
    return Error(
        Code::mismatch,
        fmt::format("SHOAL-N562: {} (epoch {}) on PE {} of {}: PE {} is in an operation "
                    "of {} mode, which this PE has not called{}",
                    operation, epoch, context.me, context.n_pes, context.pe,
                    is_low_latency(report.phase) ? "normal" : "low-latency", context.peer));
  if (fault == Fault::network)
    return Error(
        context.network ? context.network->code() : Code::timeout,
        fmt::format(
            "SHOAL-N550: {} (epoch {}) failed on PE {} of {}: the network did not take what "
            "kernels send to PE {}, phase {}: {}",
            operation, epoch, context.me, context.n_pes, context.pe, text_of(report.phase).name,
            context.network
                ? std::string(context.network->reason())
                : fmt::format("no room in its queue, or no completion, within {} ms. Setting: {}.",
                              context.timeout.count(), context.timeout_setting)));
  const std::string waited =
      fmt::format("on PE {} of {}: waiting for {} from PE {}, expected epoch {}, seen {}, phase {}",
                  context.me, context.n_pes, text_of(report.phase).awaited, context.pe, epoch,
                  static_cast<std::uint64_t>(report.seen), text_of(report.phase).name);
  const std::string network = describe_network(context.network);
  if (fault == Fault::timeout)
    return Error(
        Code::timeout,
        fmt::format("SHOAL-N551: {} (epoch {}) timed out after {} ms {}; {}{}. Setting: {}.",
                    operation, epoch, context.timeout.count(), waited, context.peer, network,
                    context.timeout_setting));
  return Error(Code::peer_failed, fmt::format("SHOAL-N552: {} (epoch {}) failed {}; {}{}",
                                              operation, epoch, waited, context.peer, network));
}

}  // namespace shoal::ep::cuda
