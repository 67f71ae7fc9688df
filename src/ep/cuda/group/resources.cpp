// SPDX-License-Identifier: Apache-2.0
#include "ep/cuda/group/resources.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "base/align.hpp"
#include "base/backoff.hpp"
#include "base/check.hpp"
#include "base/interrupt.hpp"
#include "ep/cuda/group/relaxed_capture.hpp"
#include "memory/cuda/stream_pool.hpp"
#include "memory/device.hpp"

namespace shoal::ep::cuda {

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  (void)cudaGetLastError();  // clears it, so that the next launch reports its own
  fail(Code::system, "SHOAL-N460: {}: {} ({})", what, cudaGetErrorString(status),
       cudaGetErrorName(status));
}

bool is_capturing(cudaStream_t stream) noexcept {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  return cudaStreamIsCapturing(stream, &status) == cudaSuccess &&
         status == cudaStreamCaptureStatusActive;
}

cudaError_t poll_while_not_ready(const std::function<cudaError_t()>& query, const char* what) {
  constexpr std::chrono::milliseconds kBetweenQuestions{1};
  auto asked = std::chrono::steady_clock::now();
  Backoff backoff;
  for (;;) {
    const cudaError_t result = query();
    if (result != cudaErrorNotReady) return result;
    (void)cudaGetLastError();  // not an error, yet the runtime keeps it as one
    if (const auto now = std::chrono::steady_clock::now(); now - asked >= kBetweenQuestions) {
      asked = now;
      throw_if_interrupted(what);
    }
    backoff();
  }
}

namespace {

/// Pools of closed groups. A later group finds the memory of its small arrays there; the first
/// allocation of a new pool maps memory, which takes the driver far longer.
class MemoryPools {
 public:
  static MemoryPools& instance() {
    static auto* pools = new MemoryPools;  // never destroyed: groups may outlive static objects
    return *pools;
  }

  cudaMemPool_t take(int device) {
    {
      const std::lock_guard lock(mutex_);
      if (const auto found = free_.find(device); found != free_.end()) {
        cudaMemPool_t pool = found->second;
        free_.erase(found);
        return pool;
      }
    }
    return make(device);
  }

  /// Keeps a pool of small arrays. One that holds more, as of results whose release is still queued
  /// on a stream, returns its memory.
  void give_back(int device, cudaMemPool_t pool) {
    constexpr std::uint64_t kMost = 64 << 20;  // a pool grows by 32 MiB at least
    std::uint64_t reserved = 0;
    const bool known =
        cudaMemPoolTrimTo(pool, kMost) == cudaSuccess &&
        cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &reserved) == cudaSuccess;
    if (!known || reserved > kMost) {
      (void)cudaMemPoolDestroy(pool);
      return;
    }
    const std::lock_guard lock(mutex_);
    free_.emplace(device, pool);
  }

 private:
  static cudaMemPool_t make(int device) {
    constexpr const char* kPool = "memory pool of an ep::Group";
    cudaMemPoolProps properties{};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location = {cudaMemLocationTypeDevice, device};
    cudaMemPool_t pool = nullptr;
    check(cudaMemPoolCreate(&pool, &properties), kPool);
    std::uint64_t all = ~std::uint64_t{0};  // keeps memory that results leave for later ones
    check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all), kPool);
    // A later group must not wait on its stream for kernels of an earlier one.
    int none = 0;
    check(cudaMemPoolSetAttribute(pool, cudaMemPoolReuseAllowInternalDependencies, &none), kPool);
    return pool;
  }

  std::mutex mutex_;
  std::multimap<int, cudaMemPool_t> free_;
};

}  // namespace

GroupResources::GroupResources(const memory::Device& owner)
    : taken_stream(memory::cuda::take_stream(owner, memory::cuda::StreamPriority::highest)),
      stream(taken_stream.get()),
      gpu(owner) {
  device = gpu.device;
  pool = MemoryPools::instance().take(device);
}

GroupResources::~GroupResources() {
  const RelaxedCapture relaxed;
  MemoryPools::instance().give_back(device, pool);
}

std::shared_ptr<void> GroupResources::allocate(std::size_t bytes, cudaStream_t on,
                                               const std::shared_ptr<GroupResources>& self) const {
  const RelaxedCapture relaxed(gpu);
  void* memory = nullptr;
  check(cudaMallocFromPoolAsync(&memory, std::max<std::size_t>(bytes, 16), pool, on),
        "memory of an ep::Group");
  return {memory, [self](void* pointer) { self->free(pointer); }};
}

std::shared_ptr<void> GroupResources::allocate_apart(
    std::size_t bytes, const std::shared_ptr<GroupResources>& self) const {
  const RelaxedCapture relaxed(gpu);
  // The work is on the group's stream unless that is captured: with many PEs on a GPU, another
  // stream may share its hardware queue with a kernel that waits for this PE.
  std::shared_ptr<CUstream_st> apart = taken_stream;
  if (captured()) apart = memory::cuda::take_stream(gpu, memory::cuda::StreamPriority::lowest);
  auto memory = allocate(bytes, apart.get(), self);
  check(cudaStreamSynchronize(apart.get()), "memory of an ep::Group");
  return memory;
}

bool GroupResources::captured() const {
  cudaStreamCaptureStatus status{};
  return cudaStreamIsCapturing(stream, &status) != cudaSuccess ||
         status != cudaStreamCaptureStatusNone;
}

