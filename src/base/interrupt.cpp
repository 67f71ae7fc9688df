// SPDX-License-Identifier: Apache-2.0
#include "base/interrupt.hpp"

#include <atomic>

#include "base/check.hpp"
#include "shoal/interrupt.hpp"

namespace shoal {
namespace {

std::atomic<InterruptCheck> current_check = nullptr;

}  // namespace

void set_interrupt_check(InterruptCheck check) noexcept {
  current_check.store(check, std::memory_order_release);
}

bool interrupted() noexcept {
  const InterruptCheck check = current_check.load(std::memory_order_acquire);
  return check != nullptr && check();
}

void throw_if_interrupted(const char* what) {
  require(!interrupted(), Code::system, "SHOAL-N103: {} was interrupted", what);
}

}  // namespace shoal
