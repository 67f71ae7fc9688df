// SPDX-License-Identifier: Apache-2.0
// cuda_platform.cuh: shared queues (queue.hpp) for the threads of one GPU.
//
// The shared words are in this GPU's memory and used by its kernels alone: scope gpu. What the NIC
// reads or writes has scope sys.
#pragma once

#include <shoal/device/ptx.cuh>

#ifdef __CUDACC__

namespace shoal::device::gda {

struct CudaPlatform {
  const std::uint32_t* abort = nullptr;  ///< in memory that the host can write

  // Implements Bus (queue.hpp).
  /// After order_requests().
  __device__ void store_record(std::uint32_t* word, std::uint32_t value) const {
    ptx::st_relaxed_sys(word, value);
  }
  __device__ void order_record() const { ptx::fence_acq_rel_sys(); }
  __device__ void ring(std::uint64_t* doorbell, std::uint64_t value) const {
    ptx::st_mmio_relaxed_sys(doorbell, value);
    ptx::fence_acq_rel_sys();  // before the record of the thread that rings next
  }
  __device__ std::uint32_t load_entry(const std::uint32_t* word) const {
    return ptx::ld_acquire_sys(word);
  }

  __device__ std::uint64_t load(const std::uint64_t* word) const {
    return ptx::ld_acquire_gpu(word);
  }
  __device__ std::uint64_t peek(const std::uint64_t* word) const {
    return ptx::ld_relaxed_gpu(word);
  }
  __device__ void store(std::uint64_t* word, std::uint64_t value) const {
    ptx::st_release_gpu(word, value);
  }
  __device__ void store_ordered(std::uint64_t* word, std::uint64_t value) const {
    ptx::st_relaxed_gpu(word, value);
  }
  __device__ bool try_lock(std::uint64_t* word) const {
    return ptx::atom_acquire_gpu_cas(word, 0, 1) == 0;
  }
  __device__ std::uint64_t load_early(const std::uint64_t* word) const {
    return ptx::ld_relaxed_gpu(word);
  }
  __device__ bool try_lock_early(std::uint64_t* word) const {
    return ptx::atom_relaxed_gpu_cas(word, 0, 1) == 0;
  }
  __device__ std::uint64_t add(std::uint64_t* word, std::uint64_t value) const {
    return ptx::atom_relaxed_gpu_add(word, value);
  }
  __device__ void raise(std::uint64_t* word, std::uint64_t value) const {
    ptx::atom_acq_rel_gpu_max(word, value);
  }
  __device__ bool replace(std::uint64_t* word, std::uint64_t& seen, std::uint64_t value) const {
    const std::uint64_t before = ptx::atom_acq_rel_gpu_cas(word, seen, value);
    const bool replaced = before == seen;
    seen = before;
    return replaced;
  }
  __device__ void order_requests() const { ptx::fence_acq_rel_sys(); }
  __device__ std::uint32_t load_cause(const std::uint32_t* word) const {
    return ptx::ld_relaxed_sys(word);
  }
  __device__ std::uint64_t now() const { return ptx::globaltimer(); }
  __device__ bool aborted() const { return abort != nullptr && ptx::ld_relaxed_sys(abort) != 0; }
  __device__ void pause() const { __nanosleep(20); }
};

/// The lanes of a whole warp as a group (operations.hpp).
struct Warp {
  __device__ std::uint32_t rank() const { return threadIdx.x % 32; }
  __device__ std::uint32_t size() const { return 32; }
  __device__ void sync() const { __syncwarp(); }
  __device__ std::uint64_t broadcast(std::uint64_t value) const {
    return __shfl_sync(kAll, static_cast<unsigned long long>(value), 0);
  }
  __device__ std::uint32_t count_before(bool flag, std::uint32_t& total) const {
    const std::uint32_t set = __ballot_sync(kAll, flag);
    total = static_cast<std::uint32_t>(__popc(set));
    return static_cast<std::uint32_t>(__popc(set & ((1U << rank()) - 1)));
  }

 private:
  static constexpr std::uint32_t kAll = 0xffffffff;
};

}  // namespace shoal::device::gda

#endif
