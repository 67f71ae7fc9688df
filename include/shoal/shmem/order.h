// SPDX-License-Identifier: Apache-2.0
// order.h: ordering of operations (OpenSHMEM 1.5, section 9.11).
#ifndef SHOAL_SHMEM
#error "part of shmem.h: include <shmem.h>"
#endif

// Orders earlier puts, atomics and signals of a context to each PE before later ones.
void SHOAL_SHMEM(fence)(void);
void SHOAL_SHMEM(ctx_fence)(shmem_ctx_t ctx);
// Completes the operations of a context, non-blocking ones included.
void SHOAL_SHMEM(quiet)(void);
void SHOAL_SHMEM(ctx_quiet)(shmem_ctx_t ctx);
// 1.6: those to the PEs of a list.
void SHOAL_SHMEM(pe_quiet)(const int* target_pes, size_t npes);
void SHOAL_SHMEM(ctx_pe_quiet)(shmem_ctx_t ctx, const int* target_pes, size_t npes);
