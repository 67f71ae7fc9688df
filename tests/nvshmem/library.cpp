// SPDX-License-Identifier: Apache-2.0
// Start and end, queries, the heap, registered buffers.
#include <nvshmem.h>
#include <nvshmemx.h>

#include <cstring>

#include "check.h"

int main() {
  CHECK(nvshmemx_init_status() == NVSHMEM_STATUS_NOT_INITIALIZED);
  int provided = -1;
  CHECK(nvshmem_init_thread(NVSHMEM_THREAD_MULTIPLE, &provided) == 0);
  CHECK(provided == NVSHMEM_THREAD_SERIALIZED);
  nvshmem_query_thread(&provided);
  CHECK(provided == NVSHMEM_THREAD_SERIALIZED);
  CHECK(nvshmemx_init_status() == NVSHMEM_STATUS_IS_INITIALIZED);
  nvshmem_init();  // counted
  nvshmem_finalize();
  CHECK(nvshmemx_init_status() == NVSHMEM_STATUS_IS_INITIALIZED);

  const int me = nvshmem_my_pe(), n = nvshmem_n_pes();
  CHECK(me >= 0 && me < n && n == 4);
  CHECK(nvshmem_pe_accessible(n - 1) == 1 && nvshmem_pe_accessible(n) == 0);
  int major = 0, minor = 0, patch = 0;
  nvshmem_info_get_version(&major, &minor);
  CHECK(major == NVSHMEM_MAJOR_VERSION && minor == NVSHMEM_MINOR_VERSION);
  nvshmemx_vendor_get_version_info(&major, &minor, &patch);
  CHECK(major == NVSHMEM_VENDOR_MAJOR_VERSION && minor == NVSHMEM_VENDOR_MINOR_VERSION &&
        patch == NVSHMEM_VENDOR_PATCH_VERSION);
  char name[NVSHMEM_MAX_NAME_LEN];
  nvshmem_info_get_name(name);
  CHECK(std::strcmp(name, NVSHMEM_VENDOR_STRING) == 0);

  CHECK(nvshmem_malloc(0) == nullptr && nvshmem_malloc(std::size_t{1} << 50) == nullptr);
  CHECK(nvshmem_calloc(std::size_t{1} << 40, std::size_t{1} << 40) == nullptr);
  auto* const words = static_cast<int*>(nvshmem_calloc(1000, sizeof(int)));
  for (int i = 0; i < 1000; ++i) CHECK(words[i] == 0);
  void* const aligned = nvshmem_align(4096, 100);
  CHECK(reinterpret_cast<uintptr_t>(aligned) % 4096 == 0);
  CHECK(nvshmem_align(24, 100) == nullptr && nvshmem_align(1, 8) != nullptr);
  CHECK(nvshmem_addr_accessible(words, 0) == 1 && nvshmem_addr_accessible(&major, 0) == 0);
  CHECK(nvshmem_ptr(words, me) == words && nvshmem_ptr(&major, me) == nullptr);
  CHECK(nvshmemx_mc_ptr(NVSHMEM_TEAM_WORLD, words) == nullptr);
  auto* const theirs = static_cast<int*>(nvshmem_ptr(words, (me + 1) % n));
  CHECK(theirs != nullptr);
  theirs[5] = me + 1;
  nvshmem_barrier_all();
  CHECK(words[5] == (me + n - 1) % n + 1);

  static char local[8192];
  CHECK(nvshmemx_buffer_register(local, sizeof local) == 0);
  CHECK(nvshmemx_buffer_register(local, sizeof local) == NVSHMEMX_ERROR_INVALID_VALUE);
  CHECK(nvshmemx_buffer_unregister(local) == 0);
  CHECK(nvshmemx_buffer_unregister(local) == NVSHMEMX_ERROR_INVALID_VALUE);
  CHECK(nvshmemx_buffer_register(local, sizeof local) == 0);
  nvshmemx_buffer_unregister_all();
  CHECK(nvshmemx_buffer_unregister(local) == NVSHMEMX_ERROR_INVALID_VALUE);

  // A documented failure of NVSHMEM.
  CHECK(nvshmemx_buffer_register_symmetric(local, sizeof local, 0) == nullptr);
  CHECK(nvshmemx_buffer_unregister_symmetric(local, sizeof local) == NVSHMEMX_ERROR_INVALID_VALUE);

  // Without a heap in GPU memory, images have nothing to be filled with.
  CHECK(nvshmemx_cumodule_init(nullptr) == NVSHMEMX_ERROR_NOT_SUPPORTED);
  CHECK(nvshmemx_culibrary_init(nullptr) == NVSHMEMX_ERROR_NOT_SUPPORTED);
  CHECK(nvshmemx_cumodule_finalize(nullptr) == 0 && nvshmemx_culibrary_finalize(nullptr) == 0);

  nvshmem_free(nullptr);
  nvshmem_free(aligned);
  nvshmem_free(words);
  nvshmem_sync_all();
  nvshmem_finalize();
  CHECK(nvshmemx_init_status() == NVSHMEM_STATUS_NOT_INITIALIZED);

  // It starts again.
  nvshmemx_init_attr_t attributes = NVSHMEMX_INIT_ATTR_INITIALIZER;
  CHECK(nvshmemx_init_attr(0, &attributes) == 0);
  CHECK(nvshmemx_init_attr(0, nullptr) == 0);  // counted
  CHECK(nvshmem_my_pe() == me && nvshmem_n_pes() == n);
  auto* const sum = static_cast<int*>(nvshmem_calloc(1, sizeof(int)));
  nvshmem_int_atomic_add(sum, me + 1, 0);
  nvshmem_barrier_all();
  CHECK(nvshmem_int_g(sum, 0) == n * (n + 1) / 2);
  nvshmem_barrier_all();
  nvshmem_free(sum);
  nvshmem_finalize();
  nvshmem_finalize();
  CHECK(nvshmemx_init_status() == NVSHMEM_STATUS_NOT_INITIALIZED);
  return 0;
}
