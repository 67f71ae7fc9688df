// SPDX-License-Identifier: Apache-2.0
// shoal/interrupt.hpp: ending the waits of a process from outside, for bindings to languages that
// handle signals themselves.
//
//   shoal::set_interrupt_check([]() noexcept { return std::exchange(ctrl_c, 0) != 0; });
#pragma once

#include <shoal/config.hpp>

namespace shoal {

/// Returns true to end the wait of the calling thread.
using InterruptCheck = bool (*)() noexcept;

/// Sets the function that a thread calls about every millisecond while it waits for other PEs;
/// nullptr: none, the initial state. Where it returns true, the wait throws Error{system}: "...
/// was interrupted". The operation of the wait is then in the state that errors.md describes for a
/// timeout. ep::Group::synchronize is interrupted too; its work on the GPU continues, and the group
/// stays usable. May be called by any thread.
///
/// Not interrupted, but bounded by the deadlines of what they wait for: kernels on a GPU that wait
/// for other PEs; the end of groups and worlds, which waits for such kernels; and work of a group's
/// own thread (dispatch_async), for which only the binding's waits are interrupted.
void set_interrupt_check(InterruptCheck check) noexcept;

}  // namespace shoal
