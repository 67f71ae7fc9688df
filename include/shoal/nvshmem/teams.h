// SPDX-License-Identifier: Apache-2.0
// teams.h: teams. Splits are collective over the parent, destroy over the team. Splits return 0, or
// another value on all PEs of the parent where the arguments name no team or none is free.
// split_strided makes any number of disjoint teams in one call: PEs of the same set pass the same
// numbers, and a PE outside the set that it passes gets NVSHMEM_TEAM_INVALID. Other numbers on PEs
// of one set, and sets that overlap, end the program.
#ifndef SHOAL_NVSHMEM_HD
#error "part of nvshmem.h: include <nvshmem.h>"
#endif

SHOAL_NVSHMEM_HD int nvshmem_team_my_pe(nvshmem_team_t team);
SHOAL_NVSHMEM_HD int nvshmem_team_n_pes(nvshmem_team_t team);
SHOAL_NVSHMEM_HD int nvshmem_team_translate_pe(nvshmem_team_t team, int pe, nvshmem_team_t other);
int nvshmem_team_get_config(nvshmem_team_t team, nvshmem_team_config_t* config);
int nvshmem_team_split_strided(nvshmem_team_t parent, int start, int stride, int size,
                               const nvshmem_team_config_t* config, long mask,
                               nvshmem_team_t* team);
int nvshmem_team_split_2d(nvshmem_team_t parent, int xrange, const nvshmem_team_config_t* xconfig,
                          long xmask, nvshmem_team_t* xteam, const nvshmem_team_config_t* yconfig,
                          long ymask, nvshmem_team_t* yteam);
void nvshmem_team_destroy(nvshmem_team_t team);

/// A team of the `size` PEs that call with config->uniqueid, each with its own `index`.
int nvshmemx_team_init(nvshmem_team_t* team, nvshmem_team_config_t* config, long mask, int size,
                       int index);
int nvshmemx_team_get_uniqueid(nvshmem_team_uniqueid_t* id);
