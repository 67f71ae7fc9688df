// SPDX-License-Identifier: Apache-2.0
// shoal/device/detail.cuh: what functions.cuh is made of. Not for users.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <shoal/device/ptx.cuh>
#include <shoal/device/scope.cuh>
#include <shoal/device/types.hpp>

namespace shoal::device::detail {

// Failure reports.

/// Writes `report` unless one is there already. Its own function, so that it costs the caller no
/// registers.
__device__ __noinline__ inline void record(const World& world, FailureReport report) {
  FailureReport* const to = world.failure;
  if (atomicCAS_system(&to->state, static_cast<unsigned>(FailureReport::empty),
                       static_cast<unsigned>(FailureReport::filling)) != FailureReport::empty)
    return;
  report.state = FailureReport::filling;
  report.block[0] = blockIdx.x, report.block[1] = blockIdx.y, report.block[2] = blockIdx.z;
  report.thread[0] = threadIdx.x, report.thread[1] = threadIdx.y, report.thread[2] = threadIdx.z;
  *to = report;
  ptx::st_release_sys(&to->state, FailureReport::complete);
}

template <Word T>
__device__ void record_wait(const World& world, FailureKind kind, const T* variable,
                            Compare compare, T expected, T seen, std::uint64_t waited_ns,
                            Pe awaited) {
  FailureReport report{};
  report.kind = kind;
  report.awaited = awaited;
  report.compare = compare;
  report.width = sizeof(T);
  report.is_signed = std::is_signed_v<T>;
  report.offset =
      static_cast<std::uint64_t>(reinterpret_cast<const std::byte*>(variable) - world.heap);
  report.expected = static_cast<std::uint64_t>(expected);
  report.seen = static_cast<std::uint64_t>(seen);
  report.waited_ns = waited_ns;
  record(world, report);
}

// Addresses.

/// The heap of `pe`, which exists; nullptr where it is not reachable.
__device__ inline std::byte* base_of(const World& world, Pe pe) {
  return world.bases != nullptr ? world.bases[pe]
                                : world.window + static_cast<std::size_t>(pe) * world.stride;
}

/// [local, local + bytes) as `pe` has it; nullptr and a report when that does not exist or is not
/// reachable.
template <typename T>
__device__ T* resolve(const World& world, T* local, std::size_t bytes, Pe pe) {
  const auto offset =
      static_cast<std::size_t>(reinterpret_cast<const std::byte*>(local) - world.heap);
  const bool exists = static_cast<std::uint32_t>(pe) < static_cast<std::uint32_t>(world.n_pes) &&
                      offset <= world.heap_bytes && bytes <= world.heap_bytes - offset;
  std::byte* const base = exists ? base_of(world, pe) : nullptr;
  if (base != nullptr) return reinterpret_cast<T*>(base + offset);
  FailureReport report{};
  report.kind = exists ? FailureKind::unreachable : FailureKind::bad_address;
  report.awaited = pe;
  report.offset = offset;
  report.bytes = bytes;
  record(world, report);
  return nullptr;
}

/// Bytes from the first to the last of `count` elements; the largest number when that overflows.
__device__ inline std::size_t extent(std::size_t element, std::size_t stride, std::size_t count) {
  if (count == 0) return 0;
  if (__umul64hi(count - 1, stride) != 0) return static_cast<std::size_t>(-1);
  const std::size_t bytes = (count - 1) * stride;
  return bytes + element < bytes ? static_cast<std::size_t>(-1) : bytes + element;
}

// Copies.

enum class Direction { put, get };

/// What a put reads was ordered before by the caller; what a get reads may change at any time, so
/// it bypasses the caches of this SM.
template <Direction direction, typename Unit>
__device__ Unit load(const Unit* address) {
  if constexpr (direction == Direction::get) {
    return ptx::ld_relaxed_sys(address);
  } else {
    return *address;
  }
}

/// Loads in flight per thread: a load from a peer takes about a microsecond.
inline constexpr int kUnroll = 4;

template <Direction direction, typename Unit>
__device__ void copy_units(unsigned rank, unsigned size, Unit* target, const Unit* source,
                           std::size_t count) {
  std::size_t i = rank;
  for (; i + (kUnroll - 1) * static_cast<std::size_t>(size) < count;
       i += kUnroll * static_cast<std::size_t>(size)) {
    Unit values[kUnroll];
#pragma unroll
    for (int k = 0; k < kUnroll; ++k)
      values[k] = load<direction>(source + i + static_cast<std::size_t>(k) * size);
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) target[i + static_cast<std::size_t>(k) * size] = values[k];
  }
  for (; i < count; i += size) target[i] = load<direction>(source + i);
}

/// `bytes` bytes between addresses that are equal modulo sizeof(Unit).
template <Direction direction, typename Unit>
__device__ void copy_as(unsigned rank, unsigned size, std::uint8_t* target,
                        const std::uint8_t* source, std::size_t bytes) {
  const std::size_t misaligned =
      (sizeof(Unit) - reinterpret_cast<std::uintptr_t>(target) % sizeof(Unit)) % sizeof(Unit);
  const std::size_t head = misaligned < bytes ? misaligned : bytes;
  copy_units<direction>(rank, size, target, source, head);
  const std::size_t units = (bytes - head) / sizeof(Unit);
  copy_units<direction>(rank, size, reinterpret_cast<Unit*>(target + head),
                        reinterpret_cast<const Unit*>(source + head), units);
  const std::size_t done = head + units * sizeof(Unit);
  copy_units<direction>(rank, size, target + done, source + done, bytes - done);
}

