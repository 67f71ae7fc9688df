// SPDX-License-Identifier: Apache-2.0
// The parts of the device side that need no CUDA: teams, and the text of failure reports.
#include "device/device_side.hpp"

#include <algorithm>
#include <atomic>
#include <bit>

#include "base/check.hpp"
#include "device/queue_failures.hpp"
#include "fabric/fabric.hpp"
#include "pe/placement.hpp"
#include "team/team_state.hpp"
#include "world/state.hpp"
#ifdef SHOAL_WITH_CUDA
#include "device/make_device_side.hpp"
#endif

namespace shoal::detail {
namespace {

namespace gda = device::gda;
using device::FailureKind;
using device::FailureReport;

template <typename... Args>
Error error(Code code, fmt::format_string<Args...> format, Args&&... args) {
  return Error(code, fmt::format(format, std::forward<Args>(args)...));
}

/// A wait for a variable.
const char* name_of(FailureKind kind) {
  return kind == FailureKind::wait_until       ? "wait_until"
         : kind == FailureKind::wait_until_all ? "wait_until_all"
         : kind == FailureKind::wait_until_any ? "wait_until_any"
                                               : "operation";
}

/// An operation of the proxy, by its kind.
const char* proxy_operation(std::uint64_t kind) {
  constexpr const char* names[] = {"operation",      "put", "put_value", "atomic", "signal",
                                   "fence or quiet", "get"};
  return names[kind < std::size(names) ? kind : 0];
}

const char* symbol_of(Compare compare) {
  constexpr const char* symbols[] = {"==", "!=", ">", ">=", "<", "<="};
  const auto i = static_cast<std::size_t>(compare);
  return i < std::size(symbols) ? symbols[i] : "?";
}

/// A word as a number of its type.
std::string number(std::uint64_t bits, const FailureReport& report) {
  if (report.width == 4) bits &= 0xffffffffU;
  if (report.is_signed == 0) return fmt::format("{}", bits);
  return report.width == 4 ? fmt::format("{}", static_cast<std::int32_t>(bits))
                           : fmt::format("{}", static_cast<std::int64_t>(bits));
}

std::string place(const FailureReport& report) {
  return fmt::format("block ({}, {}, {}), thread ({}, {}, {})", report.block[0], report.block[1],
                     report.block[2], report.thread[0], report.thread[1], report.thread[2]);
}

/// The PE that sets the variable, where it is known.
std::string setter(const FailureReport& report) {
  return report.awaited >= 0 ? fmt::format(", which PE {} sets,", report.awaited) : std::string();
}

std::uint64_t epoch_of(std::uint64_t word) {
  return word & ((std::uint64_t{1} << device::Team::kEpochBits) - 1);
}

/// Why a team has no collectives in kernels.
std::string no_collectives(Pe unreached) {
  if (unreached < 0) return fmt::format("it has more than {} PEs", device::Team::kMaxCollectivePes);
  return fmt::format("this GPU does not reach the heap of PE {} by loads and stores", unreached);
}

Error describe_closed(const FailureReport& report, Pe my_pe, Pe n_pes) {
  return error(Code::closed,
               "SHOAL-N474: an operation in a kernel of PE {} of {} on PE {} was given up, since "
               "the world ended ({})",
               my_pe, n_pes, report.awaited, place(report));
}

Error describe_proxy_report(const FailureReport& report, Pe my_pe, Pe n_pes) {
  if (report.kind == FailureKind::proxy_failed)
    return error(
        static_cast<Code>(report.expected),
        "SHOAL-N475: {} of {} bytes at heap offset {} of PE {} failed in the proxy of PE {} of {}: "
        "{} ({})",
        proxy_operation(report.seen), report.bytes, report.offset, report.awaited, my_pe, n_pes,
        name_of(static_cast<Code>(report.expected)), place(report));
  if (report.kind == FailureKind::proxy_timeout)
    return error(
        Code::timeout,
        "SHOAL-N466: {} of {} bytes at heap offset {} of PE {} in a kernel of PE {} of {} waited "
        "{} ms for the proxy ({}); Setting: SHOAL_TIMEOUT_MS.",
        proxy_operation(report.seen), report.bytes, report.offset, report.awaited, my_pe, n_pes,
        report.waited_ns / 1'000'000, place(report));
  return describe_closed(report, my_pe, n_pes);
}

Error describe_gda_report(const FailureReport& report, Pe my_pe, Pe n_pes) {
  constexpr const char* names[] = {"operation", "put", "put_value", "signal", "fence or quiet"};
  const auto queue_pair = static_cast<std::uint32_t>(report.seen >> 8);
  const gda::Failure failure =
      gda::decode(report.expected, static_cast<std::uint32_t>(report.awaited), queue_pair);
  if (report.kind == FailureKind::gda_aborted || failure.cause == gda::Cause::aborted)
    return describe_closed(report, my_pe, n_pes);
  const auto number = report.seen & 0xff;
  const std::string what = fmt::format(
      "{} of {} bytes at heap offset {} of PE {} by queue pair {:#x} in a kernel of PE {} of {}",
      names[number < std::size(names) ? number : 0], report.bytes, report.offset, report.awaited,
      queue_pair, my_pe, n_pes);
  if (failure.cause == gda::Cause::none)
    return error(Code::timeout,
                 "SHOAL-N471: {} waited {} ms for the NIC ({}); Setting: SHOAL_TIMEOUT_MS.", what,
                 report.waited_ns / 1'000'000, place(report));
  return error(failure.cause == gda::Cause::timeout ? Code::timeout : Code::peer_failed,
               "SHOAL-N472: {} failed: {} ({})", what, describe(failure), place(report));
}

}  // namespace

std::shared_ptr<DeviceSide> make_device_side(const DeviceSideContext& context) {
#ifdef SHOAL_WITH_CUDA
  return make_cuda_device_side(context);
#else
  fail(Code::unsupported, "SHOAL-N467: PE {}: this build of Shoal has no GPU backend",
       context.placement.my_pe);
#endif
}

namespace {

/// The fields of a team that collectives use. Teams of more PEs than they take keep a size of 0.
void describe_collectives(const DeviceSide& side, const TeamState& team, device::Team& result) {
  result.finished = result.epoch + 1;
  if (team.size() > static_cast<std::size_t>(device::Team::kMaxCollectivePes)) return;
  result.my_pe = team.my_pe;
  result.size = static_cast<Pe>(team.size());
  for (std::size_t i = 0; i < team.size(); ++i)
    result.pes[i] = static_cast<std::uint16_t>(team.pes[i]);
  constexpr std::size_t kPacketBytes = 16;  // 8 of them are data
  const DeviceSide::Packets packets = side.packets(team.index);
  result.slot_bytes = packets.bytes / 2 / team.size() / kPacketBytes * kPacketBytes;
  result.one_shot_limit = side.limits().one_shot_limit;
  if (result.slot_bytes == 0) return;
  result.packets = packets.start;
  result.packet_limit = std::min<std::uint64_t>(side.limits().packet_limit, result.slot_bytes / 2);
}

}  // namespace

device::Team describe_team(const DeviceSide& side, const TeamState& team) {
  const Pe n_pes = side.world().n_pes;
  require(n_pes <= device::Team::kMaxPes, Code::unsupported,
          "SHOAL-N468: teams on the device exist in worlds of up to {} PEs; this one has {}",
          device::Team::kMaxPes, n_pes);
  device::Team result{};
  result.arrived = side.team_words(team.index);
  result.epoch = result.arrived + n_pes;
  result.generation = team.generation;
  for (const Pe pe : team.pes) result.members[pe / 64] |= std::uint64_t{1} << (pe % 64);
  describe_collectives(side, team, result);
  return result;
}

std::string kernel_collectives_obstacle(const WorldState& world, const TeamState& team) {
  if (team.size() > static_cast<std::size_t>(device::Team::kMaxCollectivePes))
    return no_collectives(-1);
  for (const Pe pe : team.pes)
    if (world.fabric().peer_base(pe) == nullptr) return no_collectives(pe);
  return "";
}

CollectiveLimits collective_limits(const Settings& settings) {
  constexpr std::uint64_t kAll = ~std::uint64_t{0};
  const std::string& algorithm = settings.collective_algorithm;
  if (algorithm == "packets") return {kAll, settings.collective_one_shot_limit};
  if (algorithm == "one_shot") return {0, kAll};
  if (algorithm == "two_shot") return {0, 0};
  return {settings.collective_packet_limit, settings.collective_one_shot_limit};
}

std::size_t packet_part(std::size_t scratch, std::size_t mapped) {
  constexpr std::size_t kShare = 8;   // of the heap's first step, for all teams together
  constexpr std::size_t kUnit = 256;  // bytes
  return std::min(scratch / DeviceSide::kWorldParts, mapped / kShare / DeviceSide::kPacketParts) /
         kUnit * kUnit;
}

std::optional<FailureReport> take_report(FailureReport& report) {
  const std::atomic_ref state(report.state);
  if (state.load(std::memory_order_acquire) != FailureReport::complete) return std::nullopt;
  const FailureReport taken = report;
  state.store(FailureReport::empty, std::memory_order_release);
  return taken;
}

Error describe_report(const FailureReport& report, Pe my_pe, Pe n_pes) {
  switch (report.kind) {
    case FailureKind::bad_address:
      return error(
          Code::invalid_argument,
          "SHOAL-N476: an operation in a kernel of PE {} of {} names {} bytes at heap offset {} of "
          "PE {}, which do not exist ({}); nothing was done",
          my_pe, n_pes, report.bytes, static_cast<std::int64_t>(report.offset), report.awaited,
          place(report));
    case FailureKind::unreachable:
      return error(
          Code::unsupported,
          "SHOAL-N477: an operation in a kernel of PE {} of {} names PE {}, whose heap its GPU "
          "does not reach ({}); nothing was done",
          my_pe, n_pes, report.awaited, place(report));
    case FailureKind::proxy_failed:
    case FailureKind::proxy_timeout:
    case FailureKind::proxy_aborted:
      return describe_proxy_report(report, my_pe, n_pes);
    case FailureKind::gda_failed:
    case FailureKind::gda_timeout:
    case FailureKind::gda_aborted:
      return describe_gda_report(report, my_pe, n_pes);
    case FailureKind::collective:
      return error(
          Code::timeout,
          "SHOAL-N469: collective on the GPU timed out after {} ms on PE {} of {}: waiting for PE "
          "{} to enter operation {} of the team, seen {} ({}); Setting: SHOAL_TIMEOUT_MS.",
          report.waited_ns / 1'000'000, my_pe, n_pes, report.awaited, epoch_of(report.expected),
          epoch_of(report.seen), place(report));
    case FailureKind::no_collectives:
      return error(
          Code::unsupported,
          "SHOAL-N478: a collective in a kernel of PE {} of {} on a team without such collectives: "
          "{}; nothing was done. Collectives on streams and of the host serve this "
          "team",
          my_pe, n_pes, no_collectives(report.awaited));
    case FailureKind::block_too_large:
      return error(
          Code::invalid_argument,
          "SHOAL-N479: all_to_all_v on the GPU of PE {} of {}: PE {} sent {} bytes; there was room "
          "for {}, and the rest was skipped",
          my_pe, n_pes, report.awaited, report.bytes, report.expected);
    case FailureKind::barrier:
      return error(
          Code::timeout,
          "SHOAL-N469: barrier on the GPU timed out after {} ms on PE {} of {}: waiting for PE {}, "
          "expected barrier {}, seen {} ({}); Setting: SHOAL_TIMEOUT_MS.",
          report.waited_ns / 1'000'000, my_pe, n_pes, report.awaited, epoch_of(report.expected),
          epoch_of(report.seen), place(report));
    case FailureKind::bad_index:
      return error(
          Code::invalid_argument,
          "SHOAL-N480: fetch_entries on PE {} of {}: index {} is {}; the table has entries "
          "0 to {}; its result is zeros",
          my_pe, n_pes, report.offset, static_cast<std::int64_t>(report.seen),
          static_cast<std::int64_t>(report.expected) - 1);
    default:
      return error(
          Code::timeout,
          "SHOAL-N470: {} on the GPU timed out after {} ms on PE {} of {}: waiting for the {}-byte "
          "variable at heap offset {}{} to be {} {}, seen {} ({}); Setting: SHOAL_TIMEOUT_MS.",
          name_of(report.kind), report.waited_ns / 1'000'000, my_pe, n_pes, report.width,
          report.offset, setter(report), symbol_of(report.compare), number(report.expected, report),
          number(report.seen, report), place(report));
  }
}

}  // namespace shoal::detail
