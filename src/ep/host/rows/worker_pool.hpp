// SPDX-License-Identifier: Apache-2.0
// worker_pool.hpp: the threads of one PE that move rows (SHOAL_EP_THREADS).
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace shoal::ep::host {

class WorkerPool {
 public:
  /// `threads` is the total, including the caller of for_ranges; 1 starts no thread.
  explicit WorkerPool(std::int32_t threads);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  /// Splits 0 .. count into one contiguous range per thread and returns when body(first, last) has
  /// run for all ranges. Rethrows the first exception after all ranges have ended. Each thread
  /// flushes the rows that it streamed past the caches before it is counted as done.
  void for_ranges(std::int64_t count,
                  const std::function<void(std::int64_t first, std::int64_t last)>& body);

 private:
  void work(std::int64_t index);
  void run_share(std::int64_t index);
  void stop();

  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable start_, finish_;
  const std::function<void(std::int64_t, std::int64_t)>* body_ = nullptr;
  std::int64_t count_ = 0;
  std::exception_ptr failure_;
  std::uint64_t generation_ = 0;
  std::size_t running_ = 0;
  bool stop_ = false;
};

}  // namespace shoal::ep::host
