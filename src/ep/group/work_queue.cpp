// SPDX-License-Identifier: Apache-2.0
#include "ep/group/work_queue.hpp"

#include <pthread.h>

#include "base/service_thread.hpp"

namespace shoal::ep::detail {

WorkQueue::WorkQueue() {
  const SignalsBlocked blocked;
  thread_ = std::thread([this] { run(); });
  pthread_setname_np(thread_.native_handle(), "shoal-ep");
}

WorkQueue::~WorkQueue() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void WorkQueue::push(std::function<void()> task) {
  {
    std::lock_guard lock(mutex_);
    tasks_.push(std::move(task));
  }
  changed_.notify_all();
}

void WorkQueue::drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return tasks_.empty() && !busy_; });
}

void WorkQueue::finish(std::chrono::milliseconds limit) {
  await_until_ = (Clock::now() + limit).time_since_epoch().count();
  drain();
}

void WorkQueue::await(const Future& after) const {
  constexpr std::chrono::milliseconds kLook = std::chrono::milliseconds(10);  // at await_until_
  while (after.wait_for(kLook) == std::future_status::timeout)
    require(
        Clock::now().time_since_epoch().count() < await_until_, Code::closed,
        "SHOAL-N591: the world was closed before the operation that this one waits for had ended");
  after.get();
}

void WorkQueue::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stop_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    auto task = std::move(tasks_.front());
    tasks_.pop();
    busy_ = true;
    lock.unlock();
    task();
    task = nullptr;  // frees what it holds before drain returns
    lock.lock();
    busy_ = false;
    changed_.notify_all();
  }
}

}  // namespace shoal::ep::detail
