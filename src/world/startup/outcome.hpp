// SPDX-License-Identifier: Apache-2.0
// outcome.hpp: steps of a collective call that may fail on some PEs and then must fail on all.
#pragma once

#include <exception>
#include <optional>

#include "shoal/error.hpp"
#include "world/state.hpp"

namespace shoal::detail {

/// Runs `step`; returns what it throws.
template <typename Step>
std::optional<Error> attempt(Step&& step) {
  try {
    step();
  } catch (const Error& error) {
    return error;
  } catch (const std::exception& error) {
    return Error(Code::system, error.what());
  }
  return std::nullopt;
}

/// A failure as bytes, for an exchange.
struct FailureRecord {
  static constexpr std::size_t kMessageBytes = 240;
  std::uint64_t failed = 0;
  Code code = Code::system;  ///< only where `failed`
  char message[kMessageBytes] = {};

  FailureRecord() = default;
  explicit FailureRecord(const std::optional<Error>& failure);
  /// Throws, where there is a failure: `own` on the PE whose it is, the record's text with that
  /// PE's number on others.
  void rethrow(Pe pe, const std::optional<Error>& own) const;
};

/// Returns when all PEs of the world have come here without failure; throws on all of them
/// otherwise. `what` names it.
void agree_on_outcome(WorldState& state, const std::optional<Error>& failure, const char* what);

}  // namespace shoal::detail
