// SPDX-License-Identifier: Apache-2.0
// wait_for.hpp: waits for a state, with a deadline that grows with the load of the machine.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>

namespace shoal::test {

/// `limit`, times the number of threads per core that want to run if that exceeds one.
inline std::chrono::milliseconds grown(std::chrono::milliseconds limit) {
  double load = 0;
  getloadavg(&load, 1);
  const double share = load / std::max(1u, std::thread::hardware_concurrency());
  return std::chrono::ceil<std::chrono::milliseconds>(limit * std::max(1.0, share));
}

/// Polls until `reached()` is true. False: it was not within `limit`, which grows.
template <typename Condition>
bool wait_for(const Condition& reached,
              std::chrono::milliseconds limit = std::chrono::seconds(30)) {
  const auto deadline = std::chrono::steady_clock::now() + grown(limit);
  while (!reached()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace shoal::test
