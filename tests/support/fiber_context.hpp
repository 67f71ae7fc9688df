// SPDX-License-Identifier: Apache-2.0
// fiber_context.hpp: several stacks in one thread.
#pragma once

#include <ucontext.h>

#include <csetjmp>
#include <cstddef>

namespace shoal::test {

/// The sanitizers take a change of stacks for the end of frames.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr bool kHasFibers = false;
#else
inline constexpr bool kHasFibers = true;
#endif

/// A place where execution stopped, and continues at `change_to`.
///
/// Only its first start uses the functions of ucontext.h: swapcontext asks the kernel for the mask
/// of signals at each change, which took a fifth of the processor time of the tests of threads,
/// units and OpenSHMEM.
class FiberContext {
 public:
  /// The next change to this context calls `entry`, which must not return, on this stack.
  void prepare(std::byte* stack, std::size_t bytes, void (*entry)()) {
    getcontext(&start_);
    start_.uc_stack.ss_sp = stack;
    start_.uc_stack.ss_size = bytes;
    makecontext(&start_, entry, 0);
    started_ = false;
  }
  /// Stops here, and continues where `to` stopped.
  void change_to(FiberContext& to) {
    started_ = true;
    if (_setjmp(place_) != 0) return;
    if (to.started_) _longjmp(to.place_, 1);
    setcontext(&to.start_);
  }

 private:
  ucontext_t start_{};
  std::jmp_buf place_{};
  bool started_ = false;
};

}  // namespace shoal::test
