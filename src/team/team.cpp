// SPDX-License-Identifier: Apache-2.0
// The public Team: queries, splits, free.
#include "shoal/team.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>

#include "base/check.hpp"
#include "pe/agreement.hpp"
#include "pe/forks.hpp"
#include "team/exchange.hpp"
#include "team/teams.hpp"
#include "world/state.hpp"

namespace shoal {
namespace detail {
namespace {

/// Disjoint sets of PEs of the parent team, by their index there.
using Parts = std::vector<std::vector<Pe>>;

enum class SplitKind : std::uint32_t { strided = 1, rows, columns };

/// One PE's arguments and its free team indices.
struct SplitRequest {
  static constexpr std::size_t kWords = 32;
  SplitKind kind;
  std::array<Pe, 3> arguments;
  std::uint64_t generation;
  std::array<std::uint64_t, kWords> free;  ///< a section of the bit set of free indices
  DroppedTeams dropped{};
};
static_assert(sizeof(SplitRequest) <= kExchangeBytes);

std::string describe(const SplitRequest& request) {
  const auto& a = request.arguments;
  if (request.kind == SplitKind::strided)
    return fmt::format("split_strided(start {}, stride {}, count {})", a[0], a[1], a[2]);
  return fmt::format("split_2d(x_range {})", a[0]);
}

std::vector<SplitRequest> exchange_requests(TeamState& parent, const SplitRequest& mine) {
  const auto blobs = exchange(parent, &mine, sizeof mine, "team split");
  std::vector<SplitRequest> all(parent.size());
  std::memcpy(all.data(), blobs.data(), blobs.size());
  return all;
}

bool same(const SplitRequest& a, const SplitRequest& b) {
  return a.kind == b.kind && a.arguments == b.arguments;
}

/// Throws Error{mismatch} unless all PEs pass the same arguments.
void check_agreement(const TeamState& parent, const std::vector<SplitRequest>& all) {
  if (std::all_of(all.begin(), all.end(), [&](const auto& other) { return same(other, all[0]); }))
    return;
  std::vector<std::string> texts;
  for (const SplitRequest& request : all) texts.push_back(describe(request));
  fail(Code::mismatch, "SHOAL-N205: the PEs of team {} split it differently: {}{}", parent.index,
       group_by_text(texts, parent.pes),
       parent.world->progress().refusal(parent.pes, parent.call(parent.epoch)));
}

/// The numbers of a call of split_strided.
struct Strided {
  std::int64_t start, stride, count;

  explicit Strided(const SplitRequest& request)
      : start(request.arguments[0]), stride(request.arguments[1]), count(request.arguments[2]) {}
  Pe at(std::int64_t i) const { return static_cast<Pe>(start + stride * i); }
  /// Accepts numbers that describe no set of the team as well.
  bool contains(std::int64_t pe) const {
    if (count < 1 || stride == 0) return count >= 1 && pe == start;
    return (pe - start) % stride == 0 && (pe - start) / stride >= 0 &&
           (pe - start) / stride < count;
  }
  void check(const TeamState& parent, Pe passed_by) const {
    const auto size = static_cast<std::int64_t>(parent.size());
    const std::int64_t last = start + stride * (count - 1);
    require(
        count >= 1 && stride != 0 && start >= 0 && start < size && last >= 0 && last < size,
        Code::invalid_argument,
        "SHOAL-N206: split_strided(start {}, stride {}, count {}) on PE {}, of a team of {} PEs; "
        "count must be at least 1, stride not 0, and all of start, start + stride, ... must lie in "
        "0 to {}",
        start, stride, count, parent.pes[static_cast<std::size_t>(passed_by)], size, size - 1);
  }
};

/// The sets of all members: the PEs that are in the set that they pass.
Parts strided_parts(const TeamState& parent, const std::vector<SplitRequest>& all) {
  const auto size = static_cast<Pe>(parent.size());
  const auto request = [&](Pe pe) -> const SplitRequest& {
    return all[static_cast<std::size_t>(pe)];
  };
  const bool equal =
      std::all_of(all.begin(), all.end(), [&](const auto& other) { return same(other, all[0]); });
  if (equal) Strided(all[0]).check(parent, parent.my_pe);
  for (const SplitRequest& other : all)
    if (other.kind != SplitKind::strided) check_agreement(parent, all);
  Parts parts;
  for (Pe pe = 0; pe < size; ++pe) {
    const Strided set(request(pe));
    if (!set.contains(pe)) continue;
    set.check(parent, pe);
    // The first PE of a set compares the numbers of all its PEs; the others, those of the first.
    const bool first = pe == set.at(0);
    for (std::int64_t i = 0; i < (first ? set.count : 1); ++i)
      require(
          same(request(set.at(i)), request(pe)), Code::mismatch,
          "SHOAL-N205: the PEs of team {} split it differently: PE {} passes {}, a set that "
          "contains PE {}, which passes {}; allowed: the same numbers on all PEs of a set",
          parent.index, parent.pes[static_cast<std::size_t>(pe)],
          [&] { return describe(request(pe)); }, parent.pes[static_cast<std::size_t>(set.at(i))],
          [&] { return describe(request(set.at(i))); });
    if (!first) continue;
    std::vector<Pe>& part = parts.emplace_back();
    for (std::int64_t i = 0; i < set.count; ++i) part.push_back(set.at(i));
  }
  return parts;
}

/// The lowest index in this section that is free on all PEs of a part.
std::optional<std::int32_t> common_index(const std::vector<SplitRequest>& all,
                                         const std::vector<Pe>& part, std::size_t first_word) {
  std::array<std::uint64_t, SplitRequest::kWords> common =
      all[static_cast<std::size_t>(part.front())].free;
  for (const Pe pe : part)
    for (std::size_t i = 0; i < common.size(); ++i)
      common[i] &= all[static_cast<std::size_t>(pe)].free[i];
  return TeamSlots::lowest(common, first_word);
}

/// The parts of a split with the index and the generations that the PEs agreed on.
struct Split {
  Parts parts;
  std::vector<std::optional<std::int32_t>> indices;  ///< by part; nullopt: none is free
  std::vector<std::uint64_t> generations;            ///< by PE of the parent
  bool dropped = false;                              ///< a PE has named teams that it dropped
  bool more = false;                                 ///< a PE has further ones

