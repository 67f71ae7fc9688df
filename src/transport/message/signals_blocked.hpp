// SPDX-License-Identifier: Apache-2.0
// signals_blocked.hpp: starts threads that never run the program's signal handlers.
#pragma once

#include <csignal>

namespace shoal::transport::message {

/// Blocks all signals in this thread while it lives. Threads that are started meanwhile keep them
/// blocked.
class SignalsBlocked {
 public:
  SignalsBlocked() noexcept {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace shoal::transport::message