/// Copies with the widest accesses that both addresses allow; a single aligned 4- or 8-byte word is
/// one access. Threads `rank` of `size` share the work.
template <Direction direction>
__device__ void copy(unsigned rank, unsigned size, void* target_bytes, const void* source_bytes,
                     std::size_t bytes) {
  auto* const target = static_cast<std::uint8_t*>(target_bytes);
  const auto* const source = static_cast<const std::uint8_t*>(source_bytes);
  const auto both =
      reinterpret_cast<std::uintptr_t>(target) | reinterpret_cast<std::uintptr_t>(source);
  const auto apart =
      reinterpret_cast<std::uintptr_t>(target) ^ reinterpret_cast<std::uintptr_t>(source);
  if (bytes == 8 && both % 8 == 0) {
    copy_as<direction, std::uint64_t>(rank, size, target, source, bytes);
  } else if (bytes == 4 && both % 4 == 0) {
    copy_as<direction, std::uint32_t>(rank, size, target, source, bytes);
  } else if (apart % 16 == 0) {
    copy_as<direction, ulonglong2>(rank, size, target, source, bytes);
  } else if (apart % 8 == 0) {
    copy_as<direction, std::uint64_t>(rank, size, target, source, bytes);
  } else if (apart % 4 == 0) {
    copy_as<direction, std::uint32_t>(rank, size, target, source, bytes);
  } else if (apart % 2 == 0) {
    copy_as<direction, std::uint16_t>(rank, size, target, source, bytes);
  } else {
    copy_units<direction>(rank, size, target, source, bytes);
  }
}

/// `count` elements of `element` bytes, `target_stride` and `source_stride` bytes apart.
template <Direction direction>
__device__ void copy_strided(std::size_t rank, std::size_t size, std::uint8_t* target,
                             std::size_t target_stride, const std::uint8_t* source,
                             std::size_t source_stride, std::size_t element, std::size_t count) {
  for (std::size_t i = rank; i < count; i += size)
    copy<direction>(0, 1, target + i * target_stride, source + i * source_stride, element);
}

// Words.

/// The unsigned type of a word's width, as the instructions take it.
template <Word T>
using Bits = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;
/// The same as CUDA's atomic functions take it.
template <Word T>
using AtomicBits = std::conditional_t<sizeof(T) == 8, unsigned long long, unsigned>;

template <Word T>
__device__ T load_acquire(const T* variable) {
  return static_cast<T>(ptx::ld_acquire_sys(reinterpret_cast<const Bits<T>*>(variable)));
}

/// Relaxed, at system scope; returns the value before.
template <Word T>
__device__ T atomic_on(AtomicOp op, T* address, T operand, T compare) {
  auto* const word = reinterpret_cast<AtomicBits<T>*>(address);
  const auto value = static_cast<AtomicBits<T>>(operand);
  switch (op) {
    case AtomicOp::fetch:
      return static_cast<T>(atomicAdd_system(word, AtomicBits<T>{0}));
    case AtomicOp::set:
    case AtomicOp::swap:
      return static_cast<T>(atomicExch_system(word, value));
    case AtomicOp::add:
      return static_cast<T>(atomicAdd_system(word, value));
    case AtomicOp::bit_and:
      return static_cast<T>(atomicAnd_system(word, value));
    case AtomicOp::bit_or:
      return static_cast<T>(atomicOr_system(word, value));
    case AtomicOp::bit_xor:
      return static_cast<T>(atomicXor_system(word, value));
    case AtomicOp::compare_swap:
      return static_cast<T>(atomicCAS_system(word, static_cast<AtomicBits<T>>(compare), value));
  }
  return T{};
}

template <Word T>
__device__ bool holds(T seen, Compare compare, T value) {
  switch (compare) {
    case Compare::equal:
      return seen == value;
    case Compare::not_equal:
      return seen != value;
    case Compare::greater:
      return seen > value;
    case Compare::greater_equal:
      return seen >= value;
    case Compare::less:
      return seen < value;
    case Compare::less_equal:
      return seen <= value;
  }
  return false;
}

/// Polls until `ready` is true or the deadline passes, and says which. `waited_ns` is set in the
/// latter case.
template <typename Ready>
__device__ bool poll(const World& world, std::uint64_t& waited_ns, Ready&& ready) {
  constexpr int kPollsPerClock = 32;  // reading the clock costs as much as a few polls
  if (ready()) return true;
  const std::uint64_t start = ptx::globaltimer();
  for (;;) {
    for (int i = 0; i < kPollsPerClock; ++i)
      if (ready()) return true;
    waited_ns = ptx::globaltimer() - start;
    if (waited_ns >= world.timeout_ns) return ready();
  }
}

/// One thread waits for one variable, and reports it when that was in vain.
template <Word T>
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

/// One look of a group of threads at many variables: the lowest index that compares so, kNoIndex
/// when none does. `remaining` tells whether any variable is not left out.
struct Scan {
  std::size_t index;
  bool remaining;
};
template <Word T>
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

/// The threads of a scope that scan together: its first warp, or what there is of it.
template <Scope S>
__device__ unsigned scanners(S scope) {
  return scope.size() < 32 ? scope.size() : 32;
}

// Teams.

__device__ inline bool is_member(const Team& team, Pe pe) {
  return (team.members[pe / 64] >> (pe % 64) & 1) != 0;
}

/// The number of the barrier after `last`, which may stem from an earlier team of this index.
__device__ inline std::uint64_t next_epoch(const Team& team, std::uint64_t last) {
  return (last >> Team::kEpochBits) == team.generation ? last + 1
                                                       : (team.generation << Team::kEpochBits) + 1;
}

}  // namespace shoal::device::detail
