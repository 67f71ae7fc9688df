// SPDX-License-Identifier: Apache-2.0
// The connectivity map as text and as JSON. Pairs with equal verdicts are shown once.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "info/text.hpp"
#include "info/world.hpp"

namespace shoal::info {
namespace {

constexpr Pe kLargestMatrix = 32;

/// Pairs with equal verdicts.
struct Group {
  const std::vector<TransportVerdict>* verdicts;
  bool alone;  ///< pairs of a PE with itself
  std::vector<std::pair<Pe, Pe>> pairs;
};

std::vector<Group> group(const std::vector<PairConnectivity>& pairs) {
  std::vector<Group> groups;
  for (const PairConnectivity& pair : pairs) {
    const auto found = std::find_if(groups.begin(), groups.end(), [&](const Group& known) {
      return known.alone == (pair.a == pair.b) && *known.verdicts == pair.transports;
    });
    Group& own = found != groups.end()
                     ? *found
                     : groups.emplace_back(Group{&pair.transports, pair.a == pair.b, {}});
    own.pairs.emplace_back(pair.a, pair.b);
  }
  return groups;
}

/// Describes the pairs: "PE 0 with 1-3; PE 1 with 2", "every PE with itself", "every pair inside a
/// node".
std::string describe_pairs(const Group& group, const ConnectivityReport& report) {
  const std::size_t n_pes = report.pes.size();
  if (group.alone && group.pairs.size() == n_pes)
    return n_pes == 1 ? "PE 0 with itself" : "every PE with itself";
  std::size_t inside = 0, all_inside = 0;
  for (std::size_t a = 0; a < n_pes; ++a)
    for (std::size_t b = a + 1; b < n_pes; ++b)
      all_inside += report.same_node(static_cast<Pe>(a), static_cast<Pe>(b));
  for (const auto& [a, b] : group.pairs) inside += report.same_node(a, b);
  const std::size_t all = n_pes * (n_pes - 1) / 2;
  if (!group.alone && group.pairs.size() == all) return "every pair";
  if (!group.alone && inside == all_inside && group.pairs.size() == inside)
    return "every pair inside a node";
  if (!group.alone && inside == 0 && group.pairs.size() == all - all_inside)
    return "every pair between nodes";
  std::map<Pe, std::vector<std::int32_t>> partners;
  for (const auto& [a, b] : group.pairs) partners[a].push_back(b);
  if (group.alone) {
    std::vector<std::int32_t> pes;
    for (const auto& [a, b] : group.pairs) pes.push_back(a);
    return fmt::format("PEs {}, each with itself", ranges(pes));
  }
  std::vector<std::string> parts;
  for (const auto& [a, others] : partners)
    parts.push_back(fmt::format("PE {} with {}", a, ranges(others)));
  return fmt::format("{}", fmt::join(parts, "; "));
}

std::string groups_text(const std::vector<PairConnectivity>& pairs,
                        const ConnectivityReport& report) {
  std::string text;
  for (const Group& group : group(pairs)) {
    text += fmt::format("  {}\n", wrap(describe_pairs(group, report), 110, 4));
    std::vector<std::vector<std::string>> rows;
    for (const TransportVerdict& verdict : *group.verdicts)
      if (verdict.chosen)
        rows.push_back(
            {"* " + verdict.transport, fmt::format("{} [{}]", verdict.why, verdict.capabilities)});
    if (rows.empty()) rows.push_back({"* none", "no transport reaches"});
    for (const TransportVerdict& verdict : *group.verdicts)
      if (!verdict.chosen &&
          !(group.alone && group.pairs.size() == report.pes.size() && verdict.transport == "self"))
        rows.push_back({"  " + verdict.transport, verdict.why});
    text += table(rows, 4);
  }
  return text;
}

/// The chosen transport of every pair as a matrix; one letter per transport.
std::string matrix(const std::vector<PairConnectivity>& pairs, Pe n_pes) {
  if (n_pes < 2 || n_pes > kLargestMatrix) return "";
  std::vector<std::string> names;
  std::vector<std::string> cells(static_cast<std::size_t>(n_pes) * static_cast<std::size_t>(n_pes),
                                 "-");
  for (const PairConnectivity& pair : pairs) {
    const TransportVerdict* const chosen = pair.chosen();
    if (chosen == nullptr) continue;
    const auto a = static_cast<std::size_t>(pair.a), b = static_cast<std::size_t>(pair.b);
    const std::string letter = pair.a == pair.b ? "." : chosen->transport.substr(0, 1);
    cells[a * static_cast<std::size_t>(n_pes) + b] =
        cells[b * static_cast<std::size_t>(n_pes) + a] = letter;
    const std::string meaning = fmt::format("{} {}", letter, chosen->transport);
    if (std::find(names.begin(), names.end(), meaning) == names.end()) names.push_back(meaning);
  }
  std::sort(names.begin(), names.end());
  std::string text = fmt::format("  chosen transport of each pair ({}; - none):\n        ",
                                 fmt::join(names, ", "));
  for (Pe b = 0; b < n_pes; ++b) text += fmt::format("{:>3}", b);
  text += "\n";
  for (Pe a = 0; a < n_pes; ++a) {
    text += fmt::format("  PE {:>3}", a);
    for (Pe b = 0; b < n_pes; ++b)
      text +=
          fmt::format("{:>3}", cells[static_cast<std::size_t>(a) * static_cast<std::size_t>(n_pes) +
                                     static_cast<std::size_t>(b)]);
    text += "\n";
  }
  return text;
}

std::string places_text(const ConnectivityReport& report) {
  std::vector<std::vector<std::string>> rows;
  for (std::size_t pe = 0; pe < report.pes.size(); ++pe) {
    const auto& [host, host_index, node, nics] = report.pes[pe];
    rows.push_back({fmt::format("PE {}", pe), "host " + host, fmt::format("node {}", node),
                    !nics           ? "NICs: none chosen, no pair needs a network"
                    : nics->empty() ? "NICs: none"
                                    : fmt::format("NICs: {}", fmt::join(*nics, ", "))});
  }
  return table(rows);
}

nlohmann::json pairs_json(const std::vector<PairConnectivity>& pairs) {
  nlohmann::json list = nlohmann::json::array();
  for (const PairConnectivity& pair : pairs) {
    nlohmann::json transports = nlohmann::json::array();
    for (const TransportVerdict& verdict : pair.transports)
      transports.push_back({{"name", verdict.transport},
                            {"chosen", verdict.chosen},
                            {"capabilities", verdict.capabilities},
                            {"why", verdict.why}});
    const TransportVerdict* const chosen = pair.chosen();
    list.push_back(
        {{"a", pair.a},
         {"b", pair.b},
         {"chosen", chosen == nullptr ? nlohmann::json() : nlohmann::json(chosen->transport)},
         {"transports", transports}});
  }
  return list;
}

}  // namespace

std::string connectivity_text(const WorldView& view) {
  const ConnectivityReport& report = view.connectivity;
  const auto n_pes = static_cast<Pe>(report.pes.size());
  std::string text = fmt::format("Connectivity of {} {} (* is the transport that a pair uses)\n",
                                 n_pes, n_pes == 1 ? "PE" : "PEs");
  text += places_text(report) + matrix(report.pairs, n_pes) + groups_text(report.pairs, report);
  if (!report.heap_pairs.empty())
    text += "Connectivity of the heaps in GPU memory\n" + matrix(report.heap_pairs, n_pes) +
            groups_text(report.heap_pairs, report);
  if (n_pes == 1)
    text +=
        "  This is one PE alone. For a map of several: shoal-run -n 4 --no-label shoal-info --connectivity, or any "
        "other launcher that sets\n  SHOAL_PE and SHOAL_N_PES; PE 0 prints.\n";
  return text;
}

nlohmann::json connectivity_json(const WorldView& view) {
  const ConnectivityReport& report = view.connectivity;
  nlohmann::json pes = nlohmann::json::array();
  for (std::size_t pe = 0; pe < report.pes.size(); ++pe) {
    const PePlace& place = report.pes[pe];
    pes.push_back({{"pe", pe},
                   {"host", place.host},
                   {"node", place.node},
                   {"nics", place.nics ? nlohmann::json(*place.nics) : nlohmann::json()}});
  }
  return {{"pes", pes},
          {"pairs", pairs_json(report.pairs)},
          {"gpu_heap_pairs", pairs_json(report.heap_pairs)}};
}

}  // namespace shoal::info
