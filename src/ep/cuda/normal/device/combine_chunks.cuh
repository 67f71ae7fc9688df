// SPDX-License-Identifier: Apache-2.0
// combine_chunks.cuh: chunks of rows on their way through shared memory (sm_90 and later).
//
// A warp has a ring of stages. A stage holds a chunk of every row that is added to one part of the
// result, one after another. All lanes start bulk copies into the stage that is loaded; the warp
// adds up the stage that was loaded first.
//
// With few SMs the number of instructions is the limit (docs/decisions/combine-pulls.md), so
// nothing is computed again for each chunk.
#pragma once

#include "ep/cuda/device/group.cuh"
#include "ep/cuda/device/tma.cuh"
#include "ep/cuda/device/vectors.cuh"
#include "ep/cuda/normal/device/kernels.cuh"

#if __CUDA_ARCH__ >= 900

namespace shoal::ep::cuda {
namespace {

/// The ring of the calling warp. Shared memory of a block holds barriers, a uint4 for each stage,
/// then the stages.
class ChunkStages {
 public:
  __device__ ChunkStages(const NormalCombine& params, std::byte* shared)
      : count_(params.stages), stage_bytes_(params.chunk_bytes * params.stage_rows) {
    const std::uint32_t warp = threadIdx.x / 32;
    const SharedAddress start = shared_address(shared);
    barriers_ = ptx::keep_in_register(start + warp * kMaxStages * sizeof(std::uint64_t));
    in_flight_ = ptx::keep_in_register(start + kBarrierBytes + warp * kMaxStages * sizeof(uint4));
    stages_ =
        ptx::keep_in_register(start + 3 * kBarrierBytes + warp * params.stages * stage_bytes_);
    if (lane_id() == 0) {
      for (std::uint32_t s = 0; s < count_; ++s)
        ptx::mbarrier_init(barriers_ + s * sizeof(std::uint64_t), 1);
      barriers_ready();
    }
    __syncwarp();
  }
  /// Gives the shared memory up. Every stage has been added.
  __device__ void close() const {
    __syncwarp();
    if (lane_id() == 0)
      for (std::uint32_t s = 0; s < count_; ++s)
        ptx::mbarrier_inval(barriers_ + s * sizeof(std::uint64_t));
    __syncwarp();
  }

  __device__ std::uint32_t stage_bytes() const { return stage_bytes_; }
  /// Stages that can be loaded before the first one is added.
  __device__ std::uint32_t ahead() const { return count_ - 1; }
  __device__ bool all_added() const { return added_ == loaded_; }

  // The stage that is loaded: begin_load, load by any lanes, end_load.

  /// `note` comes back from note(); `bytes` of all loads.
  __device__ void begin_load(const uint4& note, std::uint32_t bytes) const {
    if (lane_id() == 0) {
      ptx::st_shared_v4(in_flight_ + load_stage_ * sizeof(uint4), note);
      barrier_expect(load_barrier(), bytes);
    }
    __syncwarp();
  }
  __device__ void load(std::uint32_t place, const std::byte* from, std::uint32_t bytes) const {
    bulk_load(stages_ + load_stage_ * stage_bytes_ + place, from, bytes, load_barrier());
  }
  __device__ void end_load() {
    if (++load_stage_ == count_) load_stage_ = 0;
    ++loaded_;
  }

  // The stage that is added: note, await, end_add.

  __device__ uint4 note() const {
    return ptx::ld_shared_v4(in_flight_ + add_stage_ * sizeof(uint4));
  }
  /// Address of its chunks, once they have arrived.
  __device__ SharedAddress await() const {
    barrier_wait(barriers_ + add_stage_ * sizeof(std::uint64_t), add_parity_);
    return stages_ + add_stage_ * stage_bytes_;
  }
  __device__ void end_add() {
    __syncwarp();  // the stage may be written again
    if (++add_stage_ == count_) {
      add_stage_ = 0;
      add_parity_ ^= 1;
    }
    ++added_;
  }

 private:
  __device__ SharedAddress load_barrier() const {
    return barriers_ + load_stage_ * sizeof(std::uint64_t);
  }

  const std::uint32_t count_, stage_bytes_;
  SharedAddress barriers_, stages_;
  SharedAddress in_flight_;  ///< by stage: the note
  std::uint32_t load_stage_ = 0, loaded_ = 0, add_stage_ = 0, add_parity_ = 0, added_ = 0;
};

/// Adds parts of chunks `first` to `end`, which lie `stride` bytes apart. Parts have sixteen bytes
/// each and are kCombineStep apart; the first one of chunk 0 is at `from`.
template <class Format, int kParts>
__device__ void add_chunks(float (&sums)[kParts][Format::kCount], SharedAddress from,
                           std::uint32_t stride, std::uint32_t first, std::uint32_t end) {
#pragma unroll(4 / kParts)
  for (std::uint32_t c = first; c < end; ++c) {
    uint4 parts[kParts];
#pragma unroll
    for (int i = 0; i < kParts; ++i)
      parts[i] = ptx::ld_shared_v4(from + c * stride + i * kCombineStep);
#pragma unroll
    for (int i = 0; i < kParts; ++i) add_vector<Format>(sums[i], parts[i]);
  }
}

/// Calls add(kParts, v) for the parts of a chunk that this lane adds: two at a time, then one.
template <typename Add>
__device__ void for_parts(std::uint32_t bytes, Add&& add) {
  std::uint32_t v = lane_id() * 16;
#pragma unroll 1
  for (; v + kCombineStep < bytes; v += 2 * kCombineStep) add(std::integral_constant<int, 2>(), v);
  if (v < bytes) add(std::integral_constant<int, 1>(), v);
}

}  // namespace
}  // namespace shoal::ep::cuda

#endif
