// SPDX-License-Identifier: Apache-2.0
// round.hpp: who has come to the current collective call, and with what. Shared by the TCP root and
// the threads of one process.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bootstrap/tcp/wire.hpp"

namespace shoal::bootstrap {

/// "PE 2 of 8" or "PEs 2, 5 of 8"; a long list is cut.
std::string name_pes(std::span<const Pe> pes, std::int32_t n_pes);

class Round {
 public:
  explicit Round(std::int32_t n_pes) : contributions_(static_cast<std::size_t>(n_pes)) {}

  /// Returns Failure{mismatch} when another PE made a different call.
  std::optional<Failure> arrive(Pe pe, Call call);
  bool pending() const { return arrived_ > 0; }
  bool complete() const { return arrived_ == contributions_.size(); }
  Call::Kind kind() const { return kind_; }
  /// barrier("heap")
  std::string name() const;
  /// What to say when the deadline of the call has passed.
  Failure timed_out(std::chrono::milliseconds limit) const;
  /// The contributions by PE; the round is empty again, for the next call.
  std::vector<Bytes> take();

 private:
  std::vector<std::optional<Bytes>> contributions_;
  std::size_t arrived_ = 0;
  Pe first_ = -1;
  Call::Kind kind_ = Call::Kind::barrier;
  std::string step_;
};

}  // namespace shoal::bootstrap
