// SPDX-License-Identifier: Apache-2.0
// shoal/interrupt.hpp: ending the waits of a process from outside, for bindings to languages that
// handle signals themselves.
//
//   shoal::set_interrupt_check([] { return std::exchange(ctrl_c, 0) != 0; });
#pragma once

#include <shoal/config.hpp>

namespace shoal {

/// Returns true to end the wait of the calling thread.
using InterruptCheck = bool (*)() noexcept;

/// Sets the function that a thread calls about every millisecond while it waits for other PEs;
/// nullptr: none, the initial state. Where it returns true, the wait throws Error{system}: "...
/// was interrupted". What the wait belonged to is then in the state that errors.md describes for a
/// timeout. Waits for kernels on a GPU go on. May be called by any thread.
void set_interrupt_check(InterruptCheck check) noexcept;

}  // namespace shoal
