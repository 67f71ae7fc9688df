// SPDX-License-Identifier: Apache-2.0
// cuda_platform.cuh: takes the place of include/shoal/device/detail/gda/cuda_platform.cuh: threads
// of the fake GPU use queues as threads of a processor do, and let the others of their block run
// while they wait.
#pragma once

#include <bit>

#include "fake_gpu/fake_gpu.hpp"
#include "shoal/device/ptx.cuh"
#include "support/gda/host_platform.hpp"

namespace shoal::device::gda {

struct CudaPlatform : HostPlatform {
  CudaPlatform(const std::uint32_t* abort_word) : abort_word_(abort_word) {}
  bool aborted() const noexcept {
    return abort_word_ != nullptr && __atomic_load_n(abort_word_, __ATOMIC_RELAXED) != 0;
  }
  void pause() const { test::fake_gpu::poll(); }

 private:
  const std::uint32_t* abort_word_;
};

/// The lanes of a warp, as in include/.
struct Warp {
  std::uint32_t rank() const { return threadIdx.x % 32; }
  std::uint32_t size() const { return 32; }
  void sync() const { __syncwarp(); }
  std::uint64_t broadcast(std::uint64_t value) const { return __shfl_sync(~0U, value, 0); }
  std::uint32_t count_before(bool flag, std::uint32_t& total) const {
    const std::uint32_t set = __ballot_sync(~0U, flag);
    total = static_cast<std::uint32_t>(std::popcount(set));
    return static_cast<std::uint32_t>(std::popcount(set & ((1U << rank()) - 1)));
  }
};

}  // namespace shoal::device::gda
