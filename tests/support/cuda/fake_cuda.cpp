// SPDX-License-Identifier: Apache-2.0
#include "support/cuda/fake_cuda.hpp"
#ifdef SHOAL_WITH_CUDA

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "collective/host_forms.hpp"
#include "memory/cuda/stream_pool.hpp"
#include "support/cuda/fake_driver_state.hpp"
#include "support/cuda/fake_events.hpp"
#include "transport/cuda_p2p/word_kernels.hpp"

namespace shoal::test {

const transport::WordKernels& fake_word_kernels();  // fake_word_kernels.cpp

namespace {

using namespace fake_driver;  // NOLINT(google-build-using-namespace)

// The functions, in the order of Driver.

CUresult init(unsigned) {
  return Call("init").result;
}
CUresult driver_version(int* version) {
  *version = 13000;
  return CUDA_SUCCESS;
}
CUresult error_name(CUresult result, const char** name) {
  *name = result == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_FAKE";
  return CUDA_SUCCESS;
}
CUresult error_text(CUresult result, const char** text) {
  *text =
      result == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : "a failure that the test asked for";
  return CUDA_SUCCESS;
}
CUresult device_count(int* count) {
  const Call call("device_count");
  *count = state().options.gpus;
  return call.result;
}
CUresult device_get(CUdevice* device, int ordinal) {
  const Call call("device_get");
  if (call && ordinal >= state().options.gpus) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return call.result;
}
CUresult device_name(char* name, int bytes, CUdevice) {
  std::snprintf(name, static_cast<std::size_t>(bytes), "Fake GPU");
  return CUDA_SUCCESS;
}
CUresult device_uuid(CUuuid* uuid, CUdevice device) {
  const Call call("device_uuid");
  std::memset(uuid, 0, sizeof *uuid);
  uuid->bytes[0] = static_cast<char>(device + 1);
  return call.result;
}
CUresult device_attribute(int* value, CUdevice_attribute which, CUdevice) {
  const Call call("device_attribute");
  const FakeCudaOptions& options = state().options;
  const std::pair<CUdevice_attribute, int> known[] = {
      {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
      {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 132},
      {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9},
      {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, options.vmm},
      {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, options.fd},
      {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, options.fabric},
      {CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED, options.gpu_direct},
      {CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, options.gpu_direct},
      {CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING, options.ordered_writes ? 100 : 0},
      {CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, options.dma_buf},
      {CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, options.multicast},
      {CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, options.stream_memory_ops}};
  *value = 0;
  for (const auto& [name, attribute] : known)
    if (name == which) *value = attribute;
  return call.result;
}
CUresult device_memory(std::size_t* bytes, CUdevice) {
  *bytes = state().options.memory;
  return CUDA_SUCCESS;
}
CUresult device_pci(char* text, int bytes, CUdevice device) {
  std::snprintf(text, static_cast<std::size_t>(bytes), "0000:%02x:00.0", device);
  return CUDA_SUCCESS;
}
CUresult can_access_peer(int* can, CUdevice a, CUdevice b) {
  const Call call("can_access_peer");
  *can = peers(a, b);
  return call.result;
}
CUresult p2p_attribute(int* value, CUdevice_P2PAttribute, CUdevice, CUdevice) {
  const Call call("p2p_attribute");
  *value = state().options.native_atomics;
  return call.result;
}
CUresult retain_context(CUcontext* context, CUdevice device) {
  const Call call("retain_context");
  if (call) *context = context_of(device);
  return call.result;
}
CUresult get_current(CUcontext* context) {
  *context = current;
  return CUDA_SUCCESS;
}
CUresult set_current(CUcontext context) {
  const Call call("set_current");
  if (call) current = context;
  return call.result;
}
CUresult current_device(CUdevice* device) {
  *device = device_of(current);
  return current == nullptr ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}
CUresult global_of(const FakeImage& image, CUdeviceptr* address, std::size_t* bytes,
                   const char* name) {
  if (image.symbol != name) return CUDA_ERROR_NOT_FOUND;
  *address = memory::cuda::address(image.address);
  *bytes = image.bytes;
  return CUDA_SUCCESS;
}
CUresult module_global(CUdeviceptr* address, std::size_t* bytes, CUmodule module,
                       const char* name) {
  const Call call("module_global", true);
  return call ? global_of(*reinterpret_cast<const FakeImage*>(module), address, bytes, name)
              : call.result;
}
CUresult enable_peer_access(CUcontext peer, unsigned) {
  const Call call("enable_peer_access", true);
  if (call && !peers(device_of(current), device_of(peer)))
    return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  return call.result;
}
CUresult priority_range(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return Call("priority_range", true).result;
}
CUresult stream_create(CUstream* stream, unsigned flags, int priority) {
  const Call call("stream_create", true);
  if (!call) return call.result;
  if (flags != CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
  *stream = reinterpret_cast<CUstream>(new FakeStream{device_of(current), priority});
  state().streams.insert(*stream);
  return CUDA_SUCCESS;
}
CUresult stream_destroy(CUstream stream) {
  const Call call("stream_destroy");
  if (state().streams.erase(stream) == 0) return CUDA_ERROR_INVALID_HANDLE;
  delete reinterpret_cast<FakeStream*>(stream);
  return call.result;
}
CUresult stream_query(CUstream stream) {
  const Call call("stream_query");
  return call && !state().streams.contains(stream) ? CUDA_ERROR_INVALID_HANDLE : call.result;
}
CUresult pointer_attribute(void* data, CUpointer_attribute attribute, CUdeviceptr address) {
  const Call call("pointer_attribute");
  if (!call) return call.result;
  if (attribute == CU_POINTER_ATTRIBUTE_DEVICE_POINTER &&
      state().registered.contains(reinterpret_cast<void*>(address))) {
    *static_cast<CUdeviceptr*>(data) = address;
    return CUDA_SUCCESS;
  }
  if (!known(address)) return CUDA_ERROR_INVALID_VALUE;
  const auto next = state().mappings.upper_bound(address);
  const Mapping mapping = next == state().mappings.begin() ? Mapping{} : std::prev(next)->second;
  const auto give = [data](auto value) {
    *static_cast<decltype(value)*>(data) = value;
    return CUDA_SUCCESS;
  };
  if (attribute == CU_POINTER_ATTRIBUTE_MEMORY_TYPE) return give(CU_MEMORYTYPE_DEVICE);
  if (attribute == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) return give(mapping.device);
  if (attribute == CU_POINTER_ATTRIBUTE_BUFFER_ID) return give(mapping.number);
  if (attribute == CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR) return give(std::prev(next)->first);
  if (attribute == CU_POINTER_ATTRIBUTE_MAPPING_SIZE) return give(mapping.bytes);
  return CUDA_ERROR_INVALID_VALUE;
}
CUresult address_range(CUdeviceptr* base, std::size_t* bytes, CUdeviceptr address) {
  const Call call("address_range", true);
  if (!call) return call.result;
  const auto next = state().mappings.upper_bound(address);
  if (next == state().mappings.begin() ||
      address - std::prev(next)->first >= std::prev(next)->second.bytes)
    return CUDA_ERROR_NOT_FOUND;
  *base = std::prev(next)->first;
  *bytes = std::prev(next)->second.bytes;
  return CUDA_SUCCESS;
}

CUresult take(int device, std::size_t bytes) {
  std::size_t& used = state().used[device];
  if (used + bytes > state().options.memory) return CUDA_ERROR_OUT_OF_MEMORY;
  used += bytes;
  return CUDA_SUCCESS;
}

CUresult mem_alloc(CUdeviceptr* address, std::size_t bytes) {
  const Call call("mem_alloc", true);
  if (!call) return call.result;
  const int device = device_of(current);
  if (const CUresult result = take(device, bytes); result != CUDA_SUCCESS) return result;
  const int fd = memory_of(device, bytes, "ipc");
  *address = reinterpret_cast<CUdeviceptr>(
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
  state().mappings[*address] = {bytes, device, fd};
  state().allocated.insert(*address);
  return CUDA_SUCCESS;
}

CUresult drop_mapping(CUdeviceptr address) {
  const auto entry = state().mappings.find(address);
  if (entry == state().mappings.end()) return CUDA_ERROR_INVALID_VALUE;
  munmap(pointer(address), entry->second.bytes);
  close(entry->second.fd);
  state().mappings.erase(entry);
  return CUDA_SUCCESS;
}
CUresult mem_free(CUdeviceptr address) {
  const Call call("mem_free", true);
  if (!call) return call.result;
  if (state().allocated.erase(address) == 0) return CUDA_ERROR_INVALID_VALUE;
  const Mapping mapping = state().mappings[address];
  state().used[mapping.device] -= mapping.bytes;
  return drop_mapping(address);
}
CUresult host_alloc(void** address, std::size_t bytes, unsigned) {
  const Call call("host_alloc", true);
  if (!call) return call.result;
  *address = ::operator new(bytes);
  state().pinned.insert(*address);
  return CUDA_SUCCESS;
}
CUresult host_register(void* address, std::size_t, unsigned) {
  const Call call("host_register", true);
  if (!call) return call.result;
  return state().registered.insert(address).second ? CUDA_SUCCESS
                                                   : CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
}
CUresult host_unregister(void* address) {
  const Call call("host_unregister", true);
  return state().registered.erase(address) == 1 ? CUDA_SUCCESS
                                                : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}
CUresult host_free(void* address) {
  const Call call("host_free", true);
  if (state().pinned.erase(address) == 0) return CUDA_ERROR_INVALID_VALUE;
  ::operator delete(address);
  return call.result;
}
CUresult copy(CUdeviceptr target, CUdeviceptr source, std::size_t bytes, CUstream stream) {
  {
    const Call call("copy", true);
    if (!call) return call.result;
    if (!state().streams.contains(stream)) return CUDA_ERROR_INVALID_HANDLE;
  }
  if (target < source + bytes && source < target + bytes) {
    std::memmove(pointer(target), pointer(source), bytes);
  } else {
    move(static_cast<std::byte*>(pointer(target)), static_cast<const std::byte*>(pointer(source)),
         bytes);
  }
  return CUDA_SUCCESS;
}
CUresult copy_2d(const CUDA_MEMCPY2D* rows, CUstream) {
  const Call call("copy_2d", true);
  if (!call) return call.result;
  if (rows->srcPitch < rows->WidthInBytes || rows->dstPitch < rows->WidthInBytes)
    return CUDA_ERROR_INVALID_VALUE;
  const bool from_host = rows->srcMemoryType == CU_MEMORYTYPE_HOST,
             to_host = rows->dstMemoryType == CU_MEMORYTYPE_HOST;
  const auto* const from =
      static_cast<const std::byte*>(from_host ? rows->srcHost : pointer(rows->srcDevice));
  auto* const to = static_cast<std::byte*>(to_host ? rows->dstHost : pointer(rows->dstDevice));
  for (std::size_t row = 0; row < rows->Height; ++row)
    move(to + row * rows->dstPitch, from + row * rows->srcPitch, rows->WidthInBytes);
  return CUDA_SUCCESS;
}
CUresult set_bytes(CUdeviceptr target, unsigned char value, std::size_t bytes, CUstream) {
  const Call call("set_bytes", true);
  if (call) std::memset(pointer(target), value, bytes);
  return call.result;
}
CUresult granularity(std::size_t* bytes, const CUmemAllocationProp*,
                     CUmemAllocationGranularity_flags) {
  *bytes = kGranularity;
  return Call("granularity").result;
}

CUresult address_reserve(CUdeviceptr* address, std::size_t bytes, std::size_t alignment,
                         CUdeviceptr, unsigned long long) {
  const Call call("address_reserve");
  if (!call) return call.result;
  if (bytes % kGranularity != 0) return CUDA_ERROR_INVALID_VALUE;
  // Over-reserves; the surplus stays reserved with it.
  void* const raw = mmap(nullptr, bytes + alignment, PROT_NONE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  const auto start = reinterpret_cast<CUdeviceptr>(raw);
  *address = (start + alignment - 1) / alignment * alignment;
  state().reserved[*address] = bytes;
  return CUDA_SUCCESS;
}
CUresult address_free(CUdeviceptr address, std::size_t bytes) {
  const Call call("address_free");
  const auto entry = state().reserved.find(address);
  if (entry == state().reserved.end() || entry->second != bytes) return CUDA_ERROR_INVALID_VALUE;
  munmap(pointer(address), bytes);
  state().reserved.erase(entry);
  return call.result;
}
CUresult mem_create(CUmemGenericAllocationHandle* handle, std::size_t bytes,
                    const CUmemAllocationProp* properties, unsigned long long) {
  const Call call("mem_create");
  if (!call) return call.result;
  const int device = properties->location.id;
  if (bytes == 0 || bytes % kGranularity != 0) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = take(device, bytes); result != CUDA_SUCCESS) return result;
  *handle = state().next_handle++;
  state().allocations[*handle] = {memory_of(device, bytes, "vmm"),
                                  bytes,
                                  device,
                                  static_cast<int>(properties->requestedHandleTypes),
                                  true,
                                  properties->allocFlags.gpuDirectRDMACapable != 0};
  return CUDA_SUCCESS;
}
CUresult mem_release(CUmemGenericAllocationHandle handle) {
  const Call call("mem_release");
  const auto entry = state().allocations.find(handle);
  if (entry == state().allocations.end()) return CUDA_ERROR_INVALID_VALUE;
  close(entry->second.fd);
  if (entry->second.charged) state().used[entry->second.device] -= entry->second.bytes;
  state().allocations.erase(entry);
  return call.result;
}
CUresult mem_map(CUdeviceptr address, std::size_t bytes, std::size_t offset,
                 CUmemGenericAllocationHandle handle, unsigned long long) {
  const Call call("mem_map");
  if (!call) return call.result;
  const auto entry = state().allocations.find(handle);
  if (entry == state().allocations.end() || bytes > entry->second.bytes ||
      state().mappings.contains(address) || !known(address))
    return CUDA_ERROR_INVALID_VALUE;
  // Out of reach until access is granted.
  const int fd = dup(entry->second.fd);
  if (mmap(pointer(address), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, fd,
           static_cast<off_t>(offset)) == MAP_FAILED)
    return CUDA_ERROR_UNKNOWN;
  state().mappings[address] = {bytes,
                               entry->second.device,
                               fd,
                               entry->second.handles,
                               std::exchange(entry->second.charged, false),
                               entry->second.for_nics};
  return CUDA_SUCCESS;
}
CUresult mem_unmap(CUdeviceptr address, std::size_t bytes) {
  const Call call("mem_unmap");
  const auto entry = state().mappings.find(address);
  if (entry == state().mappings.end() || entry->second.bytes != bytes)
    return CUDA_ERROR_INVALID_VALUE;
  mmap(pointer(address), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
       -1, 0);
  close(entry->second.fd);
  if (entry->second.charged) state().used[entry->second.device] -= bytes;
  state().mappings.erase(entry);
  return call.result;
}
CUresult mem_set_access(CUdeviceptr address, std::size_t bytes, const CUmemAccessDesc* access,
                        std::size_t count) {
  const Call call("mem_set_access");
  if (!call) return call.result;
  const auto entry = state().mappings.find(address);
  if (entry == state().mappings.end() || entry->second.bytes != bytes)
    return CUDA_ERROR_INVALID_VALUE;
  for (std::size_t i = 0; i < count; ++i)
    if (!peers(access[i].location.id, entry->second.device)) return CUDA_ERROR_INVALID_DEVICE;
  return mprotect(pointer(address), bytes, PROT_READ | PROT_WRITE) == 0 ? CUDA_SUCCESS
                                                                        : CUDA_ERROR_UNKNOWN;
}
CUresult mem_export(void* out, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType kind,
                    unsigned long long) {
  const Call call("mem_export");
  if (!call) return call.result;
  const auto entry = state().allocations.find(handle);
  if (entry == state().allocations.end() || (entry->second.handles & kind) == 0)
    return CUDA_ERROR_INVALID_VALUE;
  const int fd = dup(entry->second.fd);
  if (kind == CU_MEM_HANDLE_TYPE_FABRIC) {  // the descriptor stays open for whoever imports it
    const ForeignFd name{getpid(), fd};
    std::memset(out, 0, sizeof(CUmemFabricHandle));
    std::memcpy(out, &name, sizeof name);
  } else {
    std::memcpy(out, &fd, sizeof fd);
  }
  return CUDA_SUCCESS;
}
CUresult mem_import(CUmemGenericAllocationHandle* handle, void* name,
                    CUmemAllocationHandleType kind) {
  const Call call("mem_import");
  if (!call) return call.result;
  const int fd = kind == CU_MEM_HANDLE_TYPE_FABRIC
                     ? open_foreign(name)
                     : dup(static_cast<int>(reinterpret_cast<std::intptr_t>(name)));
  return fd < 0 ? CUDA_ERROR_INVALID_HANDLE : adopt(fd, 0, handle);
}
CUresult mem_retain(CUmemGenericAllocationHandle* handle, void* address) {
  const Call call("mem_retain");
  if (!call) return call.result;
  const auto next = state().mappings.upper_bound(reinterpret_cast<CUdeviceptr>(address));
  if (next == state().mappings.begin()) return CUDA_ERROR_INVALID_VALUE;
  const auto& [start, mapping] = *std::prev(next);
  if (reinterpret_cast<CUdeviceptr>(address) - start >= mapping.bytes ||
      state().allocated.contains(start) || state().opened.contains(start))
    return CUDA_ERROR_INVALID_VALUE;
  return adopt(dup(mapping.fd), mapping.handles, handle);
}
CUresult mem_properties(CUmemAllocationProp* properties, CUmemGenericAllocationHandle handle) {
  const Call call("mem_properties");
  const auto entry = state().allocations.find(handle);
  if (entry == state().allocations.end()) return CUDA_ERROR_INVALID_VALUE;
  *properties = {};
  properties->location.id = entry->second.device;
  properties->requestedHandleTypes = static_cast<CUmemAllocationHandleType>(entry->second.handles);
  return call.result;
}
CUresult ipc_get(CUipcMemHandle* handle, CUdeviceptr address) {
  const Call call("ipc_get", true);
  if (!call) return call.result;
  const auto next = state().mappings.upper_bound(address);
  if (next == state().mappings.begin() || !state().allocated.contains(std::prev(next)->first))
    return CUDA_ERROR_INVALID_VALUE;
  const ForeignFd name{getpid(), std::prev(next)->second.fd};
  *handle = {};
  std::memcpy(handle, &name, sizeof name);
  return CUDA_SUCCESS;
}
CUresult ipc_open(CUdeviceptr* address, CUipcMemHandle handle, unsigned) {
  const Call call("ipc_open", true);
  if (!call) return call.result;
  const int fd = open_foreign(&handle);
  struct stat info{};
  const int device = device_of_fd(fd);
  if (fd < 0 || fstat(fd, &info) != 0 || device < 0) return CUDA_ERROR_INVALID_VALUE;
  if (!peers(device_of(current), device)) {
    close(fd);
    return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  }
  const auto bytes = static_cast<std::size_t>(info.st_size);
  *address = reinterpret_cast<CUdeviceptr>(
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
  state().mappings[*address] = {bytes, device, fd};
  state().opened.insert(*address);
  return CUDA_SUCCESS;
}
CUresult ipc_close(CUdeviceptr address) {
  const Call call("ipc_close", true);
  if (state().opened.erase(address) == 0) return CUDA_ERROR_INVALID_VALUE;
  return drop_mapping(address);
}

/// Whole mappings that were allocated for NICs.
CUresult range_handle(void* handle, CUdeviceptr address, std::size_t bytes,
                      CUmemRangeHandleType kind, unsigned long long) {
  const Call call("range_handle", true);
  if (!call) return call.result;
  const auto entry = state().mappings.find(address);
  if (kind != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD || !state().options.dma_buf ||
      entry == state().mappings.end() || entry->second.bytes != bytes || !entry->second.for_nics)
    return CUDA_ERROR_INVALID_VALUE;
  const int fd = dma_buf_of(entry->second.fd);
  std::memcpy(handle, &fd, sizeof fd);
  return CUDA_SUCCESS;
}

CUresult library_global(CUdeviceptr* address, std::size_t* bytes, CUlibrary library,
                        const char* name) {
  const Call call("library_global", true);
  return call ? global_of(*reinterpret_cast<const FakeImage*>(library), address, bytes, name)
              : call.result;
}

CUresult loading_mode(CUmoduleLoadingMode* mode) {
  const Call call("loading_mode");
  if (!call) return call.result;
  *mode = state().options.lazy_loading ? CU_MODULE_LAZY_LOADING : CU_MODULE_EAGER_LOADING;
  return CUDA_SUCCESS;
}

constexpr Driver kDriver = [] {
  Driver table;
#define SHOAL_FAKE(field, function) table.field = field;
  SHOAL_CUDA_DRIVER_FUNCTIONS(SHOAL_FAKE)
  SHOAL_CUDA_OPTIONAL_DRIVER_FUNCTIONS(SHOAL_FAKE)
#undef SHOAL_FAKE
  return table;
}();

/// Collectives of the host copy through host memory, unless a test has kernels of its own.
constexpr collective::KernelTable kNoCollectives = {
    [](const memory::Device&) { return "a driver without a GPU has no kernels"; }, nullptr, nullptr,
    nullptr};

}  // namespace

FakeCuda::FakeCuda(FakeCudaOptions options) {
  memory::cuda::destroy_free_streams(kDriver);
  {
    const std::lock_guard lock(state().mutex);
    state().options = std::move(options);
    state().calls.clear();
    state().used.clear();
  }
  current = nullptr;
  memory::cuda::replace_driver(&kDriver);
  transport::replace_word_kernels(&fake_word_kernels());
  collective::replace_kernel_table(&kNoCollectives);
}

FakeCuda::~FakeCuda() {
  memory::cuda::replace_driver(nullptr);
  transport::replace_word_kernels(nullptr);
  collective::replace_kernel_table(nullptr);
}

std::string FakeCuda::leaks() {
  memory::cuda::destroy_free_streams(kDriver);
  const std::lock_guard lock(state().mutex);
  const State& now = state();
  std::string text;
  const std::pair<std::size_t, const char*> left[] = {{now.allocations.size(), "allocations"},
                                                      {now.mappings.size(), "mappings"},
                                                      {now.reserved.size(), "reservations"},
                                                      {now.streams.size(), "streams"},
                                                      {now.events.size(), "events"},
                                                      {now.pinned.size(), "pinned blocks"},
                                                      {now.registered.size(), "registered blocks"}};
  for (const auto& [number, what] : left)
    if (number != 0) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", number, what);
  return text;
}

int FakeCuda::dma_bufs() {
  int open = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(entry.path().filename());
    if (device_of_fd(fd) >= 0 && (fcntl(fd, F_GETFL) & kDmaBufMode) != 0) ++open;
  }
  return open;
}

int FakeCuda::calls(const std::string& function) {
  const std::lock_guard lock(state().mutex);
  return state().calls[function];
}

}  // namespace shoal::test

#endif
