// SPDX-License-Identifier: Apache-2.0
// define.hpp: the definition of a routine.
//
//   SHMEM_DEFINE(void, quiet, ()) {
//     guarded("shmem_quiet", [&](Program& program) { program.world.quiet(); });
//   }
//
// defines pshmem_quiet and, as a weak alias, shmem_quiet. Profiling libraries replace the latter.
#pragma once

#include "pshmem.h"
#include "shmem/program.hpp"

#define SHMEM_DEFINE(RESULT, NAME, PARAMETERS)                                             \
  extern "C" __attribute__((weak, alias("pshmem_" #NAME))) RESULT shmem_##NAME PARAMETERS; \
  extern "C" RESULT pshmem_##NAME PARAMETERS
