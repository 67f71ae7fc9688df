// SPDX-License-Identifier: Apache-2.0
#include "transport/scoped_timeout.hpp"

#include <algorithm>

namespace shoal::transport {
namespace {

using Clock = std::chrono::steady_clock;

thread_local Clock::time_point end_of_patience = Clock::time_point::max();

}  // namespace

ScopedTimeout::ScopedTimeout(std::chrono::milliseconds limit) noexcept : before_(end_of_patience) {
  end_of_patience = std::min(before_, Clock::now() + limit);
}

ScopedTimeout::~ScopedTimeout() {
  end_of_patience = before_;
}

Clock::time_point wait_deadline(std::chrono::milliseconds timeout) noexcept {
  return std::min(end_of_patience, Clock::now() + timeout);
}

}  // namespace shoal::transport
