// SPDX-License-Identifier: Apache-2.0
// threads_called.hpp: the threads of this process by name: their ids, their allowed processors, the
// signals that they block, how long they have run and how often they have slept.
#pragma once

#include <sched.h>
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <string_view>
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

/// True if all threads of this name block this signal; false where there are none.
inline bool all_block(std::string_view name, int signal) {
  constexpr std::string_view kBlocked = "SigBlk:";
  const std::vector<pid_t> threads = threads_called(name);
  for (const pid_t thread : threads) {
    std::ifstream status("/proc/self/task/" + std::to_string(thread) + "/status");
    for (std::string line; std::getline(status, line);)
      if (line.starts_with(kBlocked) &&
          (std::stoull(line.substr(kBlocked.size()), nullptr, 16) >> (signal - 1) & 1) == 0)
        return false;
  }
  return !threads.empty();
}

/// Times of threads so far.
struct ThreadTimes {
  std::chrono::nanoseconds running{};
  std::uint64_t sleeps = 0;  ///< times that they gave their core up to wait for something
  friend ThreadTimes operator-(const ThreadTimes& later, const ThreadTimes& earlier) {
    return {later.running - earlier.running, later.sleeps - earlier.sleeps};
  }
};

/// The sum over all threads of this name.
inline ThreadTimes times_of_threads(std::string_view name) {
  constexpr int kOfOneThread = 4, kScheduled = 2;  // how Linux makes a clock of a thread
  constexpr std::string_view kSleeps = "voluntary_ctxt_switches:";
  ThreadTimes all;
  for (const pid_t thread : threads_called(name)) {
    timespec now{};
    const auto clock =
        static_cast<clockid_t>((~static_cast<unsigned>(thread) << 3) | kOfOneThread | kScheduled);
    if (clock_gettime(clock, &now) == 0)
      all.running += std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
    std::ifstream status("/proc/self/task/" + std::to_string(thread) + "/status");
    for (std::string line; std::getline(status, line);)
      if (line.starts_with(kSleeps)) all.sleeps += std::stoull(line.substr(kSleeps.size()));
  }
  return all;
}

}  // namespace shoal::test
