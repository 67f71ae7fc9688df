// SPDX-License-Identifier: Apache-2.0
// phases.hpp: runs the phases of startup, which may fail on any PE, so that all PEs fail alike.
//
// A phase has a local half that writes this PE's contribution, an all-gather, and a half that uses
// the contributions of all PEs. The all-gather also carries failures: when either half of a phase
// fails on a PE, the next all-gather reports it, and all PEs throw.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/attempt.hpp"
#include "base/blob.hpp"
#include "pe/waits.hpp"
#include "shoal/world.hpp"

namespace shoal::detail {

class PhaseRunner {
 public:
  using Blobs = std::vector<std::vector<std::byte>>;

  /// `bootstrap` may be empty until a phase has set it.
  PhaseRunner(std::shared_ptr<Bootstrap>& bootstrap, std::vector<InitPhase>& timings)
      : bootstrap_(bootstrap), timings_(timings) {}

  /// `prepare` writes this PE's contribution. After a failure it is not called, unless `always` is
  /// set. If the phase `gathers`, `use` then takes the contributions of all PEs.
  template <typename Prepare, typename Use>
  void run(const char* name, bool always, bool gathers, Prepare&& prepare, Use&& use) {
    const auto start = Clock::now();
    BlobWriter mine;
    if (!failure_ || always) step(name, [&] { prepare(mine); });
    std::chrono::nanoseconds waited{};
    if (gathers) {
      const auto asked = Clock::now();
      const Blobs all = gather(name, mine.take());
      waited = Clock::now() - asked;
      step(name, [&] { use(all); });
    }
    timings_.push_back({name, Clock::now() - start, waited});
  }

 private:
  struct Failure {
    std::string phase;
    Code code = Code::system;
    std::string message;
  };

  /// Keeps the first failure of this PE for the next all-gather.
  template <typename Step>
  void step(const char* name, Step&& body) {
    if (const auto error = attempt(body); error && !failure_) keep(name, *error);
  }
  void keep(const char* name, const Error& error);
  Blobs gather(const char* name, std::vector<std::byte> mine);
  [[noreturn]] void throw_agreed(const std::vector<std::pair<Pe, Failure>>& failures) const;

  std::shared_ptr<Bootstrap>& bootstrap_;
  std::vector<InitPhase>& timings_;
  std::optional<Failure> failure_;  // of this PE
};

}  // namespace shoal::detail
