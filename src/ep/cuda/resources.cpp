// SPDX-License-Identifier: Apache-2.0
#include "ep/cuda/resources.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "base/backoff.hpp"
#include "base/check.hpp"
#include "base/interrupt.hpp"
#include "memory/cuda/stream_pool.hpp"
#include "memory/device.hpp"

namespace shoal::ep::cuda {

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  (void)cudaGetLastError();  // clears it, so that the next launch reports its own
  fail(Code::system, "{}: {} ({})", what, cudaGetErrorString(status), cudaGetErrorName(status));
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

GroupResources::GroupResources(const memory::Device& gpu)
    : taken_stream(memory::cuda::take_stream(gpu, memory::cuda::StreamPriority::highest)),
      stream(taken_stream.get()) {
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location = {cudaMemLocationTypeDevice, gpu.device};
  check(cudaMemPoolCreate(&pool, &properties), "memory pool of an ep::Group");
  std::uint64_t all = ~std::uint64_t{0};  // keeps memory that results leave for later ones
  check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all),
        "memory pool of an ep::Group");
}

GroupResources::~GroupResources() {
  (void)cudaMemPoolDestroy(pool);
}

std::shared_ptr<void> GroupResources::allocate(std::size_t bytes, cudaStream_t on,
                                               const std::shared_ptr<GroupResources>& self) const {
  void* memory = nullptr;
  check(cudaMallocFromPoolAsync(&memory, std::max<std::size_t>(bytes, 16), pool, on),
        "memory of an ep::Group");
  return {memory, [self](void* pointer) { (void)cudaFreeAsync(pointer, self->stream); }};
}

struct BlockPool::Blocks {
  explicit Blocks(std::shared_ptr<GroupResources> owner) : resources(std::move(owner)) {}
  std::shared_ptr<GroupResources> resources;
  std::mutex mutex;
  std::vector<std::shared_ptr<void>> free;
};

BlockPool::BlockPool(std::size_t bytes, std::shared_ptr<GroupResources> resources)
    : bytes_(bytes), blocks_(std::make_shared<Blocks>(std::move(resources))) {}

void BlockPool::reserve(std::size_t blocks) {
  {
    const std::lock_guard lock(blocks_->mutex);
    if (blocks_->free.size() >= blocks) return;
  }
  std::vector<std::shared_ptr<void>> taken;
  for (std::size_t i = 0; i < blocks; ++i) taken.push_back(take());
}

std::shared_ptr<void> BlockPool::take() {
  std::shared_ptr<void> block;
  {
    const std::lock_guard lock(blocks_->mutex);
    if (!blocks_->free.empty()) {
      block = std::move(blocks_->free.back());
      blocks_->free.pop_back();
    }
  }
  if (block == nullptr) {
    const auto& resources = blocks_->resources;
    block = resources->allocate(bytes_, resources->stream, resources);
    check(cudaStreamSynchronize(resources->stream), "memory for the layout of an operation");
  }
  void* const pointer = block.get();
  return {pointer, [blocks = blocks_, block = std::move(block)](void*) mutable {
            const std::lock_guard lock(blocks->mutex);
            blocks->free.push_back(std::move(block));
          }};
}

struct RecentMemory::Kept {
  static constexpr std::size_t kMost = 4;
  struct Block {
    std::size_t bytes;
    std::shared_ptr<void> memory;
  };
  std::mutex mutex;
  std::vector<Block> blocks;  // the last one was released last

  /// A block of this size; nullptr where there is none.
  std::shared_ptr<void> find(std::size_t bytes) {
    const std::lock_guard lock(mutex);
    const auto found = std::find_if(blocks.rbegin(), blocks.rend(),
                                    [&](const Block& block) { return block.bytes == bytes; });
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
