// SPDX-License-Identifier: Apache-2.0
// executor.hpp: takes requests from a ring, starts them over the transports, and completes them.
//
// Queues. The requests to one PE form a queue and start in the order of their positions. While a
// transport has no room for one queue (PolledOperations::has_room), the other queues continue. The
// ring bounds all queues, because a slot is reused only after its request, and all before it, are
// finished.
//
// Completion. A queue waits for one point (PolledOperations::reached) at a time, which covers all
// requests that started before it. A fence holds back the later requests of each queue until the
// earlier ones are complete.
//
// Failure. The first error of a request, or a queue that makes no progress for the timeout, fails
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

namespace shoal::transport::proxy {

class Executor {
 public:
  explicit Executor(const ProxyContext& context);

  /// Takes, starts and completes what is possible without waiting. Returns whether anything
  /// happened. Does nothing once the ring has failed or was aborted.
  bool step() noexcept;
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
    std::uint64_t started_bytes = 0;  ///< of a put or get: bytes whose transfers have started
    std::uint32_t queues = 0;         ///< of a fence: queues that it still holds back
    bool complete = false;
  };

  struct PeQueue {
    Pe pe = -1;
    std::optional<PolledRoute> route;   ///< found at the first request
    std::deque<std::uint64_t> waiting;  ///< positions, to be started
    std::deque<std::uint64_t> started;
    bool point_set = false;
    PolledOperations::Point point;
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
  void append(PeQueue& queue, std::uint64_t position);
  bool serve(PeQueue& queue);
  bool start_waiting(PeQueue& queue);
  bool start(PeQueue& queue, std::uint64_t position);
  bool start_transfer(PeQueue& queue, Entry& entry);
  bool finish_started(PeQueue& queue);
  void complete(std::uint64_t position) noexcept;
  bool free_slots() noexcept;
  void check(PeQueue& queue, bool health);
  void renew(PeQueue& queue) { queue.deadline = Deadline(Clock::now() + context_.timeout); }
  void fail(Code code, std::uint64_t position, const Request& request,
            const std::string& reason) noexcept;

  const ProxyContext context_;
  const device::proxy::Ring ring_;
  std::vector<Entry> entries_;   ///< by slot
  std::vector<PeQueue> queues_;  ///< by PE
  std::vector<Pe> active_;       ///< queues with requests
  std::uint64_t next_ = 0;       ///< position to be taken next
  std::uint64_t completed_ = 0;
  Clock::time_point next_check_{};

  mutable std::mutex mutex_;
  std::optional<Error> failure_;
};

}  // namespace shoal::transport::proxy
