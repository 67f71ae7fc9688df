// SPDX-License-Identifier: Apache-2.0
#include "topology/cores.hpp"

#include <sched.h>

#include <algorithm>
#include <bit>
#include <cerrno>

#include "base/check.hpp"

namespace shoal::topology {

std::vector<std::byte> allowed_cores() {
  // The kernel refuses sets that are smaller than its own, which has 8192 cores at most.
  constexpr std::size_t kMostBytes = 8192 / 8;
  for (std::size_t bytes = sizeof(cpu_set_t); bytes <= kMostBytes; bytes *= 2) {
    std::vector<std::byte> set(bytes);
    if (sched_getaffinity(0, bytes, reinterpret_cast<cpu_set_t*>(set.data())) == 0) return set;
    if (errno != EINVAL) break;
  }
  fail_errno("SHOAL-N220: cannot read the cores that this thread may use");
}

std::int32_t count_cores(std::span<const std::vector<std::byte>> sets) {
  std::vector<std::byte> all;
  for (const std::vector<std::byte>& set : sets) {
    all.resize(std::max(all.size(), set.size()));
    for (std::size_t i = 0; i < set.size(); ++i) all[i] |= set[i];
  }
  std::int32_t count = 0;
  for (const std::byte part : all) count += std::popcount(std::to_integer<unsigned>(part));
  return std::max(count, 1);
}

}  // namespace shoal::topology
