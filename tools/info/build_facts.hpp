// SPDX-License-Identifier: Apache-2.0
// build_facts.hpp: facts that CMake records about this build (build_facts.cpp.in). The commit is
// looked up again after every commit.
#pragma once

namespace shoal::info {

extern const char* const kVersion;    ///< "0.2.0"
extern const char* const kCommit;     ///< "26af836", "unknown" outside a git clone
extern const char* const kBuildType;  ///< "Release"
extern const char* const kCompiler;   ///< "GNU 12.2.0"
extern const char* const kCuda;       ///< "13.0.88 for 90a", "none"

}  // namespace shoal::info
