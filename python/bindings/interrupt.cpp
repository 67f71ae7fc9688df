// SPDX-License-Identifier: Apache-2.0
#include "interrupt.hpp"

#include <nanobind/nanobind.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>

#include "shoal/interrupt.hpp"

namespace shoal::python {
namespace {

using Clock = std::chrono::steady_clock;

/// Between two questions to Python. Each takes the GIL, which a thread that computes in Python
/// gives up only after 5 ms.
constexpr std::chrono::milliseconds kInterval{50};

// Only the main thread uses these.
PyObject *kept_type = nullptr, *kept_value = nullptr, *kept_traceback = nullptr;
Clock::time_point next_question{};  // NOLINT(bugprone-throwing-static-initialization)

bool in_main_thread() noexcept {
  return syscall(SYS_gettid) == getpid();
}

void keep_error() noexcept {
  Py_CLEAR(kept_type);
  Py_CLEAR(kept_value);
  Py_CLEAR(kept_traceback);
  PyErr_Fetch(&kept_type, &kept_value, &kept_traceback);
}

/// For a call that returned no error although its wait was interrupted.
int raise_later(void* /*unused*/) {
  return raise_interrupt() ? -1 : 0;
}

}  // namespace

bool check_signals() noexcept {
  const Clock::time_point now = Clock::now();
  if (!in_main_thread() || now < next_question) return false;
  next_question = now + kInterval;
  if (Py_IsInitialized() == 0) return false;
  const PyGILState_STATE state = PyGILState_Ensure();
  // A destructor may wait while an error is set.
  const bool raised = PyErr_Occurred() == nullptr && PyErr_CheckSignals() != 0;
  if (raised) {
    keep_error();
    Py_AddPendingCall(&raise_later, nullptr);
  }
  PyGILState_Release(state);
  return raised;
}

bool raise_interrupt() {
  if (!in_main_thread() || kept_type == nullptr) return false;
  PyErr_Restore(kept_type, kept_value, kept_traceback);
  kept_type = kept_value = kept_traceback = nullptr;
  return true;
}

void bind_interrupt() {
  set_interrupt_check(&check_signals);
}

}  // namespace shoal::python
