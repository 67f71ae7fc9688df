// SPDX-License-Identifier: Apache-2.0
// system_error.hpp: texts for errors of the operating system, with the limit behind them.
#pragma once

#include <string>

namespace shoal {

/// The text of `error` (a value of errno). Where a limit of the process or of the machine is the
/// usual cause, its value and the way to raise it follow in parentheses.
///
///   "Too many open files (this process may have 1024: raise it with `ulimit -n`)"
///
/// The language is English in every locale. Keeps errno.
std::string errno_text(int error);

}  // namespace shoal
