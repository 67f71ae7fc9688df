// SPDX-License-Identifier: Apache-2.0
// health.hpp: which PEs of the world have closed it, left it, failed or ended.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "pe/cause.hpp"
#include "pe/control.hpp"
#include "pe/memory.hpp"
#include "pe/placement.hpp"
#include "pe/routes.hpp"
#include "shoal/bootstrap.hpp"

namespace shoal::detail {

/// Reads three sources: the status board in this PE's control block, which the other PEs write; the
/// transports, which notice that a process ended; the bootstrap. Any thread of this PE may call.
///
/// A PE that gives up because of another one may end before its reason has arrived here, and a
/// network reports ends in any order. So an end that only a network has noticed is a suspicion,
/// until the bootstrap says which PE failed first, or for transport::kFailureReportTimeout.
class Health {
 public:
  static constexpr Pe kAnyPe = -1;

  /// `open`: whether the world is open. While it is not, nothing has failed and nothing is
  /// published.
  Health(const std::atomic<bool>& open, const Placement& placement, const Memory& memory,
         const Routes& routes)
      : open_(open), placement_(placement), memory_(memory), routes_(routes) {}

  /// Called once, before the world is open.
  void start(std::shared_ptr<Bootstrap> bootstrap);
  /// Called when the world is no longer open, after the threads that query are gone.
  void stop() noexcept { bootstrap_.reset(); }

  // Queries. Each reads all sources first, which takes about a microsecond.

  /// "PE 3: ..." for the first failure that ends a wait for `awaited`. Names the PE with which the
  /// failure began. A PE that left the world without closing it ends only waits for itself and
  /// waits for any PE.
  std::optional<std::string> failure(Pe awaited = kAnyPe) noexcept;
  /// True if world PE `pe` has ended, left or reported a failure.
  bool has_failed(Pe pe) noexcept;
  /// The failure that made the world fail: of this PE, or of the first PE that failed.
  std::optional<FailureCause> first_cause() noexcept;
  /// The cause that PE `by` published last.
  std::optional<FailureCause> published_cause(Pe by) noexcept;

  // Announcements to all other PEs. A PE that cannot be reached learns from the bootstrap or from
  // its own deadline.

  /// Publishes why this PE gives something up, such as a group, for published_cause on other PEs.
  /// Call it before any signal that makes other PEs give up too. Has no effect on waits, nor once
  /// this PE has announced its end.
  void publish_cause(const FailureCause& cause) noexcept;
  /// Announces that this PE closes or leaves the world. Only the first announcement counts.
  void announce(PeerStatus status, const std::string& message) noexcept;
  /// Announces to all other PEs that this one has failed: their waits end with Error{peer_failed}
  /// and `reason`, or with the first cause where another PE's failure is the cause. A PE that
  /// merely left is the cause where `reason` quotes it. Waits of this PE end as well.
  void fail_world(const std::string& reason) noexcept;

 private:
  struct Peer {
    PeerStatus status = PeerStatus::running;
    std::string failure;  ///< "PE 3: ..."; empty: none
    std::uint64_t cause_sequence = 0;
    std::optional<FailureCause> cause;
  };

  // With the mutex locked.
  void update();
  void read_board();
  void read_cause(Pe pe);
  void read_ended();
  void read_bootstrap();
  void judge_suspects();
  void record(Pe pe, PeerStatus status, const std::string& reason);
  std::optional<std::string> find_failure(Pe awaited) const;
  std::optional<FailureCause> cause_quoted_in(const std::string& reason) const;

  std::string announce_failure(const std::string& reason) noexcept;
  template <typename Write>
  void write_to_all(const Write& write) noexcept;

  const std::atomic<bool>& open_;
  const Placement& placement_;
  const Memory& memory_;
  const Routes& routes_;
  std::shared_ptr<Bootstrap> bootstrap_;
  std::atomic<bool> announced_ = false;
  std::mutex mutex_;
  std::uint64_t alerts_seen_ = 0;
  std::vector<Peer> peers_;
  std::vector<std::size_t> ended_seen_;                ///< by transport
  std::vector<std::pair<Pe, std::string>> suspects_;   ///< with what was noticed
  std::chrono::steady_clock::time_point suspected_{};  ///< the first of them
  std::optional<FailureCause> world_failure_;
  std::uint64_t causes_published_ = 0;
};

}  // namespace shoal::detail
