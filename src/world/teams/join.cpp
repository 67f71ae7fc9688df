// SPDX-License-Identifier: Apache-2.0
// World::make_team: PEs that know only a common id find each other.
//
// Every joining PE writes a record (id, size, its index, its free team indices) into the join board
// of every PE of the world, and watches its own board for records with the same id. When it has all
// of them it acknowledges them to their writers; a writer whose record is acknowledged by all
// members may use its place in the boards again. So two joins in a row cannot be mixed, whatever
// their ids.
#include <algorithm>

#include "base/check.hpp"
#include "world/parts.hpp"
#include "world/teams/team.hpp"

namespace shoal::detail {
namespace {

struct Candidate {
  Pe pe;
  JoinRecord record;
};

class Join {
 public:
  Join(WorldState& state, std::uint64_t id, Pe size, Pe index)
      : state_(state),
        parts_(state.parts()),
        id_(id),
        size_(size),
        index_(index),
        words_(parts_.slots.free_words().size()) {}

  Team run() {
    state_.set_progress(Activity::team, parts_.joins + 1, "join");
    publish();
    wait_for_candidates();
    const std::string problem = find_problem();
    std::vector<Pe> members(static_cast<std::size_t>(size_));
    std::uint64_t generation = 0;
    if (problem.empty()) {
      for (const Candidate& candidate : candidates_) {
        members[candidate.record.index] = candidate.pe;
        generation = std::max(generation, candidate.record.generation);
      }
    }
    const auto team_index = common_index();
    acknowledge();
    state_.set_progress(Activity::idle, parts_.joins, "team join");
    require(problem.empty(), Code::invalid_argument, "{}", problem);
    require(
        team_index.has_value(), Code::exhausted,
        "make_team(id {}, size {}): no team index is free on all members; SHOAL_MAX_TEAMS is {}",
        id_, size_, parts_.slots.count());
    return Team(new_team(state_, *team_index, generation, std::move(members)));
  }

 private:
  static constexpr std::size_t kWord = sizeof(std::uint64_t);

  void publish() {
    version_ = 2 * ++parts_.joins;
    for (Pe pe = 0; pe < parts_.n_pes; ++pe) {
      transport::Transport& route = parts_.route(pe);
      const std::size_t record = parts_.layout.join_record(parts_.my_pe);
      const auto write = [&](std::size_t offset, std::uint64_t value) {
        route.atomic(pe, AtomicOp::set, offset, value, 0, kWord);
      };
      write(record + offsetof(JoinRecord, version), version_ - 1);
      write(record + offsetof(JoinRecord, id), id_);
      write(record + offsetof(JoinRecord, size), static_cast<std::uint64_t>(size_));
      write(record + offsetof(JoinRecord, index), static_cast<std::uint64_t>(index_));
      write(record + offsetof(JoinRecord, generation), parts_.slots.next_generation);
      for (std::size_t i = 0; i < words_; ++i)
        write(parts_.layout.join_free_word(parts_.my_pe, i), parts_.slots.free_words()[i]);
      route.signal(pe, record + offsetof(JoinRecord, version), SignalOp::set, version_);
    }
  }

  /// The record of `pe` when it is complete, new to this PE and of this id.
  std::optional<Candidate> read(Pe pe) const {
    const std::size_t offset = parts_.layout.join_record(pe);
    JoinRecord record{};
    record.version = parts_.load(offset);
    if (record.version % 2 != 0 ||
        record.version <= parts_.joins_read[static_cast<std::size_t>(pe)])
      return std::nullopt;
    record.id = parts_.load(offset + offsetof(JoinRecord, id));
    record.size = parts_.load(offset + offsetof(JoinRecord, size));
    record.index = parts_.load(offset + offsetof(JoinRecord, index));
    record.generation = parts_.load(offset + offsetof(JoinRecord, generation));
    if (record.id != id_ || parts_.load(offset) != record.version) return std::nullopt;
    return Candidate{pe, record};
  }

