// SPDX-License-Identifier: Apache-2.0
#include "transport/scoped_timeout.hpp"

#include <algorithm>

namespace shoal::transport {
namespace {

using Clock = std::chrono::steady_clock;

thread_local Clock::time_point scope_deadline = Clock::time_point::max();
thread_local bool scope_alone = false;  ///< Also::nothing

}  // namespace

ScopedTimeout::ScopedTimeout(std::chrono::milliseconds limit, Also also) noexcept
    : outer_deadline_(scope_deadline), outer_alone_(scope_alone) {
  scope_deadline = std::min(outer_deadline_, Clock::now() + limit);
  scope_alone = also == Also::nothing;
}

ScopedTimeout::~ScopedTimeout() {
  scope_deadline = outer_deadline_;
  scope_alone = outer_alone_;
}

Clock::time_point wait_deadline(std::chrono::milliseconds timeout,
                                Clock::time_point start) noexcept {
  return scope_alone ? scope_deadline : std::min(scope_deadline, start + timeout);
}

}  // namespace shoal::transport
