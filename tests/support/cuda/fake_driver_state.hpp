// SPDX-License-Identifier: Apache-2.0
// fake_driver_state.hpp: the state of the fake CUDA driver (allocations, mappings, streams), and
// checks that its functions share. Internal to fake_cuda.cpp.
#pragma once

#include <cuda.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "memory/cuda/driver.hpp"
#include "support/cuda/fake_cuda.hpp"

namespace shoal::test::fake_driver {

using memory::cuda::Driver;

inline constexpr std::size_t kGranularity = std::size_t{2} << 20;

/// An open descriptor. The memory lives as long as a process has it open or mapped.
struct Allocation {
  int fd = -1;
  std::size_t bytes = 0;
  int device = 0;
  int handles = 0;       // types of handles that it can be exported as
  bool charged = false;  // counts as used memory of this process, until its mapping does
  bool for_nics = false;
};
struct Mapping {
  std::size_t bytes = 0;
  int device = 0;
  int fd = -1;  // kept for mem_retain
  int handles = 0;
  bool charged = false;
  bool for_nics = false;
  unsigned long long number = next_number();  // never used twice
  static unsigned long long next_number() {
    static std::atomic<unsigned long long> last{0};
    return ++last;
  }
};

struct State {
  std::mutex mutex;
  FakeCudaOptions options;
  std::map<std::string, int> calls;
  std::map<CUmemGenericAllocationHandle, Allocation> allocations;
  CUmemGenericAllocationHandle next_handle = 1;
  std::map<CUdeviceptr, std::size_t> reserved;
  std::map<CUdeviceptr, Mapping> mappings;  // virtual-memory management, mem_alloc and ipc_open
  std::set<CUdeviceptr> allocated, opened;
  std::map<int, std::size_t> used;  // by device
  std::set<CUstream> streams;
  std::set<CUevent> events;
  std::set<void*> pinned, registered;
};

inline State& state() {
  static State instance;
  return instance;
}
inline thread_local CUcontext current = nullptr;

inline CUcontext context_of(int device) {
  return reinterpret_cast<CUcontext>(static_cast<std::intptr_t>(device + 1));
}
inline int device_of(CUcontext context) {
  return static_cast<int>(reinterpret_cast<std::intptr_t>(context)) - 1;
}
inline void* pointer(CUdeviceptr address) {
  return reinterpret_cast<void*>(address);
}

/// One call of the driver: counts it, makes it fail if the test asks for that, and holds the lock.
struct Call {
  std::lock_guard<std::mutex> lock{state().mutex};
  CUresult result = CUDA_SUCCESS;
  explicit Call(const char* function, bool needs_context = false) {
    const FakeCudaOptions& options = state().options;
    const int number = state().calls[function]++;
    if (needs_context && current == nullptr) result = CUDA_ERROR_INVALID_CONTEXT;
    if (options.failing_function == function && number >= options.failing_call &&
        number < options.failing_call + options.failures)
      result = options.failure;
  }
  explicit operator bool() const { return result == CUDA_SUCCESS; }
};

inline int memory_of(int device, std::size_t bytes, const char* kind) {
  const int fd = memfd_create(fmt::format("fake-gpu-{}-{}", device, kind).c_str(), MFD_CLOEXEC);
  if (fd >= 0 && ftruncate(fd, static_cast<off_t>(bytes)) != 0) return -1;
  return fd;
}

/// The GPU whose memory a descriptor names; -1 for any other file.
inline int device_of_fd(int fd) {
  char target[256] = "";
  const auto length =
      readlink(fmt::format("/proc/self/fd/{}", fd).c_str(), target, sizeof target - 1);
  int device = -1;
  if (length <= 0 || std::sscanf(target, "/memfd:fake-gpu-%d", &device) != 1) return -1;
  return device;
}

inline CUresult adopt(int fd, int handles, CUmemGenericAllocationHandle* handle) {
  struct stat info{};
  const int device = device_of_fd(fd);
  if (device < 0 || fstat(fd, &info) != 0) return CUDA_ERROR_INVALID_VALUE;
  *handle = state().next_handle++;
  state().allocations[*handle] = {fd, static_cast<std::size_t>(info.st_size), device, handles,
                                  false};
  return CUDA_SUCCESS;
}

inline bool peers(int a, int b) {
  const auto& access = state().options.peer_access;
  return a == b || !access || access(a, b);
}

inline bool known(CUdeviceptr address) {
  const auto inside = [&](const auto& ranges, auto size) {
    const auto next = ranges.upper_bound(address);
    return next != ranges.begin() &&
           address - std::prev(next)->first < size(std::prev(next)->second);
  };
  return inside(state().reserved, [](std::size_t bytes) { return bytes; }) ||
         inside(state().mappings, [](const Mapping& mapping) { return mapping.bytes; });
}

/// Another open file of the same memory, which tests tell apart by its mode.
inline constexpr int kDmaBufMode = O_APPEND;
inline int dma_buf_of(int fd) {
  return open(fmt::format("/proc/self/fd/{}", fd).c_str(), O_RDWR | O_CLOEXEC | kDmaBufMode);
}

/// The name of another process's descriptor. Fabric and IPC handles contain it.
struct ForeignFd {
  pid_t pid;
  int fd;
};
inline int open_foreign(const void* handle) {
  ForeignFd name{};
  std::memcpy(&name, handle, sizeof name);
  return open(fmt::format("/proc/{}/fd/{}", name.pid, name.fd).c_str(), O_RDWR | O_CLOEXEC);
}

/// Moves aligned words whole, as the hardware does.
inline void move(std::byte* to, const std::byte* from, std::size_t bytes) {
  const auto aligned = [](const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 8 == 0; };
  const bool words = aligned(to) && aligned(from);
  for (std::size_t i = 0; i < bytes;) {
    if (words && bytes - i >= 8) {
      const auto value =
          std::atomic_ref(*reinterpret_cast<std::uint64_t*>(const_cast<std::byte*>(from) + i))
              .load(std::memory_order_acquire);
      std::atomic_ref(*reinterpret_cast<std::uint64_t*>(to + i))
          .store(value, std::memory_order_release);
      i += 8;
    } else {
      const auto value =
          std::atomic_ref(*const_cast<std::byte*>(from + i)).load(std::memory_order_acquire);
      std::atomic_ref(to[i]).store(value, std::memory_order_release);
      ++i;
    }
  }
}

}  // namespace shoal::test::fake_driver
