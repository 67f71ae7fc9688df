// SPDX-License-Identifier: Apache-2.0
// Checks of the host: limits, memory, processors, identity, timeouts.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "info/doctor.hpp"
#include "info/text.hpp"

namespace shoal::info {
namespace {

std::optional<std::uint64_t> number(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end == text.data()) return std::nullopt;
  return value;
}

constexpr std::uint64_t kUnlimited = ~std::uint64_t{0};

/// The soft limit of this process with this name in /proc/self/limits; nullopt if unknown.
std::optional<std::uint64_t> soft_limit(const System& system, const std::string& name) {
  for (const std::string& line : lines_of(system.read("/proc/self/limits").value_or(""))) {
    if (!line.starts_with(name)) continue;
    const std::string rest = trimmed(line.substr(name.size()));
    return rest.starts_with("unlimited") ? kUnlimited : number(rest);
  }
  return std::nullopt;
}

/// A value of /proc/meminfo in bytes; 0 if unknown.
std::uint64_t meminfo(const System& system, std::string_view key) {
  const std::string text = system.value("/proc/meminfo", key);
  return number(text).value_or(0) * (text.ends_with("kB") ? 1024 : 1);
}

Finding locked_memory(const Subject& subject) {
  const std::string name = "locked memory";
  const auto limit = soft_limit(subject.system, "Max locked memory");
  if (!limit) return not_applicable(name, "/proc/self/limits does not say");
  if (subject.rdma.empty()) return not_applicable(name, "only RDMA devices need locked memory");
  if (*limit == kUnlimited) return ok(name, "unlimited");
  const std::uint64_t need =
      subject.settings.heap_on_gpu() ? 64 << 20 : subject.settings.symmetric_size;
  const std::string found =
      fmt::format("{}; RDMA devices lock {} of each PE", bytes_text(*limit),
                  subject.settings.heap_on_gpu() ? "about 64 MiB (control words)"
                                                 : fmt::format("its heap of {}", bytes_text(need)));
  if (*limit >= need) return ok(name, found);
  return fault(
      name, found,
      "ulimit -l unlimited; for good: \"* - memlock unlimited\" in /etc/security/limits.d/shoal.conf, "
      "LimitMEMLOCK=infinity for slurmd's service, --ulimit memlock=-1 for docker");
}

/// File descriptors: the process with the root of the bootstrap needs one per PE of the world.
/// Every PE needs two per PE of the host (memory and process).
Finding open_files(const Subject& subject) {
  const std::string name = "open files";
  const auto limit = soft_limit(subject.system, "Max open files");
  if (!limit) return not_applicable(name, "/proc/self/limits does not say");
  const std::int64_t world = std::max<std::int64_t>(subject.settings.n_pes, subject.pes);
  const auto need = static_cast<std::uint64_t>(256 + world + 2 * subject.pes);
  const std::string found = *limit == kUnlimited
                                ? "unlimited"
                                : fmt::format("{}; {} here, {} in the world, need about {}", *limit,
                                              count_text(subject.pes, "PE"), world, need);
  if (*limit >= need) return ok(name, found);
  return fault(
      name, found,
      fmt::format("ulimit -n {}; for good: \"* - nofile {}\" in /etc/security/limits.d/shoal.conf",
                  2 * need, 2 * need));
}

/// The lowest memory limit of the control groups of this process; kUnlimited without any.
std::uint64_t cgroup_limit(const System& system) {
  std::uint64_t lowest = kUnlimited;
  const auto look = [&](const std::string& file) {
    if (const auto limit = number(system.line(file))) lowest = std::min(lowest, *limit);
  };
  for (const std::string& line : lines_of(system.read("/proc/self/cgroup").value_or(""))) {
    const std::size_t colon = line.rfind(':');
    if (colon == std::string::npos) continue;
    const bool v2 = line.starts_with("0::");
    if (!v2 && line.find(":memory:") == std::string::npos) continue;
    for (std::string path = line.substr(colon + 1);; path.resize(path.rfind('/'))) {
      if (path == "/") path.clear();
      look(v2 ? "/sys/fs/cgroup" + path + "/memory.max"
              : "/sys/fs/cgroup/memory" + path + "/memory.limit_in_bytes");
      if (path.find('/') == std::string::npos) break;
    }
  }
  return lowest;
}

}  // namespace

