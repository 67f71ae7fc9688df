// SPDX-License-Identifier: Apache-2.0
// shoal/shoal.h: Shoal for C11 and every language that calls C. Guide: docs/guide/c.md.
//
//   shoal_world* world = NULL;
//   if (shoal_world_open(NULL, &world) != SHOAL_OK) {
//     fprintf(stderr, "%s\n", shoal_last_error());
//     return 1;
//   }
//
// The C++ headers state what an operation does, its order, shapes and failures: world.hpp,
// heap.hpp, team.hpp, collective.hpp, ep/group.hpp. The differences in C:
//
// - Every function returns shoal_status, 0 for success, except the few that only look something up.
//   shoal_last_error has the message. A call that fails changes none of its outputs. No C++
//   exception leaves a call.
// - Objects (shoal_world, shoal_team, ...) are opaque. X_create, X_open and the like make one;
//   X_destroy ends it and takes NULL too. One thread at a time uses an object and the objects made
//   from it.
// - Structs that the caller fills or passes for a result start with their size. Initialize them
//   with the SHOAL_..._INIT of the struct, which also sets the defaults. Members are only ever
//   appended. A library takes structs of older and newer headers: members that an older one lacks
//   have their default; members that only a newer one has must be zero.
// - Results are structs of tensors in memory of the library. X_release returns the memory and
//   empties the struct; its tensors are invalid then, in copies of the struct too. Work queued on a
//   GPU continues.
//
// Compiles as C++ too. Needs 64-bit pointers.
#ifndef SHOAL_SHOAL_H
#define SHOAL_SHOAL_H

#include <shoal/c/ep.h>        // IWYU pragma: export
#include <shoal/c/ep_types.h>  // IWYU pragma: export
#include <shoal/c/gate.h>      // IWYU pragma: export
#include <shoal/c/memory.h>    // IWYU pragma: export
#include <shoal/c/status.h>    // IWYU pragma: export
#include <shoal/c/team.h>      // IWYU pragma: export
#include <shoal/c/tensor.h>    // IWYU pragma: export
#include <shoal/c/world.h>     // IWYU pragma: export

#endif  // SHOAL_SHOAL_H
