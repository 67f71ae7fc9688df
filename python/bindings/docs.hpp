// SPDX-License-Identifier: Apache-2.0
// docs.hpp: docstrings, wrapped as help() shows them.
#pragma once

#include <cstddef>

namespace shoal::python {

/// The text in lines of at most 88 characters; "\n" starts a new one. Lives as long as the program.
const char* operator""_doc(const char* text, std::size_t length);

}  // namespace shoal::python
