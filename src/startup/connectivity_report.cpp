// SPDX-License-Identifier: Apache-2.0
#include "startup/connectivity_report.hpp"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/blob.hpp"
#include "fabric/fabric.hpp"
#include "pe/memory.hpp"
#include "shoal/bootstrap.hpp"
#include "world/state.hpp"

namespace shoal::detail {
namespace {

using transport::Capabilities;
namespace capability = transport::capability;
using Reasons = std::span<const std::vector<std::vector<std::string>>>;

bool contains(const std::vector<std::string>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// The objections of the two PEs of a pair to a transport: one sentence where they agree or only
/// one objects.
std::string objections(Reasons reasons, Pe a, Pe b, std::size_t transport) {
  const std::string& first =
      reasons[static_cast<std::size_t>(a)][static_cast<std::size_t>(b)][transport];
  const std::string& second =
      reasons[static_cast<std::size_t>(b)][static_cast<std::size_t>(a)][transport];
  if (first == second || second.empty()) return first;
  if (first.empty()) return second;
  return fmt::format("PE {}: {}; PE {}: {}", a, first, b, second);
}

/// One pair of PEs, with the inputs of its verdicts.
struct Pair {
  const Connectivity& map;
  Reasons reasons;
  Pe a, b;
  std::optional<std::size_t> chosen;

  std::string_view setting() const { return setting_of(map, a, b); }
  bool allowed(std::string_view name) const { return contains(order_of(map, a, b), name); }

  TransportVerdict of_map(std::size_t t) const;
  TransportVerdict of_network(std::string_view name) const;
};

TransportVerdict Pair::of_map(std::size_t t) const {
  const Capabilities capabilities = map.at(a, b, t) & map.at(b, a, t);
  TransportVerdict verdict{map.names[t], transport::describe(capabilities), chosen == t, ""};
  const bool does_everything =
      (capabilities & capability::all_operations) == capability::all_operations;
  const std::string against = objections(reasons, a, b, t);
  if (verdict.chosen && a == b) {
    verdict.why = "the PE itself";
  } else if (verdict.chosen && does_everything) {
    const std::vector<std::string>& order = order_of(map, a, b);
    verdict.why = order.size() == 1 ? fmt::format("the only one that {} allows", setting())
                                    : fmt::format("the first of {} that does everything, both ways",
                                                  fmt::join(order, ", "));
  } else if (verdict.chosen) {
    verdict.why = fmt::format("no other does more; {}", against);
  } else if (!map.dropped.empty() && !map.dropped[t].empty()) {
    verdict.why = map.dropped[t];
  } else if (!does_everything) {
    verdict.why = capabilities == 0 ? against
                                    : fmt::format("does only {}{}{}", verdict.capabilities,
                                                  against.empty() ? "" : ": ", against);
    if (verdict.why.empty()) verdict.why = "offers nothing, without a reason";
  } else if (!allowed(verdict.transport)) {
    verdict.why = fmt::format("excluded by {}", setting());
  } else {
    verdict.why = fmt::format("does everything, but {} comes first", map.names[chosen.value_or(t)]);
  }
  return verdict;
}

/// A network that is not in the map, because no pair wanted it.
TransportVerdict Pair::of_network(std::string_view name) const {
  TransportVerdict verdict{std::string(name), transport::describe(0), false, ""};
  if (a == b)
    verdict.why = "not loaded: a PE needs no network to reach itself";
  else if (!allowed(name))
    verdict.why = fmt::format("not loaded: excluded by {}", setting());
  else if (chosen)
    verdict.why = fmt::format("not loaded: {} comes first and does everything", map.names[*chosen]);
  else
    verdict.why = "not loaded";
  return verdict;
}

}  // namespace

std::vector<PairConnectivity> explain(const Connectivity& map, Reasons reasons,
                                      std::span<const std::string_view> networks,
                                      std::optional<std::size_t> (*chosen)(const Connectivity&, Pe,
                                                                           Pe)) {
  std::vector<PairConnectivity> report;
  const auto n_pes = static_cast<Pe>(map.n_pes);
  for (Pe a = 0; a < n_pes; ++a)
    for (Pe b = a; b < n_pes; ++b) {
      const Pair pair{map, reasons, a, b, chosen(map, a, b)};
      PairConnectivity& row = report.emplace_back(PairConnectivity{a, b, {}});
      for (std::size_t t = 0; t < map.names.size(); ++t) row.transports.push_back(pair.of_map(t));
      for (const std::string_view name : networks)
        if (!contains(map.names, name)) row.transports.push_back(pair.of_network(name));
    }
  return report;
}

/// Adds to the verdict on the chosen transport of each pair what its PEs note about it:
/// `notes[a][b]` by PE a towards PE b.
void add_notes(std::vector<PairConnectivity>& pairs,
               std::span<const std::vector<std::string>> notes) {
  for (PairConnectivity& pair : pairs) {
    const auto a = static_cast<std::size_t>(pair.a), b = static_cast<std::size_t>(pair.b);
    const std::string& first = notes[a][b];
    const std::string& second = notes[b][a];
    if (pair.a == pair.b || (first.empty() && second.empty())) continue;
    for (TransportVerdict& verdict : pair.transports)
      if (verdict.chosen)
        verdict.why += first == second
                           ? "; " + first
                           : fmt::format("; PE {}: {}; PE {}: {}", pair.a, first, pair.b, second);
  }
}

ConnectivityReport report_connectivity(WorldState& state) {
  const Fabric& fabric = state.fabric();
  const Connectivity* const maps[] = {&fabric.host_map(), &fabric.gpu_map()};
  BlobWriter mine;
  mine.text(topology::read_host_identity(state.settings().host_id).name);
  mine.value<std::uint8_t>(fabric.nics().has_value());
  const std::vector<std::string> nics = fabric.nics().value_or(std::vector<std::string>());
  mine.value<std::uint64_t>(nics.size());
  for (const std::string& nic : nics) mine.text(nic);
  for (const Connectivity* map : maps)
    for (const auto& of_pe : map->reasons)
      for (const std::string& reason : of_pe) mine.text(reason);
  const bool on_gpu = state.memory().heap_on_gpu();
  for (Pe pe = 0; on_gpu && pe < state.placement().n_pes; ++pe)
    mine.text(fabric.gpu_map().capabilities[static_cast<std::size_t>(pe)] == 0
                  ? std::string()
                  : fabric.heap_note(pe));
  const auto blobs = state.bootstrap().all_gather(mine.take(), "connectivity report");

  ConnectivityReport report;
  std::vector<std::vector<std::vector<std::string>>> reasons[2];
  std::vector<std::vector<std::string>> notes;
  for (const auto& blob : blobs) {
    BlobReader reader(blob);
    const std::size_t pe = report.pes.size();
    PePlace& place = report.pes.emplace_back(
        PePlace{reader.text(), state.placement().host_of[pe], state.placement().node_of[pe], {}});
    if (reader.value<std::uint8_t>() != 0) place.nics.emplace();
    for (auto left = reader.value<std::uint64_t>(); left > 0; --left)
      place.nics->push_back(reader.text());
    for (std::size_t i = 0; i < std::size(maps); ++i) {
      auto& of_pe = reasons[i].emplace_back(maps[i]->reasons.size());
      for (auto& row : of_pe)
        for (std::size_t t = 0; t < maps[i]->names.size(); ++t) row.push_back(reader.text());
    }
    auto& of_pe = notes.emplace_back();
    for (std::size_t i = 0; on_gpu && i < blobs.size(); ++i) of_pe.push_back(reader.text());
  }
  report.pairs = explain(*maps[0], reasons[0], transport::network_names(), chosen_for);
  if (on_gpu) {
    report.heap_pairs = explain(*maps[1], reasons[1], {}, chosen_for_heap);
    add_notes(report.heap_pairs, notes);
  }
  return report;
}

}  // namespace shoal::detail
