// SPDX-License-Identifier: Apache-2.0
// network.cuh: takes the place of src/ep/cuda/device/network.cuh. What goes by the proxy goes to a
// network of the program (low_latency_network.cpp, internode_network.cpp), which delays and
// reorders; a signal comes after what its PE has started before it. What goes by NIC takes the same
// way; in programs that define SHOAL_TEST_NIC, that of the kernels.
#pragma once

#include <cstddef>
#include <cstdint>

#include <shoal/device/types.hpp>

#include "ep/cuda/device/network_path.hpp"

namespace shoal::test::fake_gpu {

/// Posts a put of `bytes` bytes, which may be 0, and a signal after it where `flag` is not nullptr.
/// With `waits`, returns when both are complete; otherwise the source may be read late. Returns
/// false where the network has failed. Addresses are those of the heap of the caller.
bool post(const device::World& world, Pe pe, const void* target, const void* source,
          std::size_t bytes, const std::uint64_t* flag, std::uint64_t value, bool waits);

}  // namespace shoal::test::fake_gpu

namespace shoal::ep::cuda {

struct ByProxy {
  static constexpr std::size_t kGapBytes = std::size_t{16} << 10;

  static bool start_put(const device::World& world, void* target, const void* source,
                        std::size_t bytes, Pe pe, const std::uint64_t* flag = nullptr,
                        std::uint64_t value = 0) {
    return test::fake_gpu::post(world, pe, target, source, bytes, flag, value, false);
  }
  static bool start_each(const device::World& world, void* target, const void* source,
                         std::size_t bytes, Pe pe, const std::uint64_t* flag, std::uint64_t value) {
    const bool started = bytes == 0 || start_put(world, target, source, bytes, pe);
    __syncwarp();
    return (flag == nullptr || start_signal(world, flag, value, pe)) && started;
  }
  static bool put(const device::World& world, void* target, const void* source, std::size_t bytes,
                  Pe pe, const std::uint64_t* flag, std::uint64_t value) {
    return test::fake_gpu::post(world, pe, target, source, bytes, flag, value, true);
  }
  static bool start_signal(const device::World& world, const std::uint64_t* word,
                           std::uint64_t value, Pe pe) {
    return test::fake_gpu::post(world, pe, nullptr, nullptr, 0, word, value, false);
  }
};

}  // namespace shoal::ep::cuda

#ifdef SHOAL_TEST_NIC
#include "ep/cuda/device/nic_network.cuh"
#else
namespace shoal::ep::cuda {
struct ByNic : ByProxy {
  static constexpr std::size_t kGapBytes = std::size_t{1} << 10;
};
}  // namespace shoal::ep::cuda
#endif
