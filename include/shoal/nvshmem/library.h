// SPDX-License-Identifier: Apache-2.0
// library.h: start, end, queries and modules that are loaded later.
// SHOAL_NVSHMEM_HD functions exist inside kernels too.
#ifndef SHOAL_NVSHMEM_HD
#error "part of nvshmem.h: include <nvshmem.h>"
#endif

// Collective over all PEs: from the launcher's environment; by the flags of `flags`; for the host
// alone. Initialization is counted, and ends with as many calls of finalize. Failures end the
// program; functions with a result return 0.
void nvshmem_init(void);
int nvshmem_init_thread(int requested, int* provided);
int nvshmemx_init_attr(unsigned int flags, nvshmemx_init_attr_t* attributes);
int nvshmemx_hostlib_init_attr(unsigned int flags, nvshmemx_init_attr_t* attributes);
void nvshmem_finalize(void);
void nvshmemx_hostlib_finalize(void);
/// NVSHMEM_STATUS_NOT_INITIALIZED, _IS_INITIALIZED or _FULL_MPG.
int nvshmemx_init_status(void);

/// The PE that makes the id calls, and must live until all PEs are initialized.
int nvshmemx_get_uniqueid(nvshmemx_uniqueid_t* id);
/// Keeps the pointer to `id` in `attributes`, whose other contents do not matter.
int nvshmemx_set_attr_uniqueid_args(int myrank, int nranks, const nvshmemx_uniqueid_t* id,
                                    nvshmemx_init_attr_t* attributes);

void nvshmem_query_thread(int* provided);
/// Ends this process with `status`; waits of the other PEs end with an error.
void nvshmem_global_exit(int status);
SHOAL_NVSHMEM_HD int nvshmem_my_pe(void);
SHOAL_NVSHMEM_HD int nvshmem_n_pes(void);
int nvshmem_pe_accessible(int pe);
int nvshmem_addr_accessible(const void* address, int pe);
SHOAL_NVSHMEM_HD void nvshmem_info_get_version(int* major, int* minor);
SHOAL_NVSHMEM_HD void nvshmem_info_get_name(char* name);
SHOAL_NVSHMEM_HD void nvshmemx_vendor_get_version_info(int* major, int* minor, int* patch);

// Fill the device state of a module that the driver API loaded, such as one that a JIT compiler
// made; units of the program need no call. Return NVSHMEMX_ERROR_INVALID_VALUE where the module has
// no device state. finalize changes nothing.
int nvshmemx_cumodule_init(struct CUmod_st* module);
int nvshmemx_cumodule_finalize(struct CUmod_st* module);
int nvshmemx_culibrary_init(struct CUlib_st* library);
int nvshmemx_culibrary_finalize(struct CUlib_st* library);
