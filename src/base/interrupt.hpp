// SPDX-License-Identifier: Apache-2.0
// interrupt.hpp: the question of a waiting thread whether to continue (shoal/interrupt.hpp).
#pragma once

namespace shoal {

/// True if the wait of this thread is to end; true once per interrupt. Waits ask about every
/// millisecond, when they check their deadline.
bool interrupted() noexcept;

/// Throws Error{system} where the wait of this thread is to end. `what` is the call that waits.
void throw_if_interrupted(const char* what);

}  // namespace shoal
