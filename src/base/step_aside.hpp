// step_aside.hpp: what a thread does between two looks at something that another thread or PE has to bring about.
#pragma once

#include <sched.h>

#include <chrono>
#include <thread>

namespace shoal {

/// Yields the core; after kYields times in a row it sleeps for a moment instead. Yielding alone is not enough:
/// on Linux 6.18 two threads that waited and did nothing but yield were seen to keep all others from both cores of a
/// machine, those included that they waited for, until their deadlines 20 s later.
class StepAside {
 public:
  void operator()() noexcept {
    if (++idle_ < kYields) {
      sched_yield();
    } else {
      std::this_thread::sleep_for(kSleep);
    }
  }
  void reset() noexcept { idle_ = 0; }

 private:
  static constexpr unsigned kYields = 64;
  static constexpr std::chrono::microseconds kSleep{20};
  unsigned idle_ = 0;
};

}  // namespace shoal
