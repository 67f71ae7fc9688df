// SPDX-License-Identifier: Apache-2.0
// wait.cuh: waits with a deadline, and searches of many variables by the threads of a scope.
#pragma once

#include <cstddef>
#include <cstdint>

#include <shoal/device/detail/failure.cuh>
#include <shoal/device/detail/word.cuh>
#include <shoal/device/scope.cuh>
#include <shoal/device/types.hpp>

namespace shoal::device::detail {

/// Polls until `ready` returns true (then true) or the deadline passes (then false; `waited_ns` is
/// set).
template <typename Ready>
__device__ bool poll(const World& world, std::uint64_t& waited_ns, Ready&& ready) {
  constexpr int kPollsPerClock = 32;  // reading the clock costs as much as a few polls
  if (ready()) return true;
  const std::uint64_t start = ptx::globaltimer();
  for (;;) {
#pragma unroll 1
    for (int i = 0; i < kPollsPerClock; ++i)
      if (ready()) return true;
    waited_ns = ptx::globaltimer() - start;
    if (waited_ns >= world.timeout_ns) return ready();
  }
}

/// One thread waits for one variable. Returns false and reports when the deadline passes.
template <SHOAL_WORD T>
__device__ bool wait_for(const World& world, FailureKind kind, const T* variable, Compare compare,
                         T value, Pe awaited = -1) {
  T seen{};
  std::uint64_t waited_ns = 0;
  const bool ok = poll(world, waited_ns, [&] {
    seen = load_acquire(variable);
    return holds(seen, compare, value);
  });
  if (!ok) record_wait(world, kind, variable, compare, value, seen, waited_ns, awaited);
  return ok;
}

/// The leader's value on all threads of the scope. Starts and ends with a barrier.
__device__ inline std::size_t broadcast(Thread, std::size_t value) {
  return value;
}
__device__ inline std::size_t broadcast(Warp scope, std::size_t value) {
  scope.sync();
  return __shfl_sync(~0U, static_cast<unsigned long long>(value), 0);
}
__device__ inline std::size_t broadcast(Block scope, std::size_t value) {
  __shared__ std::size_t slot;
  if (scope.rank() == 0) slot = value;
  scope.sync();
  const std::size_t result = slot;
  scope.sync();
  return result;
}

/// Result of a group of threads after one pass over many variables.
struct Scan {
  std::size_t index;  ///< the lowest index of a variable that compares as asked; kNoIndex: none
  bool remaining;     ///< true if `skip` does not exclude all variables
};
/// Threads `rank` of `size` share the pass; `mask` names their lanes when size is above 1.
template <SHOAL_WORD T>
__device__ Scan scan(unsigned rank, unsigned size, unsigned mask, const T* variables,
                     std::size_t count, Compare compare, T value, const int* skip) {
  Scan found{kNoIndex, false};
  for (std::size_t first = 0; first < count; first += size) {
    const std::size_t i = first + rank;
    const bool considered = i < count && (skip == nullptr || skip[i] == 0);
    const bool hit = considered && holds(load_acquire(variables + i), compare, value);
    if (size == 1) {
      found.remaining |= considered;
      if (hit) return {i, true};
      continue;
    }
    found.remaining |= __any_sync(mask, considered) != 0;
    if (const unsigned hits = __ballot_sync(mask, hit); hits != 0)
      return {first + static_cast<unsigned>(__ffs(static_cast<int>(hits)) - 1), true};
  }
  return found;
}

/// The number of threads that scan together: the scope's first warp, or fewer in a smaller scope.
template <SHOAL_SCOPE S>
__device__ unsigned scanners(S scope) {
  return scope.size() < 32 ? scope.size() : 32;
}

}  // namespace shoal::device::detail
