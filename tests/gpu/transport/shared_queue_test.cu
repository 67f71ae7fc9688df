// SPDX-License-Identifier: Apache-2.0
// Shared send queues of a GPU: kernels build requests in pinned memory or in that of the GPU, and a
// host thread answers as a NIC does. It checks and counts the requests; it moves no data.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <ostream>
#include <vector>

#include "base/mlx5/host_bus.hpp"
#include "gpu/device/world.hpp"
#include "shoal/device/detail/gda/cuda_platform.cuh"
#include "shoal/device/detail/gda/operations.hpp"

namespace shoal::test {
namespace {

namespace gda = device::gda;

constexpr std::uint32_t kSlots = 64;

/// Memory that kernels write and a NIC reads by DMA, and the reverse.
struct QueueMemory {
  alignas(64) mlx5::Segment ring[kSlots * 4];
  alignas(64) mlx5::CompletionEntry entries[kSlots];
  alignas(64) mlx5::DoorbellRecord record;
};

/// In memory of the host that the GPU reaches.
struct Pinned {
  QueueMemory queue;
  alignas(64) std::uint64_t doorbell;
  std::uint64_t results[1024];
  std::uint32_t abort;
};

/// Every operation, by threads and by warps. Counts the calls that were not successful.
__global__ void run_operations(gda::Queue queue, gda::CudaPlatform platform, Pinned* pinned,
                               int repeats, std::uint64_t limit, unsigned* failed) {
  const std::uint64_t deadline = platform.now() + limit;
  const unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
  const gda::Warp warp;
  const mlx5::Memory remote{0x1000 + 64 * thread, 5};
  const gda::Result result{&pinned->results[thread % 1024], {0x9000 + 8 * thread, 6}};
  const gda::Source source{reinterpret_cast<const std::byte*>(pinned->results), {0x9000, 6}};
  const gda::Source unreadable{nullptr, {0x9000, 6}};
  const gda::Signal signal{remote, 1, gda::SignalKind::set};
  std::uint64_t ticket = 0, before = 0;
  unsigned bad = 0;
  const auto expect = [&](gda::Outcome outcome) { bad += outcome != gda::Outcome::ok ? 1 : 0; };
  for (int i = 0; i < repeats; ++i) {
    expect(gda::post_each(warp, queue,
                          {.source = unreadable,
                           .remote = remote,
                           .bytes = threadIdx.x % 3 == 0 ? 0U : 4096U,
                           .signal = threadIdx.x % 4 == 0 ? &signal : nullptr},
                          deadline, platform, ticket));
    if (warp.rank() == 0) {
      expect(gda::put(queue, source, remote, 8, deadline, platform, ticket));
      expect(gda::put(queue, unreadable, remote, 100000, deadline, platform, ticket));
      expect(gda::put_signal(queue, unreadable, remote, 4096, {remote, 1}, deadline, platform,
                             ticket));
      expect(gda::put_signal(queue, source, remote, 16, {remote, 1, gda::SignalKind::set}, deadline,
                             platform, ticket));
      expect(gda::signal(queue, {remote, 1}, deadline, platform, ticket));
      expect(gda::wait(queue, ticket, deadline, platform));
      expect(gda::fetch_add(queue, remote, 1, result, deadline, platform, before));
      expect(gda::compare_swap(queue, remote, 1, 2, result, deadline, platform, before));
      expect(gda::fence(queue, deadline, platform));
      expect(gda::quiet(queue, deadline, platform));
    }
    __syncwarp();
  }
  if (bad != 0) atomicAdd(failed, bad);
}

/// Completes requests in order; request `wrong` fails.
class FakeNic {
 public:
  /// `on_gpu`: nullptr, or the queue's memory, of which the NIC has a copy in `memory`.
  FakeNic(QueueMemory& memory, QueueMemory* on_gpu, bool collapsed, std::uint64_t wrong = ~0ULL)
      : memory_(memory), on_gpu_(on_gpu), collapsed_(collapsed), wrong_(wrong) {
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
  }
  ~FakeNic() { cudaStreamDestroy(stream_); }
  FakeNic(const FakeNic&) = delete;
  FakeNic& operator=(const FakeNic&) = delete;

