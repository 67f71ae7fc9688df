// SPDX-License-Identifier: Apache-2.0
#include "ep/api/agreement.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <string_view>

#include "base/check.hpp"
#include "ep/api/placement.hpp"
#include "team/outcome.hpp"
#include "team/teams.hpp"

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
    {"none_expert", [](const GroupOptions& o) { return std::int64_t{o.none_expert}; }},
    {"dtype", [](const GroupOptions& o) { return static_cast<std::int64_t>(o.dtype); }},
    {"max_scales", [](const GroupOptions& o) { return o.max_scales; }},
    {"live_results", [](const GroupOptions& o) { return std::int64_t{o.live_results}; }},
    {"low_latency_max_tokens", [](const GroupOptions& o) { return o.low_latency_max_tokens; }},
    {"preinitialize", [](const GroupOptions& o) { return std::int64_t{o.preinitialize}; }},
    {"combine_staging", [](const GroupOptions& o) { return std::int64_t{o.combine_staging}; }},
    {"mask_failed", [](const GroupOptions& o) { return std::int64_t{o.mask_failed}; }},
    {"chunk_bytes", [](const GroupOptions& o) { return o.chunk_bytes; }},
    {"chunks_in_flight", [](const GroupOptions& o) { return std::int64_t{o.chunks_in_flight}; }},
};
constexpr std::size_t kFieldCount = std::size(kFields);

std::string describe(const Field& field, std::int64_t value) {
  return std::string_view(field.name) == "dtype"
             ? std::string(name_of(static_cast<DataType>(value)))
             : std::to_string(value);
}

/// The fields, and a digest of the experts of each rank.
using Values = std::array<std::int64_t, kFieldCount + 1>;

std::int64_t digest_of(const std::vector<std::int32_t>& numbers) {
  std::uint64_t digest = 0xcbf2'9ce4'8422'2325;  // FNV-1a
  for (const std::int32_t number : numbers)
    digest = (digest ^ static_cast<std::uint32_t>(number)) * 0x100'0000'01b3;
  return static_cast<std::int64_t>(digest);
}

/// Throws Error{mismatch}, on all ranks, naming the first number that differs. Collective.
void fail_other_experts(const Team& team, const std::vector<std::int32_t>& mine) {
  constexpr std::size_t kPart = 64;  // numbers that one exchange takes
  for (std::size_t first = 0; first < mine.size(); first += kPart) {
    const std::size_t count = std::min(kPart, mine.size() - first);
    const std::vector<std::byte> all = shoal::detail::exchange(
        state_of(team), mine.data() + first, count * sizeof(std::int32_t), "ep group");
    const auto number = [&](Pe pe, std::size_t i) {
      std::int32_t value = 0;
      std::memcpy(&value, all.data() + (pe * count + i) * sizeof value, sizeof value);
      return value;
    };
    for (std::size_t i = 0; i < count; ++i)
      for (Pe pe = 1; pe < team.size(); ++pe)
        require(number(pe, i) == number(0, i), Code::mismatch,
                "SHOAL-N500: ep::GroupOptions.first_expert[{}] differs between ranks: {} on PE {}, "
                "{} on PE {}",
                first + i, number(0, i), team.world_pe(0), number(pe, i), team.world_pe(pe));
  }
}

}  // namespace

std::shared_ptr<GroupState> agree_on_group(const Team& team, const GroupOptions& options) {
  Values mine;
  for (std::size_t i = 0; i < kFieldCount; ++i) mine[i] = kFields[i].value(options);
  std::shared_ptr<GroupState> state;
  const auto failure = shoal::detail::attempt(
      [&] { state = std::make_shared<GroupState>(team, options, place_group(team)); });
  mine[kFieldCount] = state == nullptr ? 0 : digest_of(state->shape.partition->firsts());
  shoal::detail::TeamState& team_state = state_of(team);
  const auto all = shoal::detail::exchange_outcomes(team_state, mine, failure, "ep group");
  for (Pe pe = 0; pe < team.size(); ++pe)
    shoal::detail::rethrow(all[pe].failure, team.world_pe(pe), failure);
  for (std::size_t i = 0; i < kFieldCount; ++i)
    for (Pe pe = 1; pe < team.size(); ++pe)
      require(
          all[pe].value[i] == all[0].value[i], Code::mismatch,
          "SHOAL-N500: ep::GroupOptions.{} differs between ranks: {} on PE {}, {} on PE {}",
          kFields[i].name, [&] { return describe(kFields[i], all[0].value[i]); }, team.world_pe(0),
          [&] { return describe(kFields[i], all[pe].value[i]); }, team.world_pe(pe));
  for (Pe pe = 1; pe < team.size(); ++pe)
    if (all[pe].value[kFieldCount] != all[0].value[kFieldCount]) {
      fail_other_experts(team, state->shape.partition->firsts());
      break;
    }
  return state;
}

bool any_pe(const GroupState& state, bool mine, const char* what) {
  const char value = mine ? 1 : 0;
  for (const std::byte other :
       shoal::detail::exchange(state.world->teams().world_team(), &value, 1, what))
    if (other != std::byte{0}) return true;
  return false;
}

}  // namespace shoal::ep::detail
