// SPDX-License-Identifier: Apache-2.0
// scoped_timeout.hpp: a temporary bound on the network waits of a thread.
//
// A PE that reports a failure talks to PEs that may be out of reach. Without a bound, each of them
// would cost a whole SHOAL_TIMEOUT_MS.
#pragma once

#include <chrono>

namespace shoal::transport {

/// While an instance lives, all network waits of this thread together end `limit` after its
/// construction. They then throw Error{timeout}, as after SHOAL_TIMEOUT_MS. An inner instance
/// cannot prolong an outer one.
class ScopedTimeout {
 public:
  /// Second limit of waits. timeout: waits also end after SHOAL_TIMEOUT_MS. nothing: `limit` alone
  /// counts: a start, which has a timeout of its own, may take longer.
  enum class Also { timeout, nothing };

  explicit ScopedTimeout(std::chrono::milliseconds limit, Also also = Also::timeout) noexcept;
  ~ScopedTimeout();
  ScopedTimeout(const ScopedTimeout&) = delete;
  ScopedTimeout& operator=(const ScopedTimeout&) = delete;

 private:
  std::chrono::steady_clock::time_point outer_deadline_;
  bool outer_alone_;
};

/// For reporting a failure to the other PEs, and asking them about it: enough for a live peer on a
/// busy machine.
inline constexpr std::chrono::milliseconds kFailureReportTimeout{250};

/// The deadline of a network wait of this thread that starts at `start`: after `timeout`, or
/// as a ScopedTimeout says.
std::chrono::steady_clock::time_point wait_deadline(
    std::chrono::milliseconds timeout,
    std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now()) noexcept;

}  // namespace shoal::transport
