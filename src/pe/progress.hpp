// SPDX-License-Identifier: Apache-2.0
// progress.hpp: what each PE publishes about its current operation and about calls that it refused,
// for the messages of PEs that wait for it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

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

/// The collective calls of which a PE keeps the last refusal each.
enum class CallKind : std::uint32_t { team, normal, low_latency_dispatch, low_latency_combine };

/// A collective call by the numbers that all its PEs give it.
struct CallId {
  CallKind kind;
  std::uint64_t object;  ///< of a team: its index; of a group: the offset of its block
  std::uint64_t number;  ///< of the operation of that object; never 0
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

  /// Publishes that this PE refused a call because of its arguments, and why.
  void set_refusal(const CallId& call, std::string_view why) const noexcept;

  /// "PE 6 last reported combine 1840, phase send".
  std::string describe(Pe pe) const;
  /// Why `pe` refused the call; empty where it did not, or does not answer.
  std::string refusal(Pe pe, const CallId& call) const;
  Awaited awaited_by(Pe pe) const;

 private:
  std::string read(Pe pe) const;

  const Placement& placement_;
  const Memory& memory_;
  const Fabric& fabric_;
};

}  // namespace shoal::detail
