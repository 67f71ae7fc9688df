// SPDX-License-Identifier: Apache-2.0
// executor.hpp: takes requests from a ring, starts them over the transports, and completes them.
//
// Lanes. The requests to one PE form a lane and start in the order of their positions. Lanes are
// independent: one whose transport has no room (Transport::has_room) holds its requests back while
// the others go on. The ring bounds all of them, because a slot is reused only after its request,
// and all before it, are finished.
//
// Completion. A lane has one point (Transport::reached) on its way at a time, which covers all
// requests that started before it. A fence holds back the later requests of each lane until the
// earlier ones are complete.
//
// Failure. The first error of a request, or a lane that makes no progress for the timeout, fails
// the ring.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <vector>

#include "base/deadline.hpp"
#include "transport/proxy.hpp"
#include "transport/transport.hpp"

namespace shoal::transport::proxy {

class Executor {
 public:
  explicit Executor(const ProxyContext& context);

  /// Takes, starts and completes what is possible without waiting. Returns whether anything
  /// happened. Does nothing once the ring has failed or was aborted.
  bool step() noexcept;
  /// Whether requests have been taken that are not finished.
  bool busy() const noexcept { return completed_ != next_; }
  void abort() noexcept;

  // From any thread.
  std::optional<Error> failure() const;
  device::proxy::State state() const noexcept;
  std::uint64_t completed() const noexcept;

 private:
  using Clock = std::chrono::steady_clock;
  using Request = device::proxy::Request;

  struct Entry {
    Request request;
    std::uint64_t started_bytes = 0;  ///< of a put: requests of the transport that have started
    std::uint32_t lanes = 0;          ///< of a fence: lanes that it still holds back
    bool complete = false;
  };

  struct Lane {
    Pe pe = -1;
    std::optional<ProxyRoute> route;    ///< found at the first request
    std::deque<std::uint64_t> waiting;  ///< positions, to be started
    std::deque<std::uint64_t> started;
    bool pointed = false;
    Transport::Point point;
    std::uint64_t covered = 0;  ///< the last position that `point` covers
    Deadline deadline{Clock::time_point{}};
    bool active = false;  ///< listed in active_

    bool empty() const noexcept { return waiting.empty() && started.empty(); }
  };

  Entry& entry(std::uint64_t position) noexcept { return entries_[position % ring_.n_slots]; }
  device::proxy::Response& response(std::uint64_t position) const noexcept {
    return ring_.responses[position % ring_.n_slots];
  }
  bool take();
  void accept(std::uint64_t position, const Request& request);
  void append(Lane& lane, std::uint64_t position);
  bool serve(Lane& lane);
  bool start_waiting(Lane& lane);
  bool start(Lane& lane, std::uint64_t position);
  bool start_put(Lane& lane, Entry& entry);
  bool finish_started(Lane& lane);
  void complete(std::uint64_t position) noexcept;
  bool publish() noexcept;
  void check(Lane& lane, bool health);
  void renew(Lane& lane) { lane.deadline = Deadline(Clock::now() + context_.timeout); }
  void fail(Code code, std::uint64_t position, const Request& request,
            const std::string& reason) noexcept;

  const ProxyContext context_;
  const device::proxy::Ring ring_;
  std::vector<Entry> entries_;  ///< by slot
  std::vector<Lane> lanes_;     ///< by PE
  std::vector<Pe> active_;      ///< lanes with requests
  std::uint64_t next_ = 0;      ///< position to be taken next
  std::uint64_t completed_ = 0;
  Clock::time_point next_check_{};

  mutable std::mutex mutex_;
  std::optional<Error> failure_;
};

}  // namespace shoal::transport::proxy
