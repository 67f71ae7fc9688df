// SPDX-License-Identifier: Apache-2.0
// rig.hpp: two NICs that are kernels (emulator/gpu/), with memory and queues on one GPU or on two.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "engine/memory_keys.hpp"
#include "gpu/cuda.hpp"
#include "gpu/device/world.hpp"
#include "gpu/nic.hpp"
#include "gpu/queue_memory.hpp"
#include "shoal/device/detail/gda/queue.hpp"

namespace shoal::test {

namespace gda = device::gda;
namespace emu = emulator::gpu;

inline constexpr std::uint32_t kAllAccess =
    emulator::Access::local_write | emulator::Access::remote_write | emulator::Access::remote_read |
    emulator::Access::remote_atomic;

/// Memory of a GPU, and a stream for copies beside kernels.
class GpuMemory {
 public:
  GpuMemory(int device, std::size_t bytes) : device_(device), bytes_(bytes), stream_(device) {
    const emu::OnDevice on(device);
    check_cuda(cudaMalloc(reinterpret_cast<void**>(&data_), bytes));
    check_cuda(cudaMemset(data_, 0, bytes));
    check_cuda(cudaStreamSynchronize(nullptr));
  }
  ~GpuMemory() { cudaFree(data_); }
  GpuMemory(const GpuMemory&) = delete;
  GpuMemory& operator=(const GpuMemory&) = delete;

  std::byte* at(std::size_t offset = 0) const { return data_ + offset; }
  std::uint64_t address(std::size_t offset = 0) const {
    return reinterpret_cast<std::uint64_t>(data_ + offset);
  }
  std::size_t bytes() const { return bytes_; }
  template <typename T>
  void write(std::size_t offset, const std::vector<T>& values) const {
    copy(data_ + offset, values.data(), values.size() * sizeof(T));
  }
  template <typename T = std::uint64_t>
  std::vector<T> read(std::size_t offset, std::size_t count) const {
    std::vector<T> values(count);
    copy(values.data(), data_ + offset, count * sizeof(T));
    return values;
  }
  std::uint64_t word(std::size_t offset) const { return read(offset, 1)[0]; }
  void copy(void* to, const void* from, std::size_t bytes) const {
    const emu::OnDevice on(device_);
    check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_.get()));
    check_cuda(cudaStreamSynchronize(stream_.get()));
  }

 private:
  int device_;
  std::size_t bytes_;
  std::byte* data_ = nullptr;
  emu::KeptStream stream_;
};

struct NicShape {
  emulator::Ordering ordering = emulator::Ordering::strict;
  bool collapsed = false;
  int device_there = 0;
  std::uint32_t blocks = 64;
  std::size_t bytes = 1 << 20;
  emu::NicOptions options = {};
  std::uint32_t access = kAllAccess;   ///< of keys
  std::uint32_t granted = kAllAccess;  ///< by connections
  std::size_t pairs = 1;
};

/// One end: memory, keys and queue pairs.
struct NicEnd {
  NicEnd(int on, const NicShape& shape)
      : device(on), memory(on, shape.bytes), nic(options(on, shape)) {
    key = nic.add_key({.memory = memory.at(), .length = shape.bytes, .access = shape.access});
    for (std::size_t i = 0; i < shape.pairs; ++i) {
      queues.push_back(std::make_unique<emu::QueueMemory>(on, shape.blocks, shape.collapsed));
      const emu::QueueMemory& queue = *queues.back();
      const std::uint32_t completions =
          nic.add_completion_queue(queue.entry_bytes(), queue.log_entries(), shape.collapsed);
      pairs.push_back(nic.add_queue_pair({.ring = queue.ring_bytes(),
                                          .blocks = shape.blocks,
                                          .record = queue.sends(),
                                          .completions = completions,
                                          .user_index = 77,
                                          .access = shape.granted}));
    }
  }
  static emu::NicOptions options(int on, const NicShape& shape) {
    emu::NicOptions options = shape.options;
    options.device = on;
    return options;
  }
  gda::Queue queue(const NicShape& shape, std::size_t i = 0) const {
    const emu::QueueMemory& memory_of = *queues[i];
    gda::Queue queue;
    queue.sends = {memory_of.ring(), shape.blocks, pairs[i], memory_of.sends(),
                   memory_of.doorbell()};
    queue.completions = {memory_of.entries(), memory_of.log_entries(), nullptr};
    queue.shared = reinterpret_cast<gda::Shared*>(memory_of.shared());
    queue.ordering = static_cast<gda::Ordering>(shape.ordering);
    queue.sink = {memory.address(memory.bytes() - 8), key};
    return queue;
  }
  gda::Shared shared(std::size_t i = 0) const {
    gda::Shared shared;
    memory.copy(&shared, queues[i]->shared(), sizeof shared);
    return shared;
  }

  int device;
  GpuMemory memory;
  std::vector<std::unique_ptr<emu::QueueMemory>> queues;
  std::vector<std::uint32_t> pairs;
  std::uint32_t key = 0;
  emu::Nic nic;  // last: stopped before its memory is freed
};

class NicRig {
 public:
  explicit NicRig(const NicShape& its_shape)
      : shape(its_shape), a(0, shape), b(shape.device_there, shape) {
    for (std::size_t i = 0; i < shape.pairs; ++i)
      emu::connect(a.nic, a.pairs[i], b.nic, b.pairs[i], shape.ordering);
  }
  ~NicRig() { stop(); }
  void start() {
    a.nic.start();
    b.nic.start();
  }
  void stop() {
    EXPECT_TRUE(a.nic.stop());
    EXPECT_TRUE(b.nic.stop());
  }
  gda::Queue queue(std::size_t i = 0) const { return a.queue(shape, i); }
  mlx5::Memory at_peer(std::size_t offset) const { return {b.memory.address(offset), b.key}; }
  mlx5::Memory here(std::size_t offset) const { return {a.memory.address(offset), a.key}; }

  NicShape shape;
  NicEnd a, b;
};

/// A stream of a GPU. Waits of the host have a deadline.
class BoundedStream {
 public:
  explicit BoundedStream(int device) : device_(device), stream_(device) {}

  cudaStream_t get() const { return stream_.get(); }
  cudaError_t wait(std::chrono::seconds limit = std::chrono::seconds(30)) const {
    const emu::OnDevice on(device_);
    const auto end = std::chrono::steady_clock::now() + limit;
    cudaError_t state = cudaStreamQuery(stream_.get());
    while (state == cudaErrorNotReady && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
      state = cudaStreamQuery(stream_.get());
    }
    return state;
  }

 private:
  int device_;
  emu::KeptStream stream_;
};

}  // namespace shoal::test
