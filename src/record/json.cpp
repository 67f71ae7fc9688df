// SPDX-License-Identifier: Apache-2.0
// json.cpp: records as JSON.
#include <fmt/format.h>

#include <functional>
#include <iterator>

#include "record/json_version.hpp"
#include "record/text.hpp"
#include "shoal/observe.hpp"

namespace shoal::observe {
namespace {

using Buffer = fmt::memory_buffer;
using detail::record::in_quotes;

template <typename... Args>
void add(Buffer& to, fmt::format_string<Args...> format, Args&&... args) {
  fmt::format_to(std::back_inserter(to), format, std::forward<Args>(args)...);
}

template <typename List, typename Write>
void add_list(Buffer& to, const char* key, const List& list, Write&& write) {
  add(to, ",\"{}\":[", key);
  bool first = true;
  for (const auto& item : list) {
    if (!std::exchange(first, false)) add(to, ",");
    write(item);
  }
  add(to, "]");
}

void add_phases(Buffer& to, const std::vector<PhaseRecord>& phases) {
  add_list(to, "phases", phases, [&](const PhaseRecord& phase) {
    add(to, R"({{"name":{},"start_ns":{}}})", in_quotes(phase.name), phase.start_ns);
  });
}

void add_operation(Buffer& to, const OperationRecord& op) {
  add(to,
      R"({{"id":{},"epoch":{},"operation":{},"state":{},"start_ns":{},"end_ns":{},"awaited":{},)"
      R"("waiting":{},"wait_ns":{},"rows":{},"bytes":{})",
      op.id, op.epoch, in_quotes(op.operation), in_quotes(op.state), op.start_ns, op.end_ns,
      op.awaited, op.waiting, op.wait_ns, op.rows, op.bytes);
  add_phases(to, op.phases);
  add(to, "}}");
}

void add_totals(Buffer& to, const std::vector<OperationTotals>& totals) {
  add_list(to, "totals", totals, [&](const OperationTotals& total) {
    add(to, R"({{"operation":{},"operations":{},"failures":{},"rows":{},"bytes":{},"time_ns":{}}})",
        in_quotes(total.operation), total.operations, total.failures, total.rows, total.bytes,
        total.time_ns);
  });
}

void add_histograms(Buffer& to, const std::vector<Histogram>& histograms) {
  add_list(to, "histograms", histograms, [&](const Histogram& histogram) {
    add(to, R"({{"operation":{},"phase":{},"count":{},"sum_ns":{})", in_quotes(histogram.operation),
        in_quotes(histogram.phase), histogram.count, histogram.sum_ns);
    add_list(to, "buckets", histogram.buckets, [&](std::uint64_t count) { add(to, "{}", count); });
    add(to, "}}");
  });
}

void add_group(Buffer& to, const GroupRecord& group) {
  add(to, R"({{"number":{},"rank":{},"n_hosts":{},"failure":{})", group.number, group.rank,
      group.n_hosts, in_quotes(group.failure));
  add_list(to, "pes", group.pes, [&](Pe pe) { add(to, "{}", pe); });
  add_list(to, "operations", group.operations,
           [&](const OperationRecord& op) { add_operation(to, op); });
  add_totals(to, group.totals);
  add_list(to, "peers", group.peers, [&](const PeerTotals& peer) {
    add(to,
        R"({{"rows":{},"bytes":{},"waits":{},"wait_ns":{},"network_rows":{},"network_bytes":{}}})",
        peer.rows, peer.bytes, peer.waits, peer.wait_ns, peer.network_rows, peer.network_bytes);
  });
  add_histograms(to, group.histograms);
  add_list(to, "expert_rows", group.expert_rows, [&](std::uint64_t rows) { add(to, "{}", rows); });
  add_list(to, "launches", group.launches, [&](const LaunchRecord& launch) {
    add(to, R"({{"epoch":{},"operation":{},"end_ns":{},"rows":{},"bytes":{})", launch.epoch,
        in_quotes(launch.operation), launch.end_ns, launch.rows, launch.bytes);
    add_phases(to, launch.phases);
    add(to, "}}");
  });
  add(to, "}}");
}

}  // namespace

std::string to_json(const PeRecord& pe) {
  Buffer to;
  add(to,
      R"({{"shoal_record":{},"world":"{:016x}","pe":{},"n_pes":{},"pid":{},"host":{},"read_ns":{},)"
      R"("activity":{},"active":{},"awaited":{},"failure":{})",
      detail::record::kJsonVersion, pe.world, pe.pe, pe.n_pes, pe.pid, in_quotes(pe.host),
      pe.read_ns, in_quotes(pe.activity), pe.active, pe.awaited, in_quotes(pe.failure));
  add_totals(to, pe.totals);
  add_list(to, "peers", pe.peers, [&](const WorldPeerTotals& peer) {
    add(to, R"({{"operations":{},"bytes":{},"waits":{},"wait_ns":{}}})", peer.operations,
        peer.bytes, peer.waits, peer.wait_ns);
  });
  add_histograms(to, pe.histograms);
  add_list(to, "groups", pe.groups, [&](const GroupRecord& group) { add_group(to, group); });
  add(to, "}}");
  return fmt::to_string(to);
}

}  // namespace shoal::observe
