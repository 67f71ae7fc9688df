// SPDX-License-Identifier: Apache-2.0
// The RDMA NICs of every PE, their limits, and the queue pairs of the open world.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "info/text.hpp"
#include "info/world.hpp"
#include "shoal/error.hpp"
#include "transport/module.hpp"

namespace shoal::info {
namespace {

using nlohmann::json;

json to_json(const transport::NicReport& nic) {
  json facts = json::object(), limits = json::object(), pairs = json::array();
  for (const auto& [name, value] : nic.facts) facts[name] = value;
  for (const auto& [name, value] : nic.limits) limits[name] = value;
  for (const transport::QueuePairReport& pair : nic.queue_pairs)
    pairs.push_back({{"peer", pair.peer},
                     {"number", pair.number},
                     {"state", pair.state},
                     {"in_flight", pair.in_flight},
                     {"depth", pair.depth}});
  return {{"port", nic.port}, {"facts", facts}, {"limits", limits}, {"queue_pairs", pairs}};
}

std::string values_text(const json& values) {
  std::vector<std::string> parts;
  for (const auto& [name, value] : values.items())
    parts.push_back(
        fmt::format("{} {}", name, value.is_string() ? value.get<std::string>() : value.dump()));
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string nic_text(const json& nic) {
  std::string text = fmt::format("    {}: {}\n      {}\n", nic["port"].get<std::string>(),
                                 wrap(values_text(nic["facts"]), 90, 6),
                                 wrap("at most: " + values_text(nic["limits"]), 90, 6));
  std::vector<std::vector<std::string>> rows;
  for (const json& pair : nic["queue_pairs"])
    rows.push_back({fmt::format("queue pair {:#x}", pair["number"].get<std::uint32_t>()),
                    fmt::format("to PE {}", pair["peer"].get<Pe>()),
                    pair["state"].get<std::string>(),
                    fmt::format("{} of {} requests in flight", pair["in_flight"].get<std::size_t>(),
                                pair["depth"].get<std::size_t>())});
  return text + (rows.empty() ? "      no queue pairs of this world\n" : table(rows, 6));
}

}  // namespace

PeNics collect_nics() {
  const Settings settings = Settings::from_environment();
  try {
    json nics = json::array();
    for (const transport::NicReport& nic : transport::load_module("verbs", settings).nics(settings))
      nics.push_back(to_json(nic));
    return {{"nics", nics}};
  } catch (const Error& error) {
    return {{"missing", error.reason()}};
  }
}

std::string nics_text(const WorldView& view) {
  std::string text = fmt::format("RDMA NICs of {}\n",
                                 count_text(static_cast<std::int64_t>(view.nics.size()), "PE"));
  for (std::size_t pe = 0; pe < view.nics.size(); ++pe) {
    const PeNics& own = view.nics[pe];
    if (own.contains("missing")) {
      text += fmt::format("  PE {}: none: {}\n", pe, own["missing"].get<std::string>());
      continue;
    }
    text += fmt::format("  PE {}\n", pe);
    for (const json& nic : own["nics"]) text += nic_text(nic);
  }
  return text;
}

json nics_json(const WorldView& view) {
  return {{"pes", view.nics}};
}

}  // namespace shoal::info
