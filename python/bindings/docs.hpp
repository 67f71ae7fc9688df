// SPDX-License-Identifier: Apache-2.0
// docs.hpp: docstrings, wrapped for help().
#pragma once

#include <cstddef>

namespace shoal::python {

/// The text in lines of at most 88 characters. "\n" starts a new line. Lines that start with a
/// space (examples) stay as they are. Lives as long as the program.
const char* operator""_doc(const char* text, std::size_t length);

}  // namespace shoal::python