  /// Answers what has been posted.
  void serve() {
    copy(&QueueMemory::record, cudaMemcpyDeviceToHost);
    copy(&QueueMemory::ring, cudaMemcpyDeviceToHost);  // requests precede the record
    bool answered = false;
    while (step()) answered = true;
    if (answered) copy(&QueueMemory::entries, cudaMemcpyHostToDevice);
  }
  std::uint64_t executed() const { return executed_; }
  int faults = 0;

 private:
  template <typename Part>
  void copy(Part QueueMemory::* part, cudaMemcpyKind kind) {
    if (on_gpu_ == nullptr) return;
    const bool reads = kind == cudaMemcpyDeviceToHost;
    Part &here = memory_.*part, &there = on_gpu_->*part;
    EXPECT_EQ(
        cudaMemcpyAsync(reads ? &here : &there, reads ? &there : &here, sizeof here, kind, stream_),
        cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  }
  bool step() {
    const auto posted = static_cast<std::uint16_t>(
        mlx5::big(std::atomic_ref(memory_.record.sends).load(std::memory_order_acquire)));
    const auto ahead = static_cast<std::uint16_t>(posted - executed_);
    if (ahead == 0) return false;
    if (ahead > kSlots) ++faults;
    const mlx5::Segment& control = memory_.ring[executed_ % kSlots * 4];
    const std::uint32_t first = mlx5::big(control.words[0]);
    if ((first >> 8 & 0xffff) != (executed_ & 0xffff)) ++faults;
    const bool signalled = (mlx5::big(control.words[2]) & 0x08) != 0;
    const bool fails = executed_ >= wrong_;
    if (signalled || fails) complete(first & 0xff, fails);
    ++executed_;
    return true;
  }
  void complete(std::uint32_t opcode, bool fails) {
    mlx5::CompletionEntry& entry = memory_.entries[collapsed_ ? 0 : executed_ % kSlots];
    entry.syndrome = fails ? (executed_ == wrong_ ? 0x13 : 0x05) : 0;
    entry.operation = mlx5::big(opcode << 24 | 77);
    const std::uint32_t owner = collapsed_ ? 0 : executed_ / kSlots & 1;
    std::atomic_ref(entry.index_state)
        .store(mlx5::big(static_cast<std::uint32_t>(executed_ & 0xffff) << 16 |
                         (fails ? mlx5::kCompletionError << 4 : 0) | owner),
               std::memory_order_release);
  }

  QueueMemory& memory_;
  QueueMemory* on_gpu_;
  cudaStream_t stream_ = nullptr;
  bool collapsed_;
  std::uint64_t executed_ = 0, wrong_;
};

struct Shape {
  const char* name;
  bool collapsed, on_gpu;  ///< completions; where work queue, doorbell record and completions are
};
void PrintTo(const Shape& shape, std::ostream* out) {
  *out << shape.name;
}

class GpuSharedQueue : public ::testing::TestWithParam<Shape> {
 protected:
  void SetUp() override {
    SHOAL_NEEDS_GPU();
    ASSERT_EQ(cudaMallocHost(reinterpret_cast<void**>(&pinned), sizeof *pinned), cudaSuccess);
    std::memset(static_cast<void*>(pinned), 0, sizeof *pinned);
    QueueMemory* memory = &pinned->queue;
    std::memset(static_cast<void*>(memory->entries), mlx5::kUnusedEntry, sizeof memory->entries);
    if (GetParam().on_gpu) {
      ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&on_gpu), sizeof *on_gpu), cudaSuccess);
      ASSERT_EQ(cudaMemcpy(on_gpu, memory, sizeof *on_gpu, cudaMemcpyDefault), cudaSuccess);
      memory = on_gpu;
    }
    ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&queue.shared), sizeof *queue.shared),
              cudaSuccess);
    ASSERT_EQ(cudaMemset(queue.shared, 0, sizeof *queue.shared), cudaSuccess);
    ASSERT_EQ(cudaMallocHost(reinterpret_cast<void**>(&failed), sizeof *failed), cudaSuccess);
    *failed = 0;
    queue.sends = {memory->ring, kSlots, 77, &memory->record.sends, &pinned->doorbell};
    queue.completions = {memory->entries, GetParam().collapsed ? 0U : 6U, nullptr};
    queue.largest_message = 4096;
    queue.sink = {0x8000, 6};
    platform = {&pinned->abort};
  }
  void TearDown() override {
    cudaFreeHost(pinned);
    cudaFree(on_gpu);
    cudaFree(queue.shared);
    cudaFreeHost(failed);
  }
  /// Runs the kernel alongside the NIC. Returns whether it ended in time.
  bool run(FakeNic& nic, int blocks, int repeats, std::uint64_t limit) {
    cudaStream_t stream = nullptr;
    if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) return false;
    run_operations<<<blocks, 128, 0, stream>>>(queue, platform, pinned, repeats, limit, failed);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    cudaError_t state = cudaErrorNotReady;
    while (state == cudaErrorNotReady && std::chrono::steady_clock::now() < end) {
      nic.serve();
      state = cudaStreamQuery(stream);
    }
    nic.serve();
    EXPECT_EQ(state, cudaSuccess) << cudaGetErrorString(state);
    cudaStreamDestroy(stream);
    return state == cudaSuccess;
  }

  Pinned* pinned = nullptr;
  QueueMemory* on_gpu = nullptr;
  unsigned* failed = nullptr;
  gda::Queue queue;
  gda::CudaPlatform platform;
};

