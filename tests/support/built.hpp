// SPDX-License-Identifier: Apache-2.0
// built.hpp: where this build has what tests start and load.
//
// Constants of one generated source instead of macros: a path in the command that compiles a test
// would make the compile cache of one clone useless for another.
#pragma once

#include <string>

namespace shoal::test {

/// The path of a program, and of a file of the sources.
std::string program(const std::string& name);
std::string source_file(const std::string& name);

// Paths of libraries; "" where the build does not have one.
extern const char* const kFakeNccl;
extern const char* const kFakeIbverbs;
extern const char* const kBuiltIbverbs;      ///< the emulated NIC's
extern const char* const kFaultyTransports;  ///< a folder of plug-ins

}  // namespace shoal::test
