// SPDX-License-Identifier: Apache-2.0
#include "transport/scoped_timeout.hpp"

#include <algorithm>

namespace shoal::transport {
namespace {

using Clock = std::chrono::steady_clock;

thread_local Clock::time_point scope_deadline = Clock::time_point::max();

}  // namespace

ScopedTimeout::ScopedTimeout(std::chrono::milliseconds limit) noexcept
    : outer_deadline_(scope_deadline) {
  scope_deadline = std::min(outer_deadline_, Clock::now() + limit);
}

ScopedTimeout::~ScopedTimeout() {
  scope_deadline = outer_deadline_;
}

Clock::time_point wait_deadline(std::chrono::milliseconds timeout,
                                Clock::time_point start) noexcept {
  return std::min(scope_deadline, start + timeout);
}

}  // namespace shoal::transport
