// SPDX-License-Identifier: Apache-2.0
// World::make_team: PEs that share only an id find each other.
//
// Each joining PE writes a record (id, size, its index, its free team indices) into the join board
// of every PE of the world, and polls its own board for records with the same id. When it has all
// of them, it acknowledges them to their writers. A writer reuses its place in the boards once all
// PEs of the team have acknowledged its record, so two successive joins cannot be mixed up, even
// with equal ids.
#include <algorithm>

#include "base/check.hpp"
#include "fabric/fabric.hpp"
#include "pe/memory.hpp"
#include "team/teams.hpp"
#include "world/state.hpp"

namespace shoal::detail {
namespace {

struct Candidate {
  Pe pe;
  JoinEntry record;
};

/// For refusals. No team has this index.
CallId call_of(std::uint64_t id) {
  return {CallKind::team, ~std::uint64_t{0}, id + 1};
}

class Join {
 public:
  Join(WorldState& state, std::uint64_t id, Pe size, Pe index)
      : state_(state),
        memory_(state.memory()),
        teams_(state.teams()),
        layout_(memory_.layout()),
        id_(id),
        size_(size),
        index_(index),
        words_(teams_.slots().free_words().size()) {}

  Team run() {
    state_.progress().set(Activity::team, teams_.joins + 1, "join");
    publish();
    wait_for_candidates();
    const std::string problem = find_problem();
    std::vector<Pe> pes(static_cast<std::size_t>(size_));
    std::uint64_t generation = 0;
    if (problem.empty()) {
      for (const Candidate& candidate : candidates_) {
        pes[candidate.record.index] = candidate.pe;
        generation = std::max(generation, candidate.record.generation);
      }
    }
    const auto team_index = common_index();
    acknowledge();
    state_.progress().set(Activity::idle, teams_.joins, "team join");
    require(problem.empty(), Code::invalid_argument, "{}", problem);
    require(
        team_index.has_value(), Code::exhausted,
        "SHOAL-N203: make_team(id {}, size {}): no team index is free on all PEs; SHOAL_MAX_TEAMS "
        "is {}",
        id_, size_, teams_.slots().count());
    return Access::make<Team>(teams_.create(state_, *team_index, generation, std::move(pes)));
  }

 private:
  static constexpr std::size_t kWord = sizeof(std::uint64_t);

  void publish() {
    version_ = 2 * ++teams_.joins;
    const std::size_t record = layout_.join_entry(state_.my_pe());
    for (Pe pe = 0; pe < state_.n_pes(); ++pe) {
      transport::Transport& route = state_.fabric().route(pe);
      const auto write = [&](std::size_t offset, std::uint64_t value) {
        route.atomic(pe, AtomicOp::set, offset, value, 0, kWord);
      };
      write(record + offsetof(JoinEntry, version), version_ - 1);
      write(record + offsetof(JoinEntry, id), id_);
      write(record + offsetof(JoinEntry, size), static_cast<std::uint64_t>(size_));
      write(record + offsetof(JoinEntry, index), static_cast<std::uint64_t>(index_));
      write(record + offsetof(JoinEntry, generation), teams_.slots().next_generation);
      for (std::size_t i = 0; i < words_; ++i)
        write(layout_.join_free_word(state_.my_pe(), i), teams_.slots().free_words()[i]);
      route.signal(pe, record + offsetof(JoinEntry, version), SignalOp::set, version_);
    }
  }

  /// The record of `pe` when it is complete, new to this PE and of this id.
  std::optional<Candidate> read(Pe pe) const {
    const std::size_t offset = layout_.join_entry(pe);
    JoinEntry record{};
    record.version = memory_.load(offset);
    if (record.version % 2 != 0 ||
        record.version <= teams_.joins_read[static_cast<std::size_t>(pe)])
      return std::nullopt;
    record.id = memory_.load(offset + offsetof(JoinEntry, id));
    record.size = memory_.load(offset + offsetof(JoinEntry, size));
    record.index = memory_.load(offset + offsetof(JoinEntry, index));
    record.generation = memory_.load(offset + offsetof(JoinEntry, generation));
    if (record.id != id_ || memory_.load(offset) != record.version) return std::nullopt;
    return Candidate{pe, record};
  }

  bool complete() {
    candidates_.clear();
    for (Pe pe = 0; pe < state_.n_pes(); ++pe)
      if (auto candidate = read(pe)) candidates_.push_back(*candidate);
    return candidates_.size() >= static_cast<std::size_t>(size_) || sizes_differ();
  }

