// SPDX-License-Identifier: Apache-2.0
// shoal/c/team.h: teams and their collectives (shoal/team.hpp, shoal/collective.hpp).
#ifndef SHOAL_C_TEAM_H
#define SHOAL_C_TEAM_H

#include <shoal/c/status.h>
#include <shoal/c/tensor.h>
#include <shoal/c/world.h>

#ifdef __cplusplus
extern "C" {
#endif

// Teams.

typedef struct shoal_team shoal_team;
enum {
  SHOAL_TEAM_WORLD = 0,       ///< all PEs
  SHOAL_TEAM_NODE = 1,        ///< PEs of this PE's node
  SHOAL_TEAM_SHARED = 2,      ///< PEs whose heaps this PE reaches by load and store
  SHOAL_TEAM_SAME_INDEX = 3,  ///< PEs with this PE's index on every node
  SHOAL_TEAM_SELF = 4         ///< this PE alone
};

/// Makes a handle of a predefined team, SHOAL_TEAM_*. Not collective.
SHOAL_API shoal_status shoal_world_team(const shoal_world* world, int32_t which, shoal_team** team);
/// Makes the team of `count` PEs of `team`: start, start + stride, .... Collective over `team`. One
/// call makes any number of disjoint teams: PEs of the same set pass the same numbers. *part is
/// NULL on PEs outside the set that they pass.
SHOAL_API shoal_status shoal_team_split(const shoal_team* team, int32_t start, int32_t stride,
                                        int32_t count, shoal_team** part);
/// Frees the handle in any case. For a team of shoal_team_split it is collective over the team and
/// returns its slot (SHOAL_MAX_TEAMS), unless the world is closed.
SHOAL_API shoal_status shoal_team_destroy(shoal_team* team);
SHOAL_API shoal_status shoal_team_pe(const shoal_team* team, int32_t* pe);
SHOAL_API shoal_status shoal_team_size(const shoal_team* team, int32_t* size);
/// PE `pe` of the team as numbered in the world.
SHOAL_API shoal_status shoal_team_world_pe(const shoal_team* team, int32_t pe, int32_t* world_pe);

// Collectives. Addresses lie in this PE's heap, at the same offset on every PE of the team, except
// those of shoal_all_to_all_v.

enum {
  SHOAL_SUM = 0,
  SHOAL_PROD = 1,
  SHOAL_MIN = 2,
  SHOAL_MAX = 3,
  SHOAL_BIT_AND = 4,
  SHOAL_BIT_OR = 5,
  SHOAL_BIT_XOR = 6
};

/// Completes this PE's operations, then waits for all PEs.
SHOAL_API shoal_status shoal_barrier(const shoal_team* team);
/// Waits for all PEs. Operations stay outstanding.
SHOAL_API shoal_status shoal_sync(const shoal_team* team);
/// `bytes` bytes from PE `root` of the team to all.
SHOAL_API shoal_status shoal_broadcast(const shoal_team* team, void* target, const void* source,
                                       size_t bytes, int32_t root);
/// `bytes` bytes of each PE.
SHOAL_API shoal_status shoal_all_gather(const shoal_team* team, void* target, const void* source,
                                        size_t bytes);
/// `bytes` bytes for each pair of PEs.
SHOAL_API shoal_status shoal_all_to_all(const shoal_team* team, void* target, const void* source,
                                        size_t bytes);
/// The four arrays have one element per PE of the team, in bytes.
SHOAL_API shoal_status shoal_all_to_all_v(const shoal_team* team, void* target,
                                          const size_t* receive_bytes,
                                          const size_t* receive_offsets, const void* source,
                                          const size_t* send_bytes, const size_t* send_offsets);
/// dtype: SHOAL_FLOAT32 and so on. op: SHOAL_SUM and so on. `count` elements, in
/// shoal_reduce_scatter for each PE.
SHOAL_API shoal_status shoal_reduce(const shoal_team* team, int32_t dtype, int32_t op, void* target,
                                    const void* source, size_t count);
SHOAL_API shoal_status shoal_reduce_scatter(const shoal_team* team, int32_t dtype, int32_t op,
                                            void* target, const void* source, size_t count);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // SHOAL_C_TEAM_H
