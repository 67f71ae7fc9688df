// SPDX-License-Identifier: Apache-2.0
// threads_called.hpp: the threads of this process by name: their ids, their allowed processors and
// their processor time.
#pragma once

#include <sched.h>
#include <sys/types.h>

#include <chrono>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace shoal::test {

inline std::vector<pid_t> threads_called(std::string_view prefix) {
  std::vector<pid_t> found;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    if (name.starts_with(prefix))
      found.push_back(static_cast<pid_t>(std::stol(task.path().filename())));
  }
  return found;
}

/// The processors that a thread (0: this one) may run on.
inline std::set<int> cores_of(pid_t thread) {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::set<int> cores;
  if (sched_getaffinity(thread, sizeof set, &set) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(static_cast<std::size_t>(core), &set)) cores.insert(core);
  return cores;
}

/// The processors of each thread of this name.
inline std::set<std::set<int>> cores_of(std::string_view name) {
  std::set<std::set<int>> cores;
  for (const pid_t thread : threads_called(name)) cores.insert(cores_of(thread));
  return cores;
}

/// Processor time that a thread of this process has used.
inline std::chrono::nanoseconds processor_time(pid_t thread) {
  constexpr int kOfOneThread = 4, kScheduled = 2;  // how Linux makes a clock of a thread
  const auto clock =
      static_cast<clockid_t>((~static_cast<unsigned>(thread) << 3) | kOfOneThread | kScheduled);
  timespec now{};
  if (clock_gettime(clock, &now) != 0) return {};
  return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

/// Processor time that all threads of this name take while no thread waits for them.
inline std::chrono::nanoseconds idle_time(std::string_view name, std::chrono::milliseconds during) {
  std::chrono::nanoseconds before{}, after{};
  const std::vector<pid_t> threads = threads_called(name);
  for (const pid_t thread : threads) before += processor_time(thread);
  std::this_thread::sleep_for(during);
  for (const pid_t thread : threads) after += processor_time(thread);
  return after - before;
}

}  // namespace shoal::test