  bool sizes_differ() const {
    return std::any_of(candidates_.begin(), candidates_.end(), [&](const Candidate& candidate) {
      return candidate.record.size != static_cast<std::uint64_t>(size_);
    });
  }

  void wait_for_candidates() {
    const auto outcome = state_.waits().poll([&] { return complete(); }, state_.waits().deadline());
    if (outcome != WaitOutcome::ready)
      state_.waits().throw_failed(
          outcome, fmt::format("make_team(id {}, size {}, index {})", id_, size_, index_),
          fmt::format("waiting for {} PEs, {} came ({}){}", size_, candidates_.size(), list(),
                      state_.progress().refusal(state_.teams().world_team().pes, call_of(id_))));
    if (!sizes_differ()) return;
    // No PE waits for acknowledgements here, but a later attempt must not see the same records.
    for (const auto& [pe, record] : candidates_)
      teams_.joins_read[static_cast<std::size_t>(pe)] = record.version;
    fail(Code::mismatch, "SHOAL-N204: make_team(id {}): PEs give different sizes: {}", id_, list());
  }

  /// Empty when the PEs have the indices 0 .. size - 1.
  std::string find_problem() const {
    if (candidates_.size() > static_cast<std::size_t>(size_))
      return fmt::format("make_team(id {}, size {}): {} PEs joined: {}", id_, size_,
                         candidates_.size(), list());
    std::vector<bool> taken(static_cast<std::size_t>(size_));
    for (const Candidate& candidate : candidates_) {
      const auto index = static_cast<std::int64_t>(candidate.record.index);
      if (index < 0 || index >= size_)
        return fmt::format(
            "SHOAL-N204: make_team(id {}, size {}): PE {} has index {}; allowed: 0 to {}", id_,
            size_, candidate.pe, index, size_ - 1);
      if (taken[candidate.record.index])
        return fmt::format("make_team(id {}, size {}): index {} is taken twice: {}", id_, size_,
                           index, list());
      taken[candidate.record.index] = true;
    }
    return {};
  }

  std::string list() const {
    std::string text;
    for (const Candidate& candidate : candidates_)
      text += fmt::format("{}PE {}: size {}, index {}", text.empty() ? "" : "; ", candidate.pe,
                          candidate.record.size, static_cast<std::int64_t>(candidate.record.index));
    return text.empty() ? "none" : text;
  }

  /// The records of the other PEs stay unchanged until this PE acknowledges them.
  std::optional<std::int32_t> common_index() const {
    std::vector<std::uint64_t> common(words_, ~std::uint64_t{0});
    for (const Candidate& candidate : candidates_)
      for (std::size_t i = 0; i < words_; ++i)
        common[i] &= memory_.load(layout_.join_free_word(candidate.pe, i));
    return TeamSlots::lowest(common);
  }

  void acknowledge() {
    for (const auto& [pe, record] : candidates_) {
      state_.fabric().route(pe).signal(pe, layout_.join_acknowledged(state_.my_pe()), SignalOp::set,
                                       record.version);
      teams_.joins_read[static_cast<std::size_t>(pe)] = record.version;
    }
    for (const auto& [pe, record] : candidates_) {
      const std::size_t word = layout_.join_acknowledged(pe);
      const auto outcome = state_.waits().poll([&] { return memory_.load(word) >= version_; },
                                               state_.waits().deadline(), pe);
      if (outcome != WaitOutcome::ready)
        state_.waits().throw_failed(
            outcome, fmt::format("make_team(id {}, size {}, index {})", id_, size_, index_),
            fmt::format("waiting for PE {} to see this PE; {}", pe, state_.progress().describe(pe)),
            pe);
    }
  }

  WorldState& state_;
  const Memory& memory_;
  Teams& teams_;
  const ControlLayout& layout_;
  const std::uint64_t id_;
  const Pe size_;
  const Pe index_;
  const std::size_t words_;
  std::uint64_t version_ = 0;
  std::vector<Candidate> candidates_;
};

}  // namespace

Team join_team(WorldState& state, std::uint64_t id, Pe size, Pe index) {
  state.progress().checked(call_of(id), [&] {
    require(size >= 1 && size <= state.n_pes(), Code::invalid_argument,
            "SHOAL-N204: make_team of {} PEs; allowed: 1 to {}, the PEs of the world", size,
            state.n_pes());
  });
  return Join(state, id, size, index).run();
}

}  // namespace shoal::detail
