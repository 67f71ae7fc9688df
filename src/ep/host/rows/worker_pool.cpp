// SPDX-License-Identifier: Apache-2.0
#include "ep/host/rows/worker_pool.hpp"

#include <utility>

#include "ep/host/rows/row_ops.hpp"

namespace shoal::ep::host {

WorkerPool::WorkerPool(std::int32_t threads) {
  try {
    for (std::int32_t i = 1; i < threads; ++i) threads_.emplace_back([this, i] { work(i); });
  } catch (...) {
    stop();
    throw;
  }
}

WorkerPool::~WorkerPool() {
  stop();
}

void WorkerPool::stop() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  start_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void WorkerPool::for_ranges(std::int64_t count,
                            const std::function<void(std::int64_t, std::int64_t)>& body) {
  if (threads_.empty() || count <= 1) {
    if (count > 0) body(0, count);
    flush_streamed_rows();
    return;
  }
  {
    std::lock_guard lock(mutex_);
    body_ = &body;
    count_ = count;
    running_ = threads_.size();
    ++generation_;
  }
  start_.notify_all();
  run_share(0);
  std::unique_lock lock(mutex_);
  finish_.wait(lock, [this] { return running_ == 0; });
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void WorkerPool::run_share(std::int64_t index) {
  const auto shares = static_cast<std::int64_t>(threads_.size()) + 1;
  const std::int64_t first = count_ * index / shares, last = count_ * (index + 1) / shares;
  try {
    if (first < last) (*body_)(first, last);
  } catch (...) {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = std::current_exception();
  }
  flush_streamed_rows();
}

void WorkerPool::work(std::int64_t index) {
  std::uint64_t seen = 0;
  std::unique_lock lock(mutex_);
  for (;;) {
    start_.wait(lock, [&] { return stop_ || generation_ != seen; });
    if (stop_) return;
    seen = generation_;
    lock.unlock();
    run_share(index);
    lock.lock();
    if (--running_ == 0) finish_.notify_one();
  }
}

}  // namespace shoal::ep::host