/// In stream order after the calls of the group, which are ordered on any stream. A captured stream
/// would make a node of its graph of the release, so that has to wait.
void GroupResources::free(void* memory) {
  const RelaxedCapture relaxed;
  const std::lock_guard lock(mutex_);
  freed_.push_back(memory);
  if (captured()) return;
  for (void* const pointer : freed_) (void)cudaFreeAsync(pointer, stream);
  freed_.clear();
}

struct ArrayPool::Shared {
  explicit Shared(std::shared_ptr<GroupResources> owner) : resources(std::move(owner)) {}
  std::shared_ptr<GroupResources> resources;
  std::mutex mutex;
  std::vector<std::shared_ptr<void>> free;
};

ArrayPool::ArrayPool(std::size_t bytes, std::shared_ptr<GroupResources> resources)
    : bytes_(bytes), shared_(std::make_shared<Shared>(std::move(resources))) {}

void ArrayPool::reserve(std::size_t blocks) {
  std::size_t missing = blocks;
  {
    const std::lock_guard lock(shared_->mutex);
    missing -= std::min(missing, shared_->free.size());
  }
  if (missing == 0) return;
  const auto& resources = shared_->resources;
  constexpr std::size_t kAlignment = 256;  // that of separate allocations
  const std::size_t step = align_up(bytes_, kAlignment);
  const std::shared_ptr<void> all = resources->allocate_apart(missing * step, resources);
  const std::lock_guard lock(shared_->mutex);
  for (std::size_t i = 0; i < missing; ++i)
    shared_->free.emplace_back(all, static_cast<std::byte*>(all.get()) + i * step);
}

std::shared_ptr<void> ArrayPool::take() {
  std::shared_ptr<void> block;
  {
    const std::lock_guard lock(shared_->mutex);
    if (!shared_->free.empty()) {
      block = std::move(shared_->free.back());
      shared_->free.pop_back();
    }
  }
  if (block == nullptr) block = shared_->resources->allocate_apart(bytes_, shared_->resources);
  void* const pointer = block.get();
  return {pointer, [blocks = shared_, block = std::move(block)](void*) mutable {
            const std::lock_guard lock(blocks->mutex);
            blocks->free.push_back(std::move(block));
          }};
}

struct RecentMemory::Kept {
  static constexpr std::size_t kMost = 4;
  struct Released {
    std::size_t bytes;
    std::shared_ptr<void> memory;
  };
  std::mutex mutex;
  std::vector<Released> blocks;  // the last one was released last

  /// A block of this size; nullptr where there is none.
  std::shared_ptr<void> find(std::size_t bytes) {
    const std::lock_guard lock(mutex);
    const auto found = std::find_if(blocks.rbegin(), blocks.rend(),
                                    [&](const Released& block) { return block.bytes == bytes; });
    if (found == blocks.rend()) return nullptr;
    std::shared_ptr<void> memory = std::move(found->memory);
    blocks.erase(std::next(found).base());
    return memory;
  }
  void keep(std::size_t bytes, std::shared_ptr<void> memory) {
    std::shared_ptr<void> oldest;  // freed without the lock
    const std::lock_guard lock(mutex);
    if (blocks.size() == kMost) {
      oldest = std::move(blocks.front().memory);
      blocks.erase(blocks.begin());
    }
    blocks.push_back({bytes, std::move(memory)});
  }
};

RecentMemory::RecentMemory(std::shared_ptr<GroupResources> resources)
    : resources_(std::move(resources)), kept_(std::make_shared<Kept>()) {}

std::shared_ptr<void> RecentMemory::take(std::size_t bytes, cudaStream_t on) const {
  std::shared_ptr<void> memory = kept_->find(bytes);
  if (memory == nullptr) memory = resources_->allocate(bytes, on, resources_);
  void* const pointer = memory.get();
  return {pointer, [bytes, kept = kept_, memory = std::move(memory)](void*) mutable {
            kept->keep(bytes, std::move(memory));
          }};
}

namespace {

/// A page: groups of other sizes find each other's memory.
constexpr std::size_t kPinnedStep = 4096;

struct Pinned {
  std::mutex mutex;
  std::multimap<std::size_t, void*> free;
  static Pinned& instance() {
    static auto* pinned = new Pinned;  // never destroyed: groups may outlive static objects
    return *pinned;
  }
};

}  // namespace

std::shared_ptr<void> take_pinned(std::size_t bytes) {
  bytes = align_up(bytes, kPinnedStep);
  auto& pinned = Pinned::instance();
  void* memory = nullptr;
  {
    const std::lock_guard lock(pinned.mutex);
    if (const auto found = pinned.free.find(bytes); found != pinned.free.end()) {
      memory = found->second;
      pinned.free.erase(found);
    }
  }
  if (memory == nullptr)
    check(cudaHostAlloc(&memory, bytes, cudaHostAllocMapped | cudaHostAllocPortable),
          "host memory of an ep::Group");
  std::memset(memory, 0, bytes);
  return {memory, [bytes](void* pointer) {
            auto& home = Pinned::instance();
            const std::lock_guard lock(home.mutex);
            home.free.emplace(bytes, pointer);
          }};
}

}  // namespace shoal::ep::cuda
