// SPDX-License-Identifier: Apache-2.0
// progress_thread.hpp: the thread that applies requests of peers while this PE computes.
#pragma once

#include <atomic>
#include <string>
#include <thread>

#include "base/service_thread.hpp"
#include "transport/message/engine.hpp"

namespace shoal::transport::message {

class ProgressThread {
 public:
  /// `name`: of the thread, at most 15 characters. `core`: the core to bind to; negative: any.
  ProgressThread(Engine& engine, const std::string& name, std::int64_t core);
  /// Ends the thread; takes as long as one poll, or as a rest, up to 10 ms.
  ~ProgressThread();
  ProgressThread(const ProgressThread&) = delete;
  ProgressThread& operator=(const ProgressThread&) = delete;

 private:
  void bind(std::int64_t core);
  void run();

  Engine& engine_;
  const ProgressWait wait_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace shoal::transport::message
