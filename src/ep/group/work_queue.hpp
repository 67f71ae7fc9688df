// SPDX-License-Identifier: Apache-2.0
// work_queue.hpp: operations that run in order on a thread of their own.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <queue>
#include <thread>

#include "base/check.hpp"
#include "shoal/ep/group.hpp"

namespace shoal::ep::detail {

class WorkQueue {
 public:
  WorkQueue();
  /// Waits until the queue is empty.
  ~WorkQueue();
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  /// Queues `body`. It runs after everything queued before and after `after` (if valid), whose
  /// exception it passes on.
  template <typename Body>
  auto submit(Body body, Future after) -> std::future<decltype(body())> {
    auto task = std::make_shared<std::packaged_task<decltype(body())()>>(
        [this, body = std::move(body), after = std::move(after)] {
          if (after.valid()) await(after);
          return body();
        });
    auto result = task->get_future();
    push([task = std::move(task)] { (*task)(); });
    return result;
  }
  /// Returns when everything queued so far has run.
  void drain();
  /// Like drain, but bounds the waits for `after`: a task whose `after` is not ready by then fails
  /// with Error{closed}. The caller submits nothing more.
  void finish(std::chrono::milliseconds limit);

 private:
  using Clock = std::chrono::steady_clock;

  void await(const Future& after) const;
  void push(std::function<void()> task);
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::queue<std::function<void()>> tasks_;
  bool busy_ = false;
  bool stop_ = false;
  std::atomic<Clock::rep> await_until_ = Clock::time_point::max().time_since_epoch().count();
  std::thread thread_;
};

}  // namespace shoal::ep::detail
