// SPDX-License-Identifier: Apache-2.0
#include "pe/agreement.hpp"

#include <algorithm>

#include "base/align.hpp"
#include "base/check.hpp"

namespace shoal::detail {

std::vector<SharedField> shared_fields(const Settings& settings, const ControlLayout& layout) {
  return {
      {"the protocol version", std::to_string(kProtocolVersion)},
      {"SHOAL_SYMMETRIC_SIZE", std::to_string(heap_bytes(settings))},
      {"SHOAL_HEAP", settings.heap},
      {"SHOAL_MAX_TEAMS", std::to_string(settings.max_teams)},
      {"SHOAL_NODE_SIZE", std::to_string(settings.node_size)},
      {"SHOAL_STAGING_SIZE", std::to_string(settings.staging_size)},
      {"SHOAL_STAGED_CHUNK", std::to_string(settings.staged_chunk)},
      {"SHOAL_STAGED_DEPTH", std::to_string(settings.staged_depth)},
      {"SHOAL_COLLECTIVE_ALGORITHM", settings.collective_algorithm},
      {"SHOAL_COLLECTIVE_PACKET_LIMIT", std::to_string(settings.collective_packet_limit)},
      {"SHOAL_COLLECTIVE_ONE_SHOT_LIMIT", std::to_string(settings.collective_one_shot_limit)},
      {"SHOAL_COLLECTIVE_SCRATCH", std::to_string(settings.collective_scratch)},
      {"SHOAL_COLLECTIVE_NCCL", settings.collective_nccl},
      {"SHOAL_COLLECTIVE_NCCL_FROM", std::to_string(settings.collective_nccl_from)},
      {"SHOAL_EP_CHUNK", std::to_string(settings.ep_chunk)},
      {"SHOAL_EP_DEPTH", std::to_string(settings.ep_depth)},
      {"SHOAL_EP_BETWEEN_NODES", settings.ep_between_nodes},
      {"SHOAL_TRANSPORT_INSIDE", settings.transport_inside},
      {"SHOAL_TRANSPORT_BETWEEN", settings.transport_between},
      {"the size of the control block", std::to_string(layout.bytes())},
  };
}

void check_shared(std::span<const SharedField> fields,
                  std::span<const std::vector<std::string>> values) {
  std::vector<Pe> pes;
  for (std::size_t pe = 0; pe < values.size(); ++pe) pes.push_back(static_cast<Pe>(pe));
  for (std::size_t i = 0; i < fields.size(); ++i) {
    std::vector<std::string> texts;
    for (const auto& of_pe : values) texts.push_back(i < of_pe.size() ? of_pe[i] : "unknown to it");
    const bool equal = std::all_of(texts.begin(), texts.end(),
                                   [&](const std::string& text) { return text == texts.front(); });
    require(equal, Code::mismatch,
            "SHOAL-N171: PEs disagree about {}, which must be the same on all: {}", fields[i].name,
            group_by_text(texts, pes));
  }
}

std::string group_by_text(std::span<const std::string> texts, std::span<const Pe> pes) {
  std::string result;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (std::find(texts.begin(), texts.begin() + static_cast<std::ptrdiff_t>(i), texts[i]) !=
        texts.begin() + static_cast<std::ptrdiff_t>(i))
      continue;
    result += fmt::format("{}PE {}", result.empty() ? "" : "; ", pes[i]);
    for (std::size_t j = i + 1; j < texts.size(); ++j)
      if (texts[j] == texts[i]) result += fmt::format(", {}", pes[j]);
    result += ": " + texts[i];
  }
  return result;
}

std::size_t heap_bytes(const Settings& settings) noexcept {
  return align_up(settings.symmetric_size, kPageBytes);
}

}  // namespace shoal::detail
