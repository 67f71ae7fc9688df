// SPDX-License-Identifier: Apache-2.0
// exit_watch.hpp: shmem_global_exit: ends all PEs, whatever they do.
//
// A word in each PE's heap announces the exit. A thread of each PE sleeps on it, as a futex: PEs of
// the same host wake it at once; it looks by itself for what a network has written.
#pragma once

#include <cstdint>
#include <optional>
#include <thread>

#include "shoal/world.hpp"

namespace shoal::shmem {

class ExitWatch {
 public:
  ExitWatch() = default;
  ~ExitWatch() { stop(); }
  ExitWatch(const ExitWatch&) = delete;
  ExitWatch& operator=(const ExitWatch&) = delete;

  /// Collective. The word lies in the world's heap until the world ends.
  void start(const World& world);
  void stop() noexcept;
  /// The status of an exit that some PE has announced.
  std::optional<int> announced() const noexcept;
  /// Announces the exit to all PEs and ends this process.
  [[noreturn]] void exit_all(int status) noexcept;

 private:
  void watch() const noexcept;

  World world_;
  std::uint32_t* word_ = nullptr;  ///< in the heap of this PE
  std::thread thread_;
};

}  // namespace shoal::shmem
