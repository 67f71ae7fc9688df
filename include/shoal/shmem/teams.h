// SPDX-License-Identifier: Apache-2.0
// teams.h: teams (OpenSHMEM 1.5, section 9.4). Splits are collective over the parent team. PEs
// outside a new team get SHMEM_TEAM_INVALID. Splits return nonzero on all PEs where the arguments
// name no team or no team is free (SHOAL_MAX_TEAMS). split_strided makes any number of disjoint
// teams in one call: PEs of the same set pass the same numbers. Other numbers on PEs of one set,
// and sets that overlap, end the program.
#ifndef SHOAL_SHMEM
#error "part of shmem.h: include <shmem.h>"
#endif

int SHOAL_SHMEM(team_my_pe)(shmem_team_t team);
int SHOAL_SHMEM(team_n_pes)(shmem_team_t team);
int SHOAL_SHMEM(team_get_config)(shmem_team_t team, long mask, shmem_team_config_t* config);
// -1 where the PE is not in `other`.
int SHOAL_SHMEM(team_translate_pe)(shmem_team_t team, int pe, shmem_team_t other);
int SHOAL_SHMEM(team_split_strided)(shmem_team_t parent, int start, int stride, int size,
                                    const shmem_team_config_t* config, long mask,
                                    shmem_team_t* team);
int SHOAL_SHMEM(team_split_2d)(shmem_team_t parent, int xrange, const shmem_team_config_t* xconfig,
                               long xmask, shmem_team_t* xteam, const shmem_team_config_t* yconfig,
                               long ymask, shmem_team_t* yteam);
// Collective over the team. Destroys its contexts too, except private ones.
void SHOAL_SHMEM(team_destroy)(shmem_team_t team);
