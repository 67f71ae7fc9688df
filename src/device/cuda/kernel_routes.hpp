// SPDX-License-Identifier: Apache-2.0
// kernel_routes.hpp: the queues that a network has made for kernels (transport/device_queues.hpp),
// mapped for the GPU and described in its memory: World::gda.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "memory/cuda/driver.hpp"
#include "memory/device.hpp"
#include "shoal/device/detail/gda/path.hpp"
#include "shoal/error.hpp"
#include "transport/device_queues.hpp"

namespace shoal::detail {

class KernelRoutes {
 public:
  /// `queues`: by PE; nullptr: none. The networks outlive this. Throws Error{system} or
  /// Error{exhausted} where the GPU cannot use the memory of a queue.
  KernelRoutes(const memory::Device& device,
               const std::vector<const transport::DeviceQueues*>& queues, const std::byte* heap,
               std::uint64_t timeout_ns);
  ~KernelRoutes();
  KernelRoutes(const KernelRoutes&) = delete;
  KernelRoutes& operator=(const KernelRoutes&) = delete;

  /// In GPU memory; nullptr where the queues lead to no PE.
  const device::gda::Routes* get() const noexcept { return routes_; }
  /// True if queues lead to [offset, offset + bytes) of the heap of `pe`, and from there.
  bool reaches(Pe pe, std::size_t offset, std::size_t bytes) const noexcept;
  /// Like DeviceSide::nic_failure.
  std::optional<Error> failure(Pe pe, CUstream_st* stream) const;

 private:
  void map(const transport::DeviceQueues::Range& range);
  void describe(const std::vector<transport::DeviceQueues::Route>& routes, const std::byte* heap,
                std::uint64_t timeout_ns);
  void release() noexcept;

  const memory::Device& device_;
  const memory::cuda::Driver& driver_;
  std::vector<std::byte*> mapped_;
  std::uint32_t* abort_ = nullptr;  ///< pinned
  CUdeviceptr memory_ = 0;          ///< of *routes_, and all it points to
  const device::gda::Routes* routes_ = nullptr;
  std::vector<device::gda::Queue> queues_;  ///< in the order of their words in GPU memory
  std::vector<std::size_t> reached_;        ///< by PE: Route::bytes; 0: no queue leads there
};

}  // namespace shoal::detail
