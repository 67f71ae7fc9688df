// SPDX-License-Identifier: Apache-2.0
// fiber_context.hpp: a change from one stack to another.
#pragma once

#include <ucontext.h>

#include <csetjmp>
#include <cstddef>

// The sanitizers know swapcontext, but take a jump to another stack for the end of frames.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define SHOAL_FAKE_GPU_JUMPS 0
#else
#define SHOAL_FAKE_GPU_JUMPS 1
#endif

namespace shoal::test::fake_gpu {

/// A place where execution stopped, and goes on at `change_to`.
///
/// swapcontext asks the kernel for the mask of signals at each change, which was a fifth of the
/// processor time of all tests; after its first start a context is therefore left and entered by
/// _setjmp and _longjmp, as coroutines of QEMU are.
class FiberContext {
 public:
  /// The next change to this context calls `entry`, which must not return, on this stack.
  void prepare(char* stack, std::size_t bytes, void (*entry)()) {
    getcontext(&context_);
    context_.uc_stack.ss_sp = stack;
    context_.uc_stack.ss_size = bytes;
    context_.uc_link = nullptr;
    makecontext(&context_, entry, 0);
    started_ = false;
  }
  /// Stops here, and goes on where `to` stopped.
  void change_to(FiberContext& to) {
#if SHOAL_FAKE_GPU_JUMPS
    started_ = true;
    if (_setjmp(place_) != 0) return;
    if (to.started_) _longjmp(to.place_, 1);
    to.started_ = true;
    setcontext(&to.context_);
#else
    swapcontext(&context_, &to.context_);
#endif
  }

 private:
  ucontext_t context_{};
  std::jmp_buf place_{};
  bool started_ = false;
};

}  // namespace shoal::test::fake_gpu
