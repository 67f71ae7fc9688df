// SPDX-License-Identifier: Apache-2.0
// progress.hpp: what each PE publishes about its current operation and about calls that it refused,
// for the messages of PEs that wait for it.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "shoal/error.hpp"
#include "shoal/heap.hpp"

namespace shoal::detail {

namespace record {
class PeRecorder;
}
class Memory;
class Routes;
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

/// Description of its wait that a PE publishes.
struct Awaited {
  bool answers = false;  ///< the PE could be asked
  Pe pe = -1;            ///< negative: it waits for no single PE
};

/// Questions to a PE that cannot be reached end after transport::kFailureReportTimeout.
class ProgressBoard {
 public:
  /// `open`: whether the world is open. Nothing is published and no PE is asked while it is not.
  ProgressBoard(const std::atomic<bool>& open, const Placement& placement, const Memory& memory,
                const Routes& routes, record::PeRecorder& recorder)
      : open_(open), placement_(placement), memory_(memory), routes_(routes), recorder_(recorder) {}

  /// Publishes the operation of this PE (dispatch, epoch 1841). `phase` has at most 15 characters.
  void set(Activity activity, std::uint64_t epoch, const char* phase) const noexcept;
  /// Publishes the PE that this PE waits for; negative: no single PE. Waits call it.
  void set_awaited(Pe pe) const noexcept;

  /// Publishes that this PE refuses a collective call that other PEs may be in, and why.
  void publish_refusal(const CallId& call, std::string_view why) const noexcept;
  /// Runs `checks`, which precede `call`, and publishes what they throw as the refusal of it.
  template <typename Checks>
  auto checked(const CallId& call, Checks&& checks) const {
    try {
      return checks();
    } catch (const Error& error) {
      publish_refusal(call, error.reason());
      throw;
    }
  }

  /// "PE 6 last reported combine 1840, phase send".
  std::string describe(Pe pe) const;
  /// "; PE 3 refused its call: all_gather: target is ...", to follow another text: for the first of
  /// `pes` that published a refusal of this call. Empty where none did, or does not answer.
  std::string refusal(std::span<const Pe> pes, const CallId& call) const;
  std::string refusal(Pe pe, const CallId& call) const { return refusal(std::span(&pe, 1), call); }
  /// The PE that `pe` waits for, as `pe` publishes it.
  Awaited awaited_by(Pe pe) const;

 private:
  std::string read(Pe pe) const;
  std::string reason_of_refusal(Pe pe, const CallId& call) const;

  const std::atomic<bool>& open_;
  const Placement& placement_;
  const Memory& memory_;
  const Routes& routes_;
  record::PeRecorder& recorder_;
};

}  // namespace shoal::detail
