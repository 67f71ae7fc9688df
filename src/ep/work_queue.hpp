// SPDX-License-Identifier: Apache-2.0
// work_queue.hpp: a queue of operations that run in order on a thread of their own (requirement
// A11).
#pragma once

#include <condition_variable>
#include <functional>
#include <future>
#include <mutex>
#include <queue>
#include <thread>

#include "shoal/ep/group.hpp"

namespace shoal::ep::detail {

class Stream {
 public:
  Stream() : thread_([this] { run(); }) {}
  /// Finishes what is queued.
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  /// Queues `body`, to run after everything queued before and after `after` (when valid), whose
  /// exception it passes on.
  template <typename Body>
  auto submit(Body body, Future after) -> std::future<decltype(body())> {
    auto task = std::make_shared<std::packaged_task<decltype(body())()>>(
        [body = std::move(body), after = std::move(after)] {
          if (after.valid()) after.get();
          return body();
        });
    auto result = task->get_future();
    push([task = std::move(task)] { (*task)(); });
    return result;
  }
  /// Returns when everything queued so far has run.
  void drain();

 private:
  void push(std::function<void()> task);
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::queue<std::function<void()>> tasks_;
  bool busy_ = false;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace shoal::ep::detail
