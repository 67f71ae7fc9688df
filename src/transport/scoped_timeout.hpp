// SPDX-License-Identifier: Apache-2.0
// scoped_timeout.hpp: for what is said after a failure, to PEs that may be out of reach: it must
// not take a whole SHOAL_TIMEOUT_MS once more for each of them.
#pragma once

#include <chrono>

namespace shoal::transport {

/// While one exists, this thread's waits for PEs over a network, all of them together, last no
/// longer than `limit` from its start. They then throw Error{timeout} as they do after
/// SHOAL_TIMEOUT_MS. An inner one cannot prolong an outer one.
class ScopedTimeout {
 public:
  explicit ScopedTimeout(std::chrono::milliseconds limit) noexcept;
  ~ScopedTimeout();
  ScopedTimeout(const ScopedTimeout&) = delete;
  ScopedTimeout& operator=(const ScopedTimeout&) = delete;

 private:
  std::chrono::steady_clock::time_point before_;
};

/// For telling the others, and asking them, after a failure: enough for a peer that answers, on a
/// busy machine.
inline constexpr std::chrono::milliseconds kPatience{250};

/// The deadline of a wait of this thread that starts now and has `timeout`. For networks.
std::chrono::steady_clock::time_point wait_deadline(std::chrono::milliseconds timeout) noexcept;

}  // namespace shoal::transport