  bool complete() const {
    return std::all_of(indices.begin(), indices.end(),
                       [](const auto& index) { return index.has_value(); });
  }
};

/// Forms the parts from the requests of all PEs. Throws the same on all of them.
using Divide = std::function<Parts(const std::vector<SplitRequest>&)>;

/// Exchanges requests until every part has an index or no free index is left. Every PE learns the
/// indices of all parts, so that all throw when one part gets none.
Split agree_on_split(TeamState& parent, SplitKind kind, std::array<Pe, 3> arguments,
                     const Divide& divide) {
  Teams& teams = parent.world->teams();
  const TeamSlots& slots = teams.slots();
  const auto words = slots.free_words();
  Split split;
  for (std::size_t first = 0; first < words.size(); first += SplitRequest::kWords) {
    SplitRequest mine{kind, arguments, slots.next_generation, {}, {}};
    const auto section = words.subspan(first, std::min(SplitRequest::kWords, words.size() - first));
    std::copy(section.begin(), section.end(), mine.free.begin());
    if (first == 0) mine.dropped = teams.unnamed(parent);
    const std::vector<SplitRequest> all = exchange_requests(parent, mine);
    if (first == 0) {
      for (std::size_t i = 0; i < all.size(); ++i) {
        split.dropped |= all[i].dropped.count != 0;
        split.more |= all[i].dropped.more != 0;
        teams.take(parent.pes[i], all[i].dropped);
      }
      split.parts = divide(all);
      split.indices.resize(split.parts.size());
      for (const SplitRequest& request : all) split.generations.push_back(request.generation);
    }
    for (std::size_t i = 0; i < split.parts.size(); ++i)
      if (!split.indices[i]) split.indices[i] = common_index(all, split.parts[i], first);
    if (split.complete()) break;
  }
  return split;
}

/// Splits `parent` into the parts that `divide` forms. Returns the team of this PE's part; nullptr
/// where it is in none.
std::shared_ptr<TeamState> split(TeamState& parent, SplitKind kind, std::array<Pe, 3> arguments,
                                 const Divide& divide) {
  WorldState& state = *parent.world;
  state.progress().set(Activity::team, parent.epoch + 1, "split");
  Split agreed = agree_on_split(parent, kind, arguments, divide);
  // Teams that were released now may have an index that this call needs.
  while (agreed.more || (agreed.dropped && !agreed.complete()))
    agreed = agree_on_split(parent, kind, arguments, divide);
  state.progress().set(Activity::idle, parent.epoch, "team split");

  for (std::size_t i = 0; i < agreed.parts.size(); ++i)
    require(
        agreed.indices[i].has_value(), Code::exhausted,
        "SHOAL-N203: {}: no team index is free on all {} PEs of a new team; SHOAL_MAX_TEAMS is {}",
        [&] { return describe({kind, arguments, 0, {}, {}}); }, agreed.parts[i].size(),
        state.teams().slots().count());
  for (std::size_t i = 0; i < agreed.parts.size(); ++i) {
    const std::vector<Pe>& part = agreed.parts[i];
    if (std::find(part.begin(), part.end(), parent.my_pe) == part.end()) continue;
    std::vector<Pe> pes;
    std::uint64_t generation = 0;
    for (const Pe pe : part) {
      pes.push_back(parent.pes[static_cast<std::size_t>(pe)]);
      generation = std::max(generation, agreed.generations[static_cast<std::size_t>(pe)]);
    }
    return state.teams().create(state, *agreed.indices[i], generation, std::move(pes));
  }
  return nullptr;
}

}  // namespace
}  // namespace detail

using detail::TeamState;

Pe Team::my_pe() const noexcept {
  return state_ ? state_->my_pe : -1;
}
Pe Team::size() const noexcept {
  return state_ ? static_cast<Pe>(state_->size()) : 0;
}
std::int32_t Team::index() const noexcept {
  return state_ ? state_->index : -1;
}

TeamState& Team::state() const {
  require(state_ != nullptr, Code::invalid_argument,
          "SHOAL-N207: this team is invalid: this PE is not in it");
  require(!state_->destroyed, Code::closed, "SHOAL-N208: team {} was destroyed", state_->index);
  if (!state_->world->is_open()) {
    const detail::WorldState& world = *state_->world;
    require(!detail::is_inherited(world), Code::closed, "SHOAL-N172: {}",
            detail::why_closed(&world));
    fail(Code::closed, "SHOAL-N172: team {} belongs to a world that is closed", state_->index);
  }
  return *state_;
}

bool Team::is_open() const noexcept {
  return state_ && !state_->destroyed && state_->world->is_open();
}

World Team::world() const {
  return detail::Access::make<World>(state().world->shared_from_this());
}

Pe Team::world_pe(Pe pe) const {
  const TeamState& team = state();
  require(pe >= 0 && pe < size(), Code::invalid_argument,
          "SHOAL-N209: PE {} of team {}; it has PEs 0 to {}", pe, team.index, size() - 1);
  return team.pes[static_cast<std::size_t>(pe)];
}

std::optional<Pe> Team::translate(Pe pe, const Team& other) const {
  const Pe wanted = world_pe(pe);
  const TeamState& there = state_of(other);
  require(there.world.get() == state_->world.get(), Code::invalid_argument,
          "SHOAL-N210: translate: teams {} and {} belong to different worlds", state_->index,
          there.index);
  const auto found = std::find(there.pes.begin(), there.pes.end(), wanted);
  if (found == there.pes.end()) return std::nullopt;
  return static_cast<Pe>(found - there.pes.begin());
}

Team Team::split_strided(Pe start, Pe stride, Pe count) const {
  TeamState& parent = state();
  return Team(detail::split(parent, detail::SplitKind::strided, {start, stride, count},
                            [&](const auto& all) { return detail::strided_parts(parent, all); }));
}

std::pair<Team, Team> Team::split_2d(Pe x_range) const {
  const auto check = [&](const auto& all) {
    detail::check_agreement(state(), all);
    require(x_range >= 1, Code::invalid_argument,
            "SHOAL-N206: split_2d: x_range is {}; it must be at least 1", x_range);
    return std::min(x_range, size());
  };
  auto row = detail::split(state(), detail::SplitKind::rows, {x_range, 0, 0}, [&](const auto& all) {
    const Pe width = check(all);
    detail::Parts rows;
    for (Pe pe = 0; pe < size(); ++pe) {
      if (pe % width == 0) rows.emplace_back();
      rows.back().push_back(pe);
    }
    return rows;
  });
  try {
    auto column =
        detail::split(state(), detail::SplitKind::columns, {x_range, 0, 0}, [&](const auto& all) {
          const Pe width = check(all);
          detail::Parts columns(static_cast<std::size_t>(width));
          for (Pe pe = 0; pe < size(); ++pe)
            columns[static_cast<std::size_t>(pe % width)].push_back(pe);
          return columns;
        });
    return {Team(std::move(row)), Team(std::move(column))};
  } catch (const Error&) {
    if (row) state().world->teams().release(*row);
    throw;
  }
}

void Team::free() {
  TeamState& team = state();
  team.world->progress().checked(team.next_call(), [&] {
    require(!team.predefined, Code::invalid_argument,
            "SHOAL-N211: team {} is predefined; it lives as long as its world", team.index);
  });
  const auto keep = state_;
  // Released even when the sync fails: the failure of another PE must not cost this PE its slot.
  struct Release {
    TeamState& team;
    ~Release() { team.world->teams().release(team); }
  } const release{team};
  team.world->progress().set(detail::Activity::team, team.epoch + 1, "destroy");
  sync(team, "Team::free");
  team.world->progress().set(detail::Activity::idle, team.epoch, "team destroy");
}

}  // namespace shoal
