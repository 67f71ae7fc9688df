// SPDX-License-Identifier: Apache-2.0
// driver.hpp: the CUDA driver library as a table of functions, opened at run time.
//
// Nothing links against libcuda, so one binary serves machines with and without a GPU. Tests
// replace the table to make functions fail.
#pragma once

#include <cuda.h>

#include <string>

#include "base/check.hpp"

namespace shoal::memory::cuda {

// Field and function. cuda.h maps many names to versioned ones by macros; decltype and the loader
// follow them.
#define SHOAL_CUDA_DRIVER_FUNCTIONS(X)                      \
  X(init, cuInit)                                           \
  X(driver_version, cuDriverGetVersion)                     \
  X(error_name, cuGetErrorName)                             \
  X(error_text, cuGetErrorString)                           \
  X(device_count, cuDeviceGetCount)                         \
  X(device_get, cuDeviceGet)                                \
  X(device_name, cuDeviceGetName)                           \
  X(device_uuid, cuDeviceGetUuid)                           \
  X(device_attribute, cuDeviceGetAttribute)                 \
  X(device_memory, cuDeviceTotalMem)                        \
  X(device_pci, cuDeviceGetPCIBusId)                        \
  X(can_access_peer, cuDeviceCanAccessPeer)                 \
  X(p2p_attribute, cuDeviceGetP2PAttribute)                 \
  X(retain_context, cuDevicePrimaryCtxRetain)               \
  X(get_current, cuCtxGetCurrent)                           \
  X(set_current, cuCtxSetCurrent)                           \
  X(current_device, cuCtxGetDevice)                         \
  X(module_global, cuModuleGetGlobal)                       \
  X(enable_peer_access, cuCtxEnablePeerAccess)              \
  X(priority_range, cuCtxGetStreamPriorityRange)            \
  X(stream_create, cuStreamCreateWithPriority)              \
  X(stream_destroy, cuStreamDestroy)                        \
  X(stream_query, cuStreamQuery)                            \
  X(stream_wait_event, cuStreamWaitEvent)                   \
  X(event_create, cuEventCreate)                            \
  X(event_destroy, cuEventDestroy)                          \
  X(event_record, cuEventRecord)                            \
  X(event_query, cuEventQuery)                              \
  X(pointer_attribute, cuPointerGetAttribute)               \
  X(address_range, cuMemGetAddressRange)                    \
  X(mem_alloc, cuMemAlloc)                                  \
  X(mem_free, cuMemFree)                                    \
  X(host_alloc, cuMemHostAlloc)                             \
  X(host_free, cuMemFreeHost)                               \
  X(host_register, cuMemHostRegister)                       \
  X(host_unregister, cuMemHostUnregister)                   \
  X(copy, cuMemcpyAsync)                                    \
  X(copy_2d, cuMemcpy2DAsync)                               \
  X(set_bytes, cuMemsetD8Async)                             \
  X(granularity, cuMemGetAllocationGranularity)             \
  X(address_reserve, cuMemAddressReserve)                   \
  X(address_free, cuMemAddressFree)                         \
  X(mem_create, cuMemCreate)                                \
  X(mem_release, cuMemRelease)                              \
  X(mem_map, cuMemMap)                                      \
  X(mem_unmap, cuMemUnmap)                                  \
  X(mem_set_access, cuMemSetAccess)                         \
  X(mem_export, cuMemExportToShareableHandle)               \
  X(mem_import, cuMemImportFromShareableHandle)             \
  X(mem_retain, cuMemRetainAllocationHandle)                \
  X(mem_properties, cuMemGetAllocationPropertiesFromHandle) \
  X(ipc_get, cuIpcGetMemHandle)                             \
  X(ipc_open, cuIpcOpenMemHandle)                           \
  X(ipc_close, cuIpcCloseMemHandle)

// Functions of newer drivers; nullptr in older ones.
#define SHOAL_CUDA_OPTIONAL_DRIVER_FUNCTIONS(X)  \
  X(range_handle, cuMemGetHandleForAddressRange) \
  X(library_global, cuLibraryGetGlobal)          \
  X(stream_memory_ops, cuStreamBatchMemOp)       \
  X(loading_mode, cuModuleGetLoadingMode)

struct Driver {
// NOLINTNEXTLINE(bugprone-macro-parentheses): the name of a member
#define SHOAL_CUDA_FIELD(field, function) decltype(&::function) field = nullptr;
  SHOAL_CUDA_DRIVER_FUNCTIONS(SHOAL_CUDA_FIELD)
  SHOAL_CUDA_OPTIONAL_DRIVER_FUNCTIONS(SHOAL_CUDA_FIELD)
#undef SHOAL_CUDA_FIELD
};

/// The initialized driver; nullptr if there is none, with the reason in `why`. The result is kept
/// until the process ends.
const Driver* find_driver(std::string* why);

/// Like find_driver, but throws Error{unsupported} with the reason.
const Driver& driver();

/// True if the driver loads a kernel when it is first used (CUDA_MODULE_LOADING).
bool loads_lazily();

/// Replaces the machine's driver by `table`; nullptr restores it. For tests, while no world is
/// open.
void replace_driver(const Driver* table);

/// "CUDA_ERROR_OUT_OF_MEMORY: out of memory".
std::string describe(const Driver& driver, CUresult result);

[[noreturn]] void fail_driver(const Driver& driver, CUresult result, const std::string& what,
                              const char* setting);
/// Throws Error{code} "<what>: <name>: <text>" unless `result` is success. The code is exhausted
/// for CUDA_ERROR_OUT_OF_MEMORY, else system. `what` may be a function that returns the text.
/// `setting`: names the settings that can help, at the end of the message.
template <typename What>
void check(const Driver& driver, CUresult result, const What& what, const char* setting = nullptr) {
  if (result != CUDA_SUCCESS) [[unlikely]]
    fail_driver(driver, result, made(what), setting);
}

inline CUdeviceptr address(const void* pointer) {
  return reinterpret_cast<CUdeviceptr>(pointer);
}

}  // namespace shoal::memory::cuda
