// SPDX-License-Identifier: Apache-2.0
// progress_thread.hpp: the thread that applies requests of peers while this PE computes.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "base/service_thread.hpp"
#include "transport/message/engine.hpp"

namespace shoal::transport::message {

class ProgressThread {
 public:
  /// `name`: of the thread, at most 15 characters. `core`: the core to bind to; negative: any. The
  /// destructor takes as long as one poll, or as a rest, up to 10 ms.
  ProgressThread(Engine& engine, const std::string& name, std::int64_t core);

 private:
  /// Polls the network, or rests while callers do.
  ServiceThread::Polled poll();
  bool rest();

  Engine& engine_;
  const ProgressWait wait_;
  std::uint32_t caller_polls_;
  std::chrono::nanoseconds rest_;       ///< the next one
  std::chrono::nanoseconds polled_{0};  ///< how long callers have polled without a pause of a rest
  ServiceThread thread_;
};

}  // namespace shoal::transport::message
