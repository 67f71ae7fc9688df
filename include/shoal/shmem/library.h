// SPDX-License-Identifier: Apache-2.0
// library.h: setup, exit and queries (OpenSHMEM 1.5, section 9.1).
#ifndef SHOAL_SHMEM
#error "part of shmem.h: include <shmem.h>"
#endif

// Collective. May be called several times; the library ends with the last shmem_finalize (1.6).
void SHOAL_SHMEM(init)(void);
// Returns 0 and stores the thread level that is available: every level is.
int SHOAL_SHMEM(init_thread)(int requested, int* provided);
void SHOAL_SHMEM(query_thread)(int* provided);
void SHOAL_SHMEM(query_initialized)(int* initialized);
void SHOAL_SHMEM(finalize)(void);
// Ends all PEs with this status, whatever they do. One PE may call it alone.
void SHOAL_SHMEM(global_exit)(int status) __attribute__((noreturn));

int SHOAL_SHMEM(my_pe)(void);
int SHOAL_SHMEM(n_pes)(void);
int SHOAL_SHMEM(pe_accessible)(int pe);
int SHOAL_SHMEM(addr_accessible)(const void* address, int pe);
// The address of `dest` on `pe` for loads and stores; NULL where they do not reach it.
void* SHOAL_SHMEM(ptr)(const void* dest, int pe);
void* SHOAL_SHMEM(team_ptr)(shmem_team_t team, const void* dest, int pe);
void SHOAL_SHMEM(info_get_version)(int* major, int* minor);
// `name` has room for SHMEM_MAX_NAME_LEN characters.
void SHOAL_SHMEM(info_get_name)(char* name);
// For profiling libraries; no effect here.
void SHOAL_SHMEM(pcontrol)(int level, ...);
