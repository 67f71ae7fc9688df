// SPDX-License-Identifier: Apache-2.0
// progress.hpp: the thread that carries out what others ask of this PE while its own threads do
// something else.
#pragma once

#include <atomic>
#include <thread>

#include "transport/ofi/engine.hpp"

namespace shoal::transport::ofi {

class Progress {
 public:
  /// `core`: bound to it unless negative.
  Progress(Engine& engine, const Settings& settings, std::int64_t core, Pe pe);
  /// Ends the thread; takes as long as one poll.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

 private:
  enum class Policy { spin, yield, sleep };

  void bind(std::int64_t core, Pe pe);
  void run();

  Engine& engine_;
  Policy policy_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace shoal::transport::ofi
