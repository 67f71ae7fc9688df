// SPDX-License-Identifier: Apache-2.0
// fake_cuda.hpp: a CUDA driver without a GPU: its memory is host memory, and its copies are memcpy.
//
// It runs all host code of GPU heaps on machines without a GPU, and makes any function fail at any
// call. It refuses what the driver would refuse: access that was not granted, calls without a
// context, unmapping what is not mapped. Only in builds with CUDA.
#pragma once
#ifdef SHOAL_WITH_CUDA

#include <cuda.h>

#include <functional>
#include <string>

namespace shoal::test {

struct FakeCudaOptions {
  int gpus = 8;
  bool vmm = true, fd = true, fabric = true;
  bool native_atomics = true;
  bool gpu_direct = true;      ///< NICs may access its memory
  bool ordered_writes = true;  ///< kernels see a NIC's writes in order
  bool dma_buf = true;
  bool lazy_loading = false;
  bool multicast = false, stream_memory_ops = false;
  std::size_t memory = std::size_t{1} << 30;       ///< of each GPU, counted in this process
  std::function<bool(int, int)> peer_access = {};  ///< by two GPU indices; empty: everywhere
  std::string failing_function = {};               ///< a field of Driver, such as "mem_map"
  int failing_call = 0;                            ///< which of its calls fails, from 0
  int failures = 1;                                ///< number of calls that fail
  CUresult failure = CUDA_ERROR_UNKNOWN;
};

/// The target of a CUstream of the fake driver.
struct FakeStream {
  int device = 0;
  int priority = 0;
};

/// The target of a CUmodule or CUlibrary of the fake driver: an image with one global variable.
struct FakeImage {
  std::string symbol{};
  void* address = nullptr;  ///< memory of a fake GPU
  std::size_t bytes = 0;
};

/// Replaces the real driver and word kernels during its lifetime, with no stream in the pool
/// (memory/cuda/stream_pool.hpp). Only one may exist at a time.
class FakeCuda {
 public:
  explicit FakeCuda(FakeCudaOptions options = {});
  ~FakeCuda();
  FakeCuda(const FakeCuda&) = delete;
  FakeCuda& operator=(const FakeCuda&) = delete;

  /// Resources that were not released, such as "2 mappings, 1 streams"; empty if there are none.
  /// Released streams go to the pool, which this call empties.
  static std::string leaks();
  /// Open descriptors of dma-bufs in this process.
  static int dma_bufs();
  /// Number of calls of a function until now.
  static int calls(const std::string& function);
};

}  // namespace shoal::test

#endif
