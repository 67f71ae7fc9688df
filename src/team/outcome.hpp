// SPDX-License-Identifier: Apache-2.0
// outcome.hpp: steps of a collective call that may fail on some PEs and must then fail on all.
//
// Each PE runs its step, and all PEs exchange the outcomes:
//
//   Piece mine;
//   const auto failure = attempt([&] { mine = export_piece(); });
//   const std::vector<Piece> all = exchange_or_throw(state, mine, failure, "share_buffer");
#pragma once

#include <cstring>
#include <optional>
#include <vector>

#include "base/attempt.hpp"
#include "shoal/error.hpp"
#include "team/exchange.hpp"
#include "team/teams.hpp"
#include "world/state.hpp"

namespace shoal::detail {

/// A failure as bytes for an exchange.
struct FailureBlob {
  static constexpr std::size_t kMessageBytes = 240;
  std::uint64_t failed = 0;
  Code code = Code::system;  ///< only where `failed`
  char message[kMessageBytes] = {};

  FailureBlob() = default;
  explicit FailureBlob(const std::optional<Error>& failure);
};

/// The outcome of one PE's step.
template <typename T>
struct Outcome {
  FailureBlob failure;
  T value{};
};

/// Exchanges the outcomes of all PEs of a team; the result is indexed by PE of the team. Does not
/// throw for a failed step: rethrow and rethrow_first do. `what` names the call in messages.
template <typename T>
std::vector<Outcome<T>> exchange_outcomes(TeamState& team, const T& value,
                                          const std::optional<Error>& failure, const char* what) {
  static_assert(sizeof(Outcome<T>) <= kExchangeBytes);
  const Outcome<T> mine{FailureBlob(failure), value};
  const auto blobs = exchange(team, &mine, sizeof mine, what);
  std::vector<Outcome<T>> all(blobs.size() / sizeof mine);
  std::memcpy(static_cast<void*>(all.data()), blobs.data(), blobs.size());
  return all;
}

/// The same for all PEs of the world.
template <typename T>
std::vector<Outcome<T>> exchange_outcomes(WorldState& state, const T& value,
                                          const std::optional<Error>& failure, const char* what) {
  return exchange_outcomes(state.teams().world_team(), value, failure, what);
}

/// Throws the failure of PE `pe` where `record` holds one: `own`, this PE's failure, where there is
/// one, else the text of the record with the number of that PE.
void rethrow(const FailureBlob& record, Pe pe, const std::optional<Error>& own);

template <typename T>
void rethrow_first(const std::vector<Outcome<T>>& all, const std::optional<Error>& own) {
  for (std::size_t pe = 0; pe < all.size(); ++pe)
    rethrow(all[pe].failure, static_cast<Pe>(pe), own);
}

/// The values of all PEs, by PE. Throws on all PEs when a step failed on any.
template <typename T>
std::vector<T> exchange_or_throw(WorldState& state, const T& value,
                                 const std::optional<Error>& failure, const char* what) {
  const auto all = exchange_outcomes(state, value, failure, what);
  rethrow_first(all, failure);
  std::vector<T> values;
  for (const Outcome<T>& outcome : all) values.push_back(outcome.value);
  return values;
}

/// Returns when the step has succeeded on all PEs; throws on all PEs otherwise.
void agree_on_outcome(WorldState& state, const std::optional<Error>& failure, const char* what);

}  // namespace shoal::detail
