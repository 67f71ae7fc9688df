// SPDX-License-Identifier: Apache-2.0
#include "record/refresh.hpp"

#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "base/log.hpp"
#include "base/service_thread.hpp"

namespace shoal::detail::record {

struct Refresh::Part {
  std::mutex mutex;            ///< held during a call
  std::function<void()> copy;  ///< empty: the Refresh is gone
  std::chrono::milliseconds interval;
  std::chrono::steady_clock::time_point next;

  void call() noexcept {
    const std::lock_guard lock(mutex);
    if (!copy) return;
    try {
      copy();
    } catch (const std::exception& error) {
      log::debug("the record of a group could not be refreshed: {}", error.what());
    }
  }
};

namespace {

using Parts = std::vector<std::shared_ptr<Refresh::Part>>;
using Clock = std::chrono::steady_clock;

/// The Refreshes of this process, and the thread that calls them while there are any.
class Refresher {
 public:
  static Refresher& instance() {
    static auto* const refresher = new Refresher;  // outlives static objects
    return *refresher;
  }

  void add(const std::shared_ptr<Refresh::Part>& part) {
    const std::lock_guard lock(mutex_);
    // A child of fork has no thread, and parts of its parent.
    if (pid_ != getpid()) parts_.clear();
    if (parts_.empty()) start();
    parts_.push_back(part);
    ++changes_;
    changed_->notify_all();
  }
  void remove(const std::shared_ptr<Refresh::Part>& part) {
    std::thread ended;
    {
      const std::lock_guard lock(mutex_);
      std::erase(parts_, part);
      if (pid_ != getpid() || !parts_.empty()) return;
      *stop_ = true;
      changed_->notify_all();
      ended = std::move(thread_);
    }
    if (ended.joinable()) ended.join();
  }
  Parts parts() {
    const std::lock_guard lock(mutex_);
    return pid_ == getpid() ? parts_ : Parts{};
  }

 private:
  void start() {
    pid_ = getpid();
    changed_ = std::make_shared<std::condition_variable>();
    stop_ = std::make_shared<bool>(false);
    if (thread_.joinable()) thread_.detach();  // of the parent
    const SignalsBlocked blocked;
    thread_ = std::thread([this, changed = changed_, stop = stop_] { run(*changed, *stop); });
  }

  void run(std::condition_variable& changed, const bool& stop) {
    std::unique_lock lock(mutex_);
    while (!stop) {
      const auto now = Clock::now();
      auto next = now + std::chrono::hours(1);
      Parts due;
      for (const auto& part : parts_) {
        if (part->interval.count() == 0) continue;
        if (part->next <= now) {
          due.push_back(part);
          part->next = now + part->interval;
        }
        next = std::min(next, part->next);
      }
      if (due.empty()) {
        changed.wait_until(lock, next, [&, seen = changes_] { return stop || changes_ != seen; });
        continue;
      }
      lock.unlock();
      for (const auto& part : due) part->call();
      due.clear();
      lock.lock();
    }
  }

  std::mutex mutex_;
  Parts parts_;
  std::uint64_t changes_ = 0;  ///< parts that were added
  pid_t pid_ = 0;
  std::thread thread_;
  // State of this thread: another one may be started before it has seen that it should end.
  std::shared_ptr<std::condition_variable> changed_;
  std::shared_ptr<bool> stop_;
};

}  // namespace

Refresh::Refresh(std::function<void()> copy, std::chrono::milliseconds interval)
    : part_(std::make_shared<Part>()) {
  part_->copy = std::move(copy);
  part_->interval = interval;
  part_->next = Clock::now() + interval;
  Refresher::instance().add(part_);
}

Refresh::~Refresh() {
  {
    const std::lock_guard lock(part_->mutex);
    part_->copy = nullptr;
  }
  Refresher::instance().remove(part_);
}

void refresh_all() noexcept {
  try {
    for (const auto& part : Refresher::instance().parts()) part->call();
  } catch (const std::exception& error) {
    log::debug("records could not be refreshed: {}", error.what());
  }
}

}  // namespace shoal::detail::record
