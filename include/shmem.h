// SPDX-License-Identifier: Apache-2.0
// shmem.h: OpenSHMEM 1.5 with the additions of 1.6, for C and C++.
//
//   #include <shmem.h>
//
//   int main(void) {
//     shmem_init();
//     static int box;
//     shmem_p(&box, shmem_my_pe(), (shmem_my_pe() + 1) % shmem_n_pes());
//     shmem_barrier_all();
//     shmem_finalize();
//   }
//
// Compile with `oshcc program.c` and start with `oshrun -np 4 ./a.out`. docs/guide/openshmem.md
// describes the use, docs/reference/openshmem.md lists every routine.
//
// Errors, such as a PE that does not exist or an address that is not symmetric, end the program on
// all PEs with a message that names the call, the argument and the allowed range.
#ifndef SHOAL_SHMEM_H
#define SHOAL_SHMEM_H

#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
#if __cplusplus < 201402L
#error "shmem.h needs C++14 or later: compile with -std=c++14"
#endif
#include <complex>
#endif

#include <shoal/shmem/constants.h>
#include <shoal/shmem/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SHOAL_SHMEM(name) shmem_##name
#include <shoal/shmem/functions.h>
#undef SHOAL_SHMEM
#include <shoal/shmem/old_names.h>

#ifdef __cplusplus
}
#endif

// The generic forms: shmem_put(dest, source, n, pe) for any type.
#ifdef __cplusplus
#include <shoal/shmem/overloads.h>
#elif defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L
#include <shoal/shmem/generics.h>
#endif

#endif
