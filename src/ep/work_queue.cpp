// SPDX-License-Identifier: Apache-2.0
#include "ep/work_queue.hpp"

namespace shoal::ep::detail {

Stream::~Stream() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Stream::push(std::function<void()> task) {
  {
    std::lock_guard lock(mutex_);
    tasks_.push(std::move(task));
  }
  changed_.notify_all();
}

void Stream::drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return tasks_.empty() && !busy_; });
}

void Stream::run() {
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
