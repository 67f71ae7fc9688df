// SPDX-License-Identifier: Apache-2.0
// interrupt.hpp: Ctrl-C ends waits.
//
// A wait releases the GIL, so Python cannot run signal handlers meanwhile. The main thread, which
// runs them, asks Python for signals while it waits (shoal/interrupt.hpp). A handler that raises an
// exception, as that of SIGINT does, ends the wait with an Error, and raise_interrupt replaces the
// Error by that exception.
#pragma once

namespace shoal::python {

/// Lets waits of the main thread end by exceptions of signal handlers.
void bind_interrupt();

/// Sets the Python error to the exception that ended a wait of this thread. False: there is none.
/// With the GIL held.
bool raise_interrupt();

/// True if an exception of a signal handler is to end the wait of this thread; it is kept for
/// raise_interrupt. Without the GIL, at any frequency.
bool check_signals() noexcept;

}  // namespace shoal::python
