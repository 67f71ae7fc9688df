// SPDX-License-Identifier: Apache-2.0
// window.hpp: the single address range through which a process accesses the heaps of a world.
//
// PE p's heap byte o is at base(0) + p * stride + o. PEs that are threads of one process share the
// window: memory of one GPU that is mapped at two addresses is not coherent within a kernel (CUDA
// programming guide, "Virtual Aliasing Support"), and PEs on one GPU poll what others write. Each
// PE grants its own GPU access to the memory that it uses.
#pragma once

#include <cuda.h>

#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "memory/cuda/driver.hpp"
#include "memory/host/segment.hpp"
#include "shoal/heap.hpp"

namespace shoal::memory::cuda {

/// Properties of heap memory that can be exported as `handle`. `for_nics`: NICs may access it.
CUmemAllocationProp heap_properties(int device, CUmemAllocationHandleType handle,
                                    bool for_nics = false);

/// Allocates `granularity` bytes and exports them as a fabric handle. The attribute of a GPU
/// reports its capability; only an export shows whether the machine permits it.
CUresult export_fabric(const Driver& driver, int device, std::size_t granularity);

class Window {
 public:
  /// The window of a world in this process. The first PE of the process that calls reserves the
  /// addresses, without memory. `stride` and `alignment` are multiples of the granularity of all
  /// GPUs of the world. Throws Error{system} or Error{exhausted} naming SHOAL_SYMMETRIC_SIZE.
  static std::shared_ptr<Window> open(const Token& world, Pe n_pes, std::size_t stride,
                                      std::size_t alignment);

  /// Unmaps everything. Memory is freed when no process maps it any more.
  ~Window();
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  std::byte* base(Pe pe) const noexcept { return base_ + static_cast<std::size_t>(pe) * stride_; }
  std::size_t stride() const noexcept { return stride_; }

  /// Maps `memory` at [offset, offset + bytes) of `pe`, unless another PE of this process has
  /// mapped it. Releases the handle in every case. Throws Error{system}.
  void map(Pe pe, std::size_t offset, std::size_t bytes, CUmemGenericAllocationHandle memory);
  /// Grants GPU `device` access to the mapping at `offset` of `pe`.
  CUresult grant(Pe pe, std::size_t offset, int device);
  void unmap(Pe pe, std::size_t offset) noexcept;

 private:
  Window(const Driver& driver, const Token& world, Pe n_pes, std::size_t stride,
         std::size_t alignment);

  const Driver& driver_;
  Token world_;
  std::size_t stride_;
  std::size_t bytes_;
  std::byte* base_ = nullptr;
  std::mutex mutex_;
  std::map<std::pair<Pe, std::size_t>, std::size_t> mapped_;  // (PE, offset) -> bytes
};

}  // namespace shoal::memory::cuda
