// SPDX-License-Identifier: Apache-2.0
// Put with signal of every type and size, and signals without data.
#include <nvshmem.h>
#include <nvshmemx.h>

#include "check.h"

namespace {

template <typename Put>
void check_put(unsigned char* box, uint64_t* flag, std::size_t bytes, Put put) {
  const int me = nvshmem_my_pe(), n = nvshmem_n_pes(), next = (me + 1) % n;
  unsigned char mine[64];
  for (unsigned char& byte : mine) byte = static_cast<unsigned char>(me + 1);
  box[bytes * 4] = 0xee;
  *flag = 0;
  nvshmem_barrier_all();
  put(mine, next, NVSHMEM_SIGNAL_SET, 3);
  put(mine, next, NVSHMEM_SIGNAL_ADD, 4);
  while (nvshmem_signal_fetch(flag) != 7) nvshmem_fence();
  for (std::size_t i = 0; i < bytes * 4; ++i) CHECK(box[i] == (me + n - 1) % n + 1);
  CHECK(box[bytes * 4] == 0xee);
  nvshmem_barrier_all();
}

}  // namespace

int main() {
  nvshmem_init();
  auto* const box = static_cast<unsigned char*>(nvshmem_align(64, 128));
  auto* const flag = static_cast<uint64_t*>(nvshmem_calloc(1, sizeof(uint64_t)));
#define CALL(TYPE, NAME)                                                                         \
  check_put(box, flag, sizeof(TYPE), [&](const void* mine, int pe, int op, uint64_t value) {     \
    nvshmem_##NAME(reinterpret_cast<TYPE*>(box), static_cast<const TYPE*>(mine), 4, flag, value, \
                   op, pe);                                                                      \
  });
#define CALL_TYPE(TYPE, NAME)   \
  CALL(TYPE, NAME##_put_signal) \
  CALL(TYPE, NAME##_put_signal_nbi)
  SHOAL_NVSHMEM_RMA_TYPES(CALL_TYPE)
#define CALL_SIZE(BITS, FORM)                                                            \
  check_put(box, flag, BITS / 8, [&](const void* mine, int pe, int op, uint64_t value) { \
    FORM(box, mine, 4, flag, value, op, pe);                                             \
  });
#define CALL_SIZES(BITS)                      \
  CALL_SIZE(BITS, nvshmem_put##BITS##_signal) \
  CALL_SIZE(BITS, nvshmem_put##BITS##_signal_nbi)
  SHOAL_SHMEM_SIZES(CALL_SIZES)
  CALL_SIZE(8, nvshmem_putmem_signal)
  CALL_SIZE(8, nvshmem_putmem_signal_nbi)

  *flag = 0;
  nvshmem_barrier_all();
  nvshmemx_signal_op(flag, 5, NVSHMEM_SIGNAL_ADD, 0);
  nvshmem_barrier_all();
  if (nvshmem_my_pe() == 0) CHECK(*flag == 5u * static_cast<unsigned>(nvshmem_n_pes()));
  nvshmem_barrier_all();
  nvshmem_free(flag);
  nvshmem_free(box);
  nvshmem_finalize();
  return 0;
}
