// SPDX-License-Identifier: Apache-2.0
// threads_called.hpp: the threads of this process by name: their ids, their allowed processors, and
// whether they sleep.
#pragma once

#include <sched.h>
#include <sys/types.h>

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

/// How many threads of this name sleep, for a time or until something happens.
inline int threads_asleep(std::string_view name) {
  int asleep = 0;
  for (const pid_t thread : threads_called(name)) {
    std::string status;
    std::getline(std::ifstream("/proc/self/task/" + std::to_string(thread) + "/stat"), status);
    const std::size_t end = status.rfind(')');  // of the name; the state follows
    asleep += end != std::string::npos && end + 2 < status.size() && status[end + 2] == 'S' ? 1 : 0;
  }
  return asleep;
}

}  // namespace shoal::test
