// SPDX-License-Identifier: Apache-2.0
// contexts.h: contexts (OpenSHMEM 1.5, section 9.5). PE numbers of operations on a context are
// those of its team. Not collective.
#ifndef SHOAL_SHMEM
#error "part of shmem.h: include <shmem.h>"
#endif

int SHOAL_SHMEM(ctx_create)(long options, shmem_ctx_t* ctx);
int SHOAL_SHMEM(team_create_ctx)(shmem_team_t team, long options, shmem_ctx_t* ctx);
int SHOAL_SHMEM(ctx_get_team)(shmem_ctx_t ctx, shmem_team_t* team);
// Completes the operations of the context.
void SHOAL_SHMEM(ctx_destroy)(shmem_ctx_t ctx);
// Hints on what follows (1.6); without effect here.
void SHOAL_SHMEM(ctx_session_start)(shmem_ctx_t ctx, long options,
                                    const shmem_ctx_session_config_t* config, long mask);
void SHOAL_SHMEM(ctx_session_stop)(shmem_ctx_t ctx);
