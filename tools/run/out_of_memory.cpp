// SPDX-License-Identifier: Apache-2.0
#include "run/out_of_memory.hpp"

#include <fmt/format.h>

#include <fstream>
#include <optional>
#include <sstream>

namespace shoal::run {
namespace {

namespace fs = std::filesystem;

/// The number in the line "oom_kill N" of a file; nullopt without such a line.
std::optional<std::uint64_t> oom_kills(const fs::path& file) {
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) {
    std::istringstream words(line);
    std::string name;
    std::uint64_t value = 0;
    if (words >> name >> value && name == "oom_kill") return value;
  }
  return std::nullopt;
}

/// The paths of this process's cgroups in a line "id:controllers:path" of /proc/self/cgroup.
struct Cgroups {
  std::string v2;
  std::string v1_memory;
};

Cgroups read_cgroups(const fs::path& root) {
  Cgroups found;
  std::ifstream stream(root / "proc/self/cgroup");
  for (std::string line; std::getline(stream, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string path = line.substr(std::min(second + 2, line.size()));  // no leading slash
    if (controllers == ",,") found.v2 = path;
    if (controllers.find(",memory,") != std::string::npos) found.v1_memory = path;
  }
  return found;
}

}  // namespace

OutOfMemory::OutOfMemory(const fs::path& root) {
  const Cgroups own = read_cgroups(root);
  const fs::path v2 = root / "sys/fs/cgroup", v1 = v2 / "memory";
  struct Candidate {
    fs::path folder;
    const char* events;
    const char* limit;
  };
  // In a container, the cgroup is mounted as the root of the file system, whatever its path.
  const Candidate candidates[] = {
      {v2 / own.v2, "memory.events", "memory.max"},
      {v2, "memory.events", "memory.max"},
      {v1 / own.v1_memory, "memory.oom_control", "memory.limit_in_bytes"},
      {v1, "memory.oom_control", "memory.limit_in_bytes"},
  };
  for (const Candidate& candidate : candidates) {
    const auto count = oom_kills(candidate.folder / candidate.events);
    if (!count) continue;
    events_ = candidate.folder / candidate.events;
    limit_ = candidate.folder / candidate.limit;
    before_ = *count;
    return;
  }
  events_ = root / "proc/vmstat";
  before_ = oom_kills(events_).value_or(0);
}

std::string OutOfMemory::describe() const {
  const std::uint64_t now = oom_kills(events_).value_or(before_);
  if (now <= before_) return {};
  std::string killed = fmt::format(
      "out of memory: the kernel has killed {} process{} of {} for lack of memory since the start",
      now - before_, now - before_ == 1 ? "" : "es",
      limit_.empty() ? "this machine" : "this job's cgroup");
  std::string limit;
  std::ifstream(limit_) >> limit;
  if (limit.empty()) return killed;
  return fmt::format("{}; its limit is {} bytes ({})", killed, limit, limit_.string());
}

}  // namespace shoal::run
