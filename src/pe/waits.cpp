// SPDX-License-Identifier: Apache-2.0
#include "pe/waits.hpp"

#include <exception>

#include "base/check.hpp"
#include "base/interrupt.hpp"
#include "base/log.hpp"
#include "pe/health.hpp"
#include "pe/memory.hpp"
#include "pe/placement.hpp"
#include "pe/progress.hpp"
#include "pe/routes.hpp"
#include "transport/scoped_timeout.hpp"
#include "transport/transport.hpp"

namespace shoal::detail {

void Waits::pause() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

WaitOutcome Waits::check_health(bool late, Pe awaited, LongWait& wait,
                                Clock::time_point now) noexcept {
  progress_.set_awaited(awaited);
  if (health_.failure(awaited)) return WaitOutcome::peer_failed;
  if (interrupted()) return WaitOutcome::interrupted;
  if (!late && !wait.reported && now - wait.start >= settings_.warn_after) {
    wait.reported = true;
    warn_of(awaited, now - wait.start);
  }
  return late ? WaitOutcome::timeout : WaitOutcome::ready;
}

/// Names this PE's operation and where the PEs are that it may be waiting for.
void Waits::warn_of(Pe awaited, Clock::duration waited) const noexcept {
  constexpr Pe kMostNamed = 8;
  // PEs that do not answer must not hold up the wait.
  const Clock::time_point end = Clock::now() + transport::kFailureReportTimeout;
  const auto [me, n] = std::pair(placement_.my_pe, placement_.n_pes);
  try {
    std::string others;
    Pe named = 0;
    for (Pe pe = 0; pe < n && named < kMostNamed && Clock::now() < end; ++pe) {
      if (pe == me || (awaited != kAnyPe && pe != awaited)) continue;
      others += "; " + progress_.describe(pe);
      ++named;
    }
    log::warn(
        "SHOAL-N174: PE {} of {} has waited for {} s and continues: {}{}; Settings: "
        "SHOAL_WARN_AFTER_MS, SHOAL_TIMEOUT_MS.",
        me, n, std::chrono::duration_cast<std::chrono::seconds>(waited).count(),
        progress_.describe(me), others);
  } catch (const std::exception&) {  // no memory for a message
  }
}

void Waits::wake(Pe pe) noexcept {
  if (open_) routes_.route(pe).wake(pe);
}

WaitPoint& Waits::wait_point() const noexcept {
  return *reinterpret_cast<WaitPoint*>(memory_.control(memory_.layout().wait_point()));
}

bool Waits::progress_networks() noexcept {
  return routes_.progress();
}

void Waits::throw_failed(WaitOutcome outcome, const std::string& what, const std::string& detail,
                         Pe awaited) const {
  const auto [me, n] = std::pair(placement_.my_pe, placement_.n_pes);
  if (outcome == WaitOutcome::peer_failed)
    fail(Code::peer_failed, "SHOAL-N175: {} failed on PE {} of {}: {}; it was {}", what, me, n,
         health_.failure(awaited).value_or("a PE of the world failed"), detail);
  if (outcome == WaitOutcome::interrupted)
    fail(Code::system, "SHOAL-N176: {} was interrupted on PE {} of {}: {}", what, me, n, detail);
  fail(Code::timeout,
       "SHOAL-N170: {} timed out after {} ms on PE {} of {}: {}; Setting: SHOAL_TIMEOUT_MS.", what,
       settings_.timeout.count(), me, n, detail);
}

}  // namespace shoal::detail
