// SPDX-License-Identifier: Apache-2.0
// shmem.cpp: OpenSHMEM, initialized and finalized by the program. Open MPI's shmem_init registers
// every writable mapping of the process, at most 32, and crashes if a process with many libraries
// calls it late. So the program must call it at the start of main.
//
// OpenSHMEM has no deadline for symmetric allocation and barriers; only the wait for the text has
// one.
#include <shmem.h>
#include <unistd.h>

#include <cstdint>

#include "common.hpp"

#if defined(OSHMEM_MAJOR_VERSION)
/// Declared by Open MPI: the standard has no function to query whether OpenSHMEM is initialized.
extern "C" {
extern __attribute__((weak)) bool oshmem_shmem_initialized;
}
#endif

namespace shoal::plugins {
namespace {

bool initialised() {
#if defined(OSHMEM_MAJOR_VERSION)
  return &oshmem_shmem_initialized != nullptr && oshmem_shmem_initialized;
#else
  return true;
#endif
}

int open(shoal_bootstrap_context* context, void** job, std::int32_t* pe, std::int32_t* n_pes) {
  if (!initialised())
    return report(
        context, SHOAL_BOOTSTRAP_ABSENT,
        "SHOAL-N128: OpenSHMEM is not initialised in this process: call shmem_init first thing in "
        "main. PEs of oshrun that do not use OpenSHMEM themselves meet with SHOAL_BOOTSTRAP=pmix");
  void* const room = shmem_calloc(1, SHOAL_BOOTSTRAP_TEXT_SIZE + sizeof(long));
  if (room == nullptr)
    return report(context, SHOAL_BOOTSTRAP_FAILED,
                  "the symmetric heap of OpenSHMEM is full (SHMEM_SYMMETRIC_SIZE)");
  // Open MPI clears the memory after it has synchronized the PEs: the flag of PE 0 could come
  // first.
  shmem_barrier_all();
  *job = room;
  *pe = shmem_my_pe();
  *n_pes = shmem_n_pes();
  return SHOAL_BOOTSTRAP_OK;
}

int broadcast(shoal_bootstrap_context* context, void* job, char* text) {
  auto* const flag = static_cast<long*>(job);
  char* const room = reinterpret_cast<char*>(flag + 1);
  if (shmem_my_pe() == 0) {
    for (int pe = 1; pe < shmem_n_pes(); ++pe) {
      shmem_putmem(room, text, SHOAL_BOOTSTRAP_TEXT_SIZE, pe);
      shmem_fence();
      shmem_long_p(flag, 1, pe);
    }
    shmem_quiet();
    return SHOAL_BOOTSTRAP_OK;
  }
  for (const auto deadline = deadline_of(context); shmem_long_test(flag, SHMEM_CMP_EQ, 1) == 0;
       usleep(20))
    if (Clock::now() >= deadline)
      return report(context, SHOAL_BOOTSTRAP_TIMEOUT, "PE 0 has not sent the text of this world");
  std::memcpy(text, room, SHOAL_BOOTSTRAP_TEXT_SIZE);
  return SHOAL_BOOTSTRAP_OK;
}

/// Freeing symmetric memory is collective and close is not, so the memory stays allocated: a few
/// hundred bytes per world.
void close(void*) {}

}  // namespace
}  // namespace shoal::plugins

const shoal_bootstrap_plugin shoal_bootstrap_plugin_table = {SHOAL_BOOTSTRAP_PLUGIN_VERSION,
                                                             SHOAL_BOOTSTRAP_SAME_THREAD,
                                                             sizeof(shoal_bootstrap_plugin),
                                                             "shmem",
                                                             "OpenSHMEM",
                                                             shoal::plugins::open,
                                                             shoal::plugins::broadcast,
                                                             shoal::plugins::close};
