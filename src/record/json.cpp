// SPDX-License-Identifier: Apache-2.0
// json.cpp: records as JSON, and back.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "base/check.hpp"
#include "record/text.hpp"
#include "shoal/observe.hpp"

namespace shoal::observe {

using nlohmann::json;

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(PhaseRecord, name, start_ns)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(OperationRecord, id, epoch, operation, state, start_ns, end_ns,
                                   phases, awaited, rows, bytes, wait_ns, waiting)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LaunchRecord, epoch, operation, phases, end_ns, rows, bytes)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Histogram, operation, phase, count, sum_ns, buckets)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(OperationTotals, operation, operations, failures, rows, bytes,
                                   time_ns)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(PeerTotals, rows, bytes, waits, wait_ns, network_rows,
                                   network_bytes)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(GroupRecord, number, rank, pes, n_hosts, failure, operations,
                                   totals, peers, histograms, first_expert, expert_rows, launches)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(WorldPeerTotals, operations, bytes, waits, wait_ns)
// `world` is text with hexadecimal digits: not all readers of JSON hold 64 bits in a number.
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(PeRecord, pe, n_pes, pid, host, read_ns, activity, active,
                                   awaited, failure, totals, peers, histograms, groups)

namespace {

/// The format of records (`shoal_record`). Increases with every change of a field.
constexpr int kJsonVersion = 4;

/// `text` with a question mark for every byte that is not part of a character of UTF-8: JSON allows
/// no such byte.
std::string with_characters_only(std::string text) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t bytes = detail::record::character_bytes(std::string_view(text).substr(at));
    if (bytes == 0) text[at] = '?';
    at += std::max<std::size_t>(bytes, 1);
  }
  return text;
}

/// Replaces every text in `value` by change(text).
template <typename Change>
void change_texts(json& value, const Change& change) {
  if (value.is_string())
    value = change(value.get_ref<const std::string&>());
  else if (value.is_structured())
    for (json& item : value) change_texts(item, change);
}

void check_groups(const PeRecord& pe) {
  for (const GroupRecord& group : pe.groups) {
    require(!group.pes.empty(), Code::invalid_argument, "SHOAL-N183: group {} has no ranks",
            group.number);
    for (const LaunchRecord& launch : group.launches)
      require(!launch.phases.empty(), Code::invalid_argument,
              "SHOAL-N183: a launch of group {} has no phases", group.number);
  }
}

}  // namespace

std::string to_json(const PeRecord& pe) {
  json document = pe;
  document["shoal_record"] = kJsonVersion;
  document["world"] = fmt::format("{:016x}", pe.world);
  change_texts(document, with_characters_only);
  return document.dump();
}

PeRecord from_json(const std::string& text) {
  try {
    json parsed = json::parse(with_characters_only(text));
    const int version = parsed.at("shoal_record");
    require(version == kJsonVersion, Code::invalid_argument,
            "SHOAL-N184: it has format {} of records; this version of Shoal reads format {}",
            version, kJsonVersion);
    // Another program wrote the text.
    change_texts(parsed, [](const std::string& from) { return detail::record::printable(from); });
    auto pe = parsed.get<PeRecord>();
    const std::string world = parsed.at("world");
    std::from_chars(world.data(), world.data() + world.size(), pe.world, 16);
    check_groups(pe);
    return pe;
  } catch (const json::exception& error) {
    fail(Code::invalid_argument, "SHOAL-N183: it is not the record of a PE: {}", error.what());
  }
}

}  // namespace shoal::observe
