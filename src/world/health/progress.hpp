// SPDX-License-Identifier: Apache-2.0
// progress.hpp: what each PE publishes about its current operation, for the messages of PEs that
// wait for it.
#pragma once

#include <cstdint>
#include <string>

#include "shoal/heap.hpp"

namespace shoal::detail {

class Memory;
class Fabric;
struct Placement;

enum class Activity : std::uint32_t {
  idle,
  opening,
  closing,
  allocating,
  team,
  barrier,
  collective,
  waiting,
  dispatch,
  combine,
  low_latency_dispatch,
  low_latency_combine,
};

/// What a PE publishes about its wait.
struct Awaited {
  bool answers = false;  ///< the PE could be asked
  Pe pe = -1;            ///< negative: it waits for no single PE
};

/// Questions to a PE that cannot be reached end after transport::kFailureReportTimeout.
class ProgressBoard {
 public:
  ProgressBoard(const Placement& placement, const Memory& memory, const Fabric& fabric)
      : placement_(placement), memory_(memory), fabric_(fabric) {}

  /// Publishes the operation of this PE. `phase` has at most 15 characters.
  void set(Activity activity, std::uint64_t epoch, const char* phase) const noexcept;
  /// Publishes the PE that this PE waits for; negative: no single PE.
  void set_awaited(Pe pe) const noexcept;

  /// "PE 6 last reported combine 1840, phase send".
  std::string describe(Pe pe) const;
  Awaited awaited_by(Pe pe) const;

 private:
  std::string read(Pe pe) const;

  const Placement& placement_;
  const Memory& memory_;
  const Fabric& fabric_;
};

}  // namespace shoal::detail
