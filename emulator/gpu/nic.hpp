// SPDX-License-Identifier: Apache-2.0
// nic.hpp: a NIC that is a kernel: it reads send queues and doorbell records in GPU memory, moves
// data inside the GPU or over NVLink, and writes completions.
//
//   gpu::Nic a({.device = 0}), b({.device = 1});
//   const std::uint32_t key = b.add_key({.memory = there, .length = bytes, .access = kAccess});
//   const std::uint32_t queue = a.add_completion_queue(entries, 6, false);
//   const std::uint32_t pair = a.add_queue_pair({.ring = ring, .blocks = 64, ...});
//   gpu::connect(a, pair, b, b.add_queue_pair({...}), Ordering::adaptive);
//   a.start();  // b as well, if it has requests of its own
//   ... kernels post to the ring ...
//   a.stop();
//
// All pointers are to memory that the NIC's GPU reaches: its own, that of a GPU with an NVLink or
// PCIe path, or pinned host memory. The NIC needs no doorbell: it looks at the doorbell records.
//
// While a NIC without slices runs, calls that wait for the whole device wait for it too: cudaFree,
// cudaDeviceSynchronize, and the first launch of a kernel that is loaded lazily. Free memory after
// stop(), and load kernels before start() (CUDA_MODULE_LOADING=EAGER). Other streams may share the
// NIC's hardware queue unless there are many (CUDA_DEVICE_MAX_CONNECTIONS=32).
//
// A NIC ends by itself when its process ends, when its heartbeats stop for `owner_timeout`, and
// after `lifetime`. Objects are not thread-safe. Functions throw std::invalid_argument for what is
// out of range and std::runtime_error for what CUDA refuses.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "gpu/state.hpp"

namespace shoal::emulator::gpu {

using Nanoseconds = std::chrono::nanoseconds;

struct NicOptions {
  int device = 0;
  int blocks = 4;            ///< SMs: 1 to 4
  int warps = 16;            ///< of a block: 2 to 16
  double bytes_per_ns = 50;  ///< 0: not throttled
  Nanoseconds delay{0};      ///< one way
  Nanoseconds reorder{0};    ///< most by which writes are late, unless the order is strict
  std::uint64_t seed = 1;
  std::uint32_t keys = 1024;  ///< most of a table
  /// Room for queue pairs, at most 64; each takes 2.4 KiB of shared memory of every block. 0: those
  /// that are added before start().
  std::uint32_t pairs = 0;
  Nanoseconds retry = std::chrono::milliseconds(500);
  Nanoseconds owner_timeout = std::chrono::seconds(2);
  Nanoseconds lifetime = std::chrono::minutes(10);
  /// Time after which the kernel ends and the next one goes on, with a pause of some microseconds:
  /// calls that wait for the whole GPU then return, if no client keeps them. 0: one kernel.
  Nanoseconds slice{0};
};

struct KeyOptions {
  std::uint32_t domain = 1;
  std::byte* memory = nullptr;
  std::uint64_t length = 0;
  std::uint32_t access = 0;   ///< Access bits (engine/memory_keys.hpp)
  std::uint64_t address = 0;  ///< as requests name the first byte; 0: as `memory`
};

struct QueuePairOptions {
  const std::byte* ring = nullptr;  ///< of 64-byte blocks
  std::uint32_t blocks = 0;         ///< a power of two, 1 to 32768
  /// The send counter of the doorbell record. nullptr: the queue pair only answers.
  const std::uint32_t* record = nullptr;
  std::uint32_t completions = 0;  ///< of add_completion_queue()
  std::uint32_t domain = 1;
  std::uint32_t user_index = 0;
  std::uint32_t access = 0;  ///< Access bits that the peer has
};

class Nic {
 public:
  explicit Nic(const NicOptions& options);
  /// Stops it.
  ~Nic();
  Nic(const Nic&) = delete;
  Nic& operator=(const Nic&) = delete;

  /// The key of memory, for both ends. Also while NICs run.
  std::uint32_t add_key(const KeyOptions& options);
  /// Requests that name it are refused when this returns, except those that were started before.
  void remove_key(std::uint32_t key);

  // Before start(), or before update():
  /// `entries`: 2^log_size of 64 bytes that are marked as unused. Overruns are not detected.
  std::uint32_t add_completion_queue(std::byte* entries, std::uint32_t log_size, bool collapsed);
  /// Its number.
  std::uint32_t add_queue_pair(const QueuePairOptions& options);
  void start();
  /// Makes queue pairs that were added and connected after start() known to the NIC, up to the
  /// first that is not connected.
  void update();

  /// False if the kernel does not end in time; it ends by `lifetime` at the latest, and its memory
  /// is not freed. May be called again.
  bool stop();
  bool is_running() const;
  Stopped stopped() const;
  /// What a queue pair did, and whether it is in the error state.
  QueuePairReport report(std::uint32_t pair) const;
  /// As if the peer had ended, or had refused a request: a fault, for tests.
  void end(std::uint32_t pair, Ended ended);

 private:
  friend void connect(Nic& a, std::uint32_t pair_of_a, Nic& b, std::uint32_t pair_of_b,
                      Ordering ordering);
  struct Implementation;
  std::unique_ptr<Implementation> self_;
};

/// Connects two queue pairs, in both directions. Before start() or update() of either NIC. Both
/// NICs must exist until neither runs. They may be one NIC.
void connect(Nic& a, std::uint32_t pair_of_a, Nic& b, std::uint32_t pair_of_b, Ordering ordering);

}  // namespace shoal::emulator::gpu
