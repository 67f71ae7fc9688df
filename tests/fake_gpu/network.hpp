// SPDX-License-Identifier: Apache-2.0
// network.hpp: delivers what ranks post (ep/cuda/device/network.cuh) late and in random order.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "shoal/heap.hpp"

namespace shoal::test::fake_gpu {

/// At most one exists at a time. `heaps`: by PE.
class Network {
 public:
  Network(std::vector<std::byte*> heaps, std::uint32_t seed);
  /// Delivers the rest.
  ~Network();
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  struct Put {
    Pe pe;
    std::size_t offset, flag_offset;
    const std::byte* source;  ///< read when the put is delivered
    std::size_t bytes;
    std::uint64_t value;
    std::atomic<bool>* done;  ///< or nullptr
  };
  void post(Put put);

  std::atomic<std::size_t> bytes = 0;   ///< of the data posted so far
  std::atomic<Pe> lost_pe = -1;         ///< nothing arrives there
  std::atomic<Pe> refused_pe = -1;      ///< puts and signals to it fail
  std::atomic<int> chunk_delay_ms = 0;  ///< before a put arrives for which its sender does not wait

 private:
  void deliver();

  const std::vector<std::byte*> heaps_;
  std::mutex mutex_;
  std::condition_variable posted_;
  std::vector<Put> queue_;
  std::mt19937 random_;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace shoal::test::fake_gpu
