// SPDX-License-Identifier: Apache-2.0
// define.hpp: the definition of a function.
//
//   NVSHMEM_DEFINE(void, quiet, ()) {
//     guarded("nvshmem_quiet", [&](Program& program) { program.world.quiet(); });
//   }
#pragma once

#include "nvshmem/program.hpp"
#include "nvshmemx.h"

#define NVSHMEM_DEFINE(RESULT, NAME, PARAMETERS) extern "C" RESULT nvshmem_##NAME PARAMETERS
#define NVSHMEMX_DEFINE(RESULT, NAME, PARAMETERS) extern "C" RESULT nvshmemx_##NAME PARAMETERS