std::uint64_t host_memory(const System& system) {
  return std::min(meminfo(system, "MemTotal"), cgroup_limit(system));
}

namespace {

Finding memory_for_heaps(const Subject& subject) {
  const std::string name = "memory for heaps";
  if (subject.settings.heap_on_gpu())
    return not_applicable(name, "SHOAL_HEAP=cuda: heaps are in GPU memory");
  const std::uint64_t total = meminfo(subject.system, "MemTotal");
  if (total == 0) return not_applicable(name, "/proc/meminfo does not show the size of the memory");
  const std::uint64_t group = cgroup_limit(subject.system);
  const std::uint64_t there = std::min(total, group);
  const std::uint64_t need =
      static_cast<std::uint64_t>(subject.pes) * subject.settings.symmetric_size;
  const std::string found =
      fmt::format("{} with heaps of {}: {} of {}{}", count_text(subject.pes, "PE"),
                  bytes_text(subject.settings.symmetric_size), bytes_text(need), bytes_text(there),
                  group < total ? " (limit of the control group)" : "");
  if (need <= there) return ok(name, found);
  return warning(
      name,
      found + "; pages are allocated on first use, and the kernel kills a job that fills its heaps",
      fmt::format(
          "SHOAL_SYMMETRIC_SIZE={}M{}",
          std::max<std::uint64_t>(1, (there / 2 / static_cast<std::uint64_t>(subject.pes)) >> 20),
          group < total ? ", or a larger limit (docker --memory, Slurm --mem)" : ""));
}

Finding huge_pages(const Subject& subject) {
  const std::string name = "huge pages";
  const std::uint64_t total = meminfo(subject.system, "MemTotal");
  const std::uint64_t reserved =
      meminfo(subject.system, "HugePages_Free") * meminfo(subject.system, "Hugepagesize");
  if (total == 0) return not_applicable(name, "/proc/meminfo does not say");
  const std::string found =
      fmt::format("{} reserved and free; Shoal does not use them", bytes_text(reserved));
  if (reserved <= total / 10) return ok(name, found);
  return warning(name,
                 found + fmt::format(", and heaps cannot use this part of {}", bytes_text(total)),
                 "as root: sysctl vm.nr_hugepages=0, unless another program needs them");
}

/// The size of /dev/shm from its mount options, else half of the memory, the kernel's default.
Finding shared_memory(const Subject& subject) {
  const std::string name = "/dev/shm";
  constexpr std::uint64_t kLittle = std::uint64_t{128} << 20;  // bytes
  for (const std::string& line : lines_of(subject.system.read("/proc/mounts").value_or(""))) {
    const std::vector<std::string> words = words_of(line);
    if (words.size() < 4 || words[1] != "/dev/shm") continue;
    std::uint64_t size = meminfo(subject.system, "MemTotal") / 2;
    const std::size_t at = words[3].find("size=");
    if (at != std::string::npos) {
      const std::string value = words[3].substr(at + 5, words[3].find(',', at) - at - 5);
      size = number(value).value_or(0) * (value.ends_with('k')   ? 1024
                                          : value.ends_with('m') ? 1 << 20
                                          : value.ends_with('g') ? 1 << 30
                                                                 : 1);
    }
    const std::string found = fmt::format("{}", bytes_text(size));
    if (size >= kLittle) return ok(name, found);
    return warning(
        name,
        found +
            ": little for libfabric, UCX, MPI and NCCL, which put their buffers there (Shoal's heaps do "
            "not lie in it)",
        "mount -o remount,size=8G /dev/shm; in a container: --shm-size=8g or --ipc=host");
  }
  return warning(
      name, "not mounted: libfabric and UCX have no shared memory (Shoal's heaps do not lie in it)",
      "mount -t tmpfs tmpfs /dev/shm");
}

/// The number of processors in a list such as "0-3,8".
std::size_t count_of(std::string_view list) {
  std::size_t count = 0;
  while (!list.empty()) {
    const std::string_view part = list.substr(0, list.find(','));
    list.remove_prefix(std::min(list.size(), part.size() + 1));
    const std::size_t dash = part.find('-');
    const auto first = number(part.substr(0, dash));
    const auto last = dash == std::string_view::npos ? first : number(part.substr(dash + 1));
    if (first && last && *last >= *first) count += *last - *first + 1;
  }
  return count;
}

Finding processors(const Subject& subject) {
  const std::string name = "processors";
  const std::string list = subject.system.value("/proc/self/status", "Cpus_allowed_list");
  const std::size_t count = count_of(list);
  if (count == 0) return not_applicable(name, "/proc/self/status does not say");
  const std::string found =
      fmt::format("{} may use {} ({})", count_text(subject.pes, "PE"),
                  count_text(static_cast<std::int64_t>(count), "processor"), list);
  if (count >= static_cast<std::size_t>(subject.pes)) return ok(name, found);
  return warning(
      name, found + ": PEs wait for each other's time slices",
      "launch without binding to single cores (mpirun --bind-to none, srun --cpu-bind=none), start fewer "
      "PEs, or set SHOAL_SPIN=0, so that waiting PEs yield at once");
}

Finding kernel(const Subject& subject) {
  const std::string name = "kernel";
  const auto [major, minor] = subject.system.kernel();
  if (major == 0) return not_applicable(name, "/proc/sys/kernel/osrelease does not say");
  const std::string found = fmt::format("Linux {}.{}", major, minor);
  if (major > 5 || (major == 5 && minor >= 3)) return ok(name, found);
  return warning(
      name,
      found + " has no pidfd_open: PEs learn only through the bootstrap that another PE ended",
      "Linux 5.3 or later");
}

Finding host_identity(const Subject& subject) {
  const std::string name = "host identity";
  if (!subject.settings.host_id.empty())
    return ok(name, "SHOAL_HOST_ID=" + subject.settings.host_id);
  const bool machine = !subject.system.line("/etc/machine-id").empty();
  const bool boot = !subject.system.line("/proc/sys/kernel/random/boot_id").empty();
  if (machine && boot) return ok(name, "machine id and boot id");
  if (boot) return ok(name, "boot id alone (no /etc/machine-id)");
  if (machine)
    return warning(
        name,
        "machine id alone: hosts cloned from one image share it, and would try to share memory",
        "SHOAL_HOST_ID=<a text of this host>, such as its name");
  return fault(name, "neither /etc/machine-id nor /proc/sys/kernel/random/boot_id",
               "SHOAL_HOST_ID=<a text of this host>");
}

Finding time_limits(const Subject& subject) {
  const std::string name = "time limits";
  const auto timeout = subject.settings.timeout.count(),
             start = subject.settings.bootstrap_timeout.count();
  const std::string found = fmt::format(
      "operations {} ms (SHOAL_TIMEOUT_MS), each step of the start {} ms (SHOAL_BOOTSTRAP_TIMEOUT_MS)",
      timeout, start);
  if (timeout >= 1000 && start >= 5000) return ok(name, found);
  return warning(name,
                 found + ": one slow operation, such as the first kernel of a PE, fails the job",
                 timeout < 1000 ? "SHOAL_TIMEOUT_MS=30000" : "SHOAL_BOOTSTRAP_TIMEOUT_MS=60000");
}

}  // namespace

std::vector<Check> host_checks() {
  return {locked_memory, open_files, memory_for_heaps, huge_pages, shared_memory,
          processors,    kernel,     host_identity,    time_limits};
}

}  // namespace shoal::info
