// SPDX-License-Identifier: Apache-2.0
// round.hpp: the state of the current collective call: which PEs have called, and their
// contributions. Used by the TCP root and by the bootstrap for threads.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bootstrap/wire.hpp"

namespace shoal::bootstrap {

/// "PE 2 of 8" or "PEs 2, 5 of 8". A long list is truncated.
std::string name_pes(std::span<const Pe> pes, std::int32_t n_pes);

class Round {
 public:
  explicit Round(std::int32_t n_pes) : contributions_(static_cast<std::size_t>(n_pes)) {}

  /// Adds a PE's call. Returns Failure{mismatch} if another PE made a different call.
  std::optional<Failure> arrive(Pe pe, Call call);
  bool pending() const { return arrived_ > 0; }
  bool complete() const { return arrived_ == contributions_.size(); }
  Call::Kind kind() const { return kind_; }
  /// The call in the form barrier("heap").
  std::string name() const;
  /// The failure to report if the deadline of the call has passed.
  Failure timed_out(std::chrono::milliseconds limit) const;
  /// Returns the contributions by PE and clears the round for the next call.
  std::vector<Bytes> take();

 private:
  std::vector<std::optional<Bytes>> contributions_;
  std::size_t arrived_ = 0;
  Pe first_ = -1;
  Call::Kind kind_ = Call::Kind::barrier;
  std::string step_;
};

}  // namespace shoal::bootstrap
