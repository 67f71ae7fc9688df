// SPDX-License-Identifier: Apache-2.0
#include "ep/agreement.hpp"

#include <cstring>
#include <exception>

#include "base/check.hpp"

namespace shoal::ep::detail {
namespace {

/// The options that must be equal on all ranks, with their names.
struct Field {
  const char* name;
  std::int64_t (*value)(const GroupOptions&);
};
constexpr Field kFields[] = {
    {"max_tokens", [](const GroupOptions& o) { return o.max_tokens; }},
    {"hidden", [](const GroupOptions& o) { return o.hidden; }},
    {"top_k", [](const GroupOptions& o) { return std::int64_t{o.top_k}; }},
    {"experts", [](const GroupOptions& o) { return std::int64_t{o.experts}; }},
    {"dtype", [](const GroupOptions& o) { return static_cast<std::int64_t>(o.dtype); }},
    {"max_scales", [](const GroupOptions& o) { return o.max_scales; }},
    {"live_results", [](const GroupOptions& o) { return std::int64_t{o.live_results}; }},
    {"low_latency_max_tokens", [](const GroupOptions& o) { return o.low_latency_max_tokens; }},
    {"preinitialize", [](const GroupOptions& o) { return std::int64_t{o.preinitialize}; }},
    {"combine_staging", [](const GroupOptions& o) { return std::int64_t{o.combine_staging}; }},
    {"mask_failed", [](const GroupOptions& o) { return std::int64_t{o.mask_failed}; }},
};
constexpr std::size_t kFieldCount = std::size(kFields);

struct Proposal {
  std::int32_t code;  // of Code; 0 when the options are fine here
  std::int64_t values[kFieldCount];
  char message[400];
};
static_assert(sizeof(Proposal) <= shoal::detail::WorldState::kExchangeBytes);

/// Returns the state, or nullptr with the error of this rank in `proposal`.
std::shared_ptr<GroupState> propose(const Team& team, const GroupOptions& options,
                                    Proposal& proposal) {
  for (std::size_t i = 0; i < kFieldCount; ++i) proposal.values[i] = kFields[i].value(options);
  try {
    return std::make_shared<GroupState>(team, options);
  } catch (const Error& error) {
    proposal.code = static_cast<std::int32_t>(error.code());
    error.reason().copy(proposal.message, sizeof proposal.message - 1);
  } catch (const std::exception& error) {
    proposal.code = static_cast<std::int32_t>(Code::system);
    std::strncpy(proposal.message, error.what(), sizeof proposal.message - 1);
  }
  return nullptr;
}

}  // namespace

std::shared_ptr<GroupState> agree_on_group(const Team& team, const GroupOptions& options) {
  Proposal mine{};
  auto state = propose(team, options, mine);
  shoal::detail::TeamState& team_state = team.state();
  const std::vector<std::byte> all =
      team_state.world->exchange(team_state, &mine, sizeof mine, "ep group");
  std::vector<Proposal> proposals(team.size());
  std::memcpy(proposals.data(), all.data(), all.size());
  for (const Proposal& proposal : proposals)
    if (proposal.code != 0) throw Error(static_cast<Code>(proposal.code), proposal.message);
  for (std::size_t i = 0; i < kFieldCount; ++i)
    for (Pe pe = 1; pe < team.size(); ++pe)
      require(proposals[pe].values[i] == proposals[0].values[i], Code::mismatch,
              "ep::GroupOptions.{} differs between ranks: {} on PE {}, {} on PE {}",
              kFields[i].name, proposals[0].values[i], team.world_pe(0), proposals[pe].values[i],
              team.world_pe(pe));
  return state;
}

bool any_pe(const GroupState& state, bool mine, const char* what) {
  const char value = mine ? 1 : 0;
  for (const std::byte other : state.world->exchange(state.world->world_team(), &value, 1, what))
    if (other != std::byte{0}) return true;
  return false;
}

}  // namespace shoal::ep::detail
