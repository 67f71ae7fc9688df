// SPDX-License-Identifier: Apache-2.0
#include "fake_gpu/fake_gpu.hpp"
//
#include <chrono>
#include <cstring>

#include "ep/cuda/device/network.cuh"
#include "fake_gpu/network.hpp"

namespace shoal::test::fake_gpu {
namespace {

Network* network = nullptr;

}  // namespace

Network::Network(std::vector<std::byte*> heaps, std::uint32_t seed)
    : heaps_(std::move(heaps)), random_(seed), thread_([this] { deliver(); }) {
  network = this;
}

Network::~Network() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  posted_.notify_all();
  thread_.join();
  network = nullptr;
}

void Network::post(Put put) {
  bytes += put.bytes;
  if (put.pe == lost_pe) {
    if (put.done != nullptr) *put.done = true;
    return;
  }
  const std::lock_guard lock(mutex_);
  queue_.push_back(put);
  posted_.notify_all();
}

void Network::deliver() {
  std::unique_lock lock(mutex_);
  for (;;) {
    posted_.wait(lock, [&] { return ends_ || !queue_.empty(); });
    if (queue_.empty()) return;
    if (!ends_ && random_() % 4 == 0) {  // others may overtake
      lock.unlock();
      std::this_thread::sleep_for(std::chrono::microseconds(random_() % 40));
      lock.lock();
    }
    const std::size_t i = random_() % queue_.size();
    const Put put = queue_[i];
    queue_.erase(queue_.begin() + static_cast<std::ptrdiff_t>(i));
    if (put.bytes > 0 && put.done == nullptr && chunk_delay_ms > 0) {
      lock.unlock();
      std::this_thread::sleep_for(std::chrono::milliseconds(chunk_delay_ms));
      lock.lock();
    }
    std::byte* const heap = heaps_[static_cast<std::size_t>(put.pe)];
    if (put.bytes > 0) std::memcpy(heap + put.offset, put.source, put.bytes);
    __atomic_store_n(reinterpret_cast<std::uint64_t*>(heap + put.flag_offset), put.value,
                     __ATOMIC_RELEASE);
    if (put.done != nullptr) *put.done = true;
  }
}

bool post(const device::World& world, Pe pe, const void* target, const void* source,
          std::size_t bytes, const std::uint64_t* flag, std::uint64_t value, bool waits) {
  if (pe == network->refused_pe) return false;
  std::atomic<bool> done = false;
  const auto offset = [&](const void* at) {
    return static_cast<std::size_t>(static_cast<const std::byte*>(at) - world.heap);
  };
  network->post({pe, bytes == 0 ? 0 : offset(target), offset(flag),
                 static_cast<const std::byte*>(source), bytes, value, waits ? &done : nullptr});
  while (waits && !done) poll();
  return true;
}

}  // namespace shoal::test::fake_gpu
