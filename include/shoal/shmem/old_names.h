// SPDX-License-Identifier: Apache-2.0
// old_names.h: names from before OpenSHMEM.
#ifndef SHOAL_SHMEM_OLD_NAMES_H
#define SHOAL_SHMEM_OLD_NAMES_H

#ifndef SHOAL_SHMEM_H
#error "part of shmem.h: include <shmem.h>"
#endif

void start_pes(int npes);
int _my_pe(void);
int _num_pes(void);
void* shmalloc(size_t size);
void* shmemalign(size_t alignment, size_t size);
void* shrealloc(void* block, size_t size);
void shfree(void* block);

#endif