constexpr std::uint64_t kLimit = 20'000'000'000;  // nanoseconds

// 32 warps, each request at its index, none lost; indices wrap.
TEST_P(GpuSharedQueue, AllRequestsArriveInOrder) {
  for (const auto ordering : {gda::Ordering::strict, gda::Ordering::unordered}) {
    TearDown();
    SetUp();
    if (IsSkipped()) return;
    queue.ordering = ordering;
    FakeNic nic(pinned->queue, on_gpu, GetParam().collapsed);
    ASSERT_TRUE(run(nic, 8, 50, kLimit));
    EXPECT_EQ(nic.faults, 0);
    EXPECT_EQ(*failed, 0u);
    gda::Shared shared;
    ASSERT_EQ(cudaMemcpy(&shared, queue.shared, sizeof shared, cudaMemcpyDeviceToHost),
              cudaSuccess);
    EXPECT_EQ(nic.executed(), shared.reserved);
    EXPECT_EQ(shared.completed, shared.reserved);
    EXPECT_EQ(shared.failure, 0u);
  }
}

TEST_P(GpuSharedQueue, AnErrorEndsTheKernel) {
  FakeNic nic(pinned->queue, on_gpu, GetParam().collapsed, 1000);
  ASSERT_TRUE(run(nic, 8, 50, kLimit));
  EXPECT_GT(*failed, 0u);
  gda::Shared shared;
  ASSERT_EQ(cudaMemcpy(&shared, queue.shared, sizeof shared, cudaMemcpyDeviceToHost), cudaSuccess);
  const gda::Failure failure = gda::decode(shared.failure, 3, 77);
  EXPECT_EQ(failure.cause, gda::Cause::nic);
  if (!GetParam().collapsed) EXPECT_EQ(failure.index, 1000u);
}

TEST_P(GpuSharedQueue, ADeadNicEndsTheKernelByItsDeadline) {
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  run_operations<<<4, 128, 0, stream>>>(queue, platform, pinned, 10, 50'000'000, failed);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_GT(*failed, 0u);
  cudaStreamDestroy(stream);
}

INSTANTIATE_TEST_SUITE_P(Queues, GpuSharedQueue,
                         ::testing::Values(Shape{"EntryEach", false, false},
                                           Shape{"Collapsed", true, false},
                                           Shape{"EntryEachInGpuMemory", false, true}),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace shoal::test