  bool complete() {
    candidates_.clear();
    for (Pe pe = 0; pe < parts_.n_pes; ++pe)
      if (auto candidate = read(pe)) candidates_.push_back(*candidate);
    return candidates_.size() >= static_cast<std::size_t>(size_) || sizes_differ();
  }

  bool sizes_differ() const {
    return std::any_of(candidates_.begin(), candidates_.end(), [&](const Candidate& candidate) {
      return candidate.record.size != static_cast<std::uint64_t>(size_);
    });
  }

  void wait_for_candidates() {
    const auto outcome = state_.poll([&] { return complete(); }, state_.deadline());
    if (outcome != WaitOutcome::ready)
      state_.throw_wait_failed(
          outcome, fmt::format("make_team(id {}, size {}, index {})", id_, size_, index_),
          fmt::format("waiting for {} members, {} came ({})", size_, candidates_.size(), list()));
    if (!sizes_differ()) return;
    // Nobody waits for acknowledgements here, but the same records must not spoil a later attempt.
    for (const auto& [pe, record] : candidates_)
      parts_.joins_read[static_cast<std::size_t>(pe)] = record.version;
    fail(Code::mismatch, "make_team(id {}): PEs give different sizes: {}", id_, list());
  }

  /// Empty when the members have the indices 0 .. size - 1.
  std::string find_problem() const {
    if (candidates_.size() > static_cast<std::size_t>(size_))
      return fmt::format("make_team(id {}, size {}): {} PEs joined: {}", id_, size_,
                         candidates_.size(), list());
    std::vector<bool> taken(static_cast<std::size_t>(size_));
    for (const Candidate& candidate : candidates_) {
      const auto index = static_cast<std::int64_t>(candidate.record.index);
      if (index < 0 || index >= size_)
        return fmt::format("make_team(id {}, size {}): PE {} has index {}; allowed: 0 to {}", id_,
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
    return text.empty() ? "nobody" : text;
  }

  /// The members' records stay as they are until acknowledged.
  std::optional<std::int32_t> common_index() const {
    std::vector<std::uint64_t> common(words_, ~std::uint64_t{0});
    for (const Candidate& candidate : candidates_)
      for (std::size_t i = 0; i < words_; ++i)
        common[i] &= parts_.load(parts_.layout.join_free_word(candidate.pe, i));
    return TeamSlots::lowest(common);
  }

  void acknowledge() {
    for (const auto& [pe, record] : candidates_) {
      parts_.route(pe).signal(pe, parts_.layout.join_acknowledged(parts_.my_pe), SignalOp::set,
                              record.version);
      parts_.joins_read[static_cast<std::size_t>(pe)] = record.version;
    }
    for (const auto& [pe, record] : candidates_) {
      const std::size_t word = parts_.layout.join_acknowledged(pe);
      const auto outcome =
          state_.poll([&] { return parts_.load(word) >= version_; }, state_.deadline(), pe);
      if (outcome != WaitOutcome::ready)
        state_.throw_wait_failed(
            outcome, fmt::format("make_team(id {}, size {}, index {})", id_, size_, index_),
            fmt::format("waiting for PE {} to see this PE; {}", pe, state_.describe_progress(pe)));
    }
  }

  WorldState& state_;
  WorldParts& parts_;
  const std::uint64_t id_;
  const Pe size_;
  const Pe index_;
  const std::size_t words_;
  std::uint64_t version_ = 0;
  std::vector<Candidate> candidates_;
};

}  // namespace

Team join_team(WorldState& state, std::uint64_t id, Pe size, Pe index) {
  require(size >= 1 && size <= state.n_pes(), Code::invalid_argument,
          "make_team of {} PEs; allowed: 1 to {}, the PEs of the world", size, state.n_pes());
  return Join(state, id, size, index).run();
}

}  // namespace shoal::detail
