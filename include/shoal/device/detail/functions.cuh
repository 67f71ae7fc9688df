// SPDX-License-Identifier: Apache-2.0
// functions.cuh: the definitions of what contract/functions.cuh declares and explains.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <shoal/device/contract/functions.cuh>
#include <shoal/device/detail/copy.cuh>
#include <shoal/device/detail/failure.cuh>
#include <shoal/device/detail/unreached.cuh>
#include <shoal/device/detail/wait.cuh>
#include <shoal/device/detail/word.cuh>
#include <shoal/device/detail/world.cuh>

namespace shoal::device {

namespace detail {

/// Bytes from the first to the last of `count` elements; 2^64 - 1 on overflow.
__device__ inline std::size_t extent(std::size_t element, std::size_t stride, std::size_t count) {
  if (count == 0) return 0;
  if (__umul64hi(count - 1, stride) != 0) return static_cast<std::size_t>(-1);
  const std::size_t bytes = (count - 1) * stride;
  return bytes + element < bytes ? static_cast<std::size_t>(-1) : bytes + element;
}

}  // namespace detail

template <typename T>
__device__ T* peer_pointer(const World& world, T* local, Pe pe) {
  return detail::resolve(world, local, sizeof(T), pe);
}

template <SHOAL_SCOPE S>
__device__ void put_bytes(S scope, const World& world, void* target, const void* source,
                          std::size_t bytes, Pe pe) {
  scope.sync();
  std::byte* const to = detail::reach(world, static_cast<std::byte*>(target), bytes, pe);
  if (to != nullptr)
    detail::copy<detail::Direction::put>(scope.rank(), scope.size(), to, source, bytes);
  else
    detail::put_unreached(world, scope.rank(), target, source, bytes, pe, nullptr, {}, 0);
  scope.sync();
}

template <SHOAL_SCOPE S>
__device__ void get_bytes(S scope, const World& world, void* target, const void* source,
                          std::size_t bytes, Pe pe) {
  scope.sync();
  const std::byte* const from =
      detail::reach(world, static_cast<const std::byte*>(source), bytes, pe);
  if (from != nullptr)
    detail::copy<detail::Direction::get>(scope.rank(), scope.size(), target, from, bytes);
  else
    detail::get_unreached(world, scope.rank(), target, source, bytes, pe);
  scope.sync();
}

template <SHOAL_SCOPE S, typename T>
__device__ void put(S scope, const World& world, T* target, const Exactly<T>* source,
                    std::size_t count, Pe pe) {
  static_assert(std::is_trivially_copyable_v<T>);
  put_bytes(scope, world, target, source, detail::extent(sizeof(T), sizeof(T), count), pe);
}

template <SHOAL_SCOPE S, typename T>
__device__ void get(S scope, const World& world, T* target, const Exactly<T>* source,
                    std::size_t count, Pe pe) {
  static_assert(std::is_trivially_copyable_v<T>);
  get_bytes(scope, world, target, source, detail::extent(sizeof(T), sizeof(T), count), pe);
}

template <typename T>
__device__ void put_value(const World& world, T* target, Exactly<T> value, Pe pe) {
  static_assert(std::is_trivially_copyable_v<T>);
  T* const to = detail::reach(world, target, sizeof(T), pe);
  if (to == nullptr) return detail::put_value_unreached(world, target, value, pe);
  if constexpr (is_word<T>)
    ptx::st_relaxed_sys(reinterpret_cast<detail::Bits<T>*>(to),
                        static_cast<detail::Bits<T>>(value));
  else
    *to = value;
}

template <typename T>
__device__ T get_value(const World& world, const T* source, Pe pe) {
  static_assert(std::is_trivially_copyable_v<T>);
  T value{};
  const T* const from = detail::reach(world, source, sizeof(T), pe);
  if (from != nullptr) {
    detail::copy<detail::Direction::get>(0, 1, &value, from, sizeof(T));
  } else if constexpr (sizeof(T) == 4 || sizeof(T) == 8) {
    // The proxy cannot write to the stack of a thread, but it returns the result of an atomic.
    const std::uint64_t bits =
        detail::atomic_unreached(world, AtomicOp::fetch, source, 0, 0, sizeof(T), pe, true);
    memcpy(&value, &bits, sizeof value);
  } else {
    detail::report_unreached(world, source, sizeof(T), pe);
  }
  return value;
}

template <SHOAL_SCOPE S, typename T>
__device__ void put_strided(S scope, const World& world, T* target, std::size_t target_stride,
                            const Exactly<T>* source, std::size_t source_stride, std::size_t count,
                            Pe pe) {
  scope.sync();
  const std::size_t bytes = detail::extent(sizeof(T), target_stride * sizeof(T), count);
  T* const to = detail::reach(world, target, bytes, pe);
  if (to != nullptr)
    detail::copy_strided<detail::Direction::put>(
        scope.rank(), scope.size(), reinterpret_cast<std::uint8_t*>(to), target_stride * sizeof(T),
        reinterpret_cast<const std::uint8_t*>(source), source_stride * sizeof(T), sizeof(T), count);
  else
    detail::put_strided_unreached(world, scope.rank(), scope.size(),
                                  reinterpret_cast<std::byte*>(target), target_stride * sizeof(T),
                                  reinterpret_cast<const std::byte*>(source),
                                  source_stride * sizeof(T), sizeof(T), count, bytes, pe);
  scope.sync();
}

template <SHOAL_SCOPE S, typename T>
__device__ void get_strided(S scope, const World& world, T* target, std::size_t target_stride,
                            const Exactly<T>* source, std::size_t source_stride, std::size_t count,
                            Pe pe) {
  scope.sync();
  const std::size_t bytes = detail::extent(sizeof(T), source_stride * sizeof(T), count);
  const T* const from = detail::reach(world, source, bytes, pe);
  if (from == nullptr)
    detail::get_strided_unreached(world, scope.rank(), scope.size(),
                                  reinterpret_cast<std::byte*>(target), target_stride * sizeof(T),
                                  reinterpret_cast<const std::byte*>(source),
                                  source_stride * sizeof(T), sizeof(T), count, bytes, pe);
  else
    detail::copy_strided<detail::Direction::get>(
        scope.rank(), scope.size(), reinterpret_cast<std::uint8_t*>(target),
        target_stride * sizeof(T), reinterpret_cast<const std::uint8_t*>(from),
        source_stride * sizeof(T), sizeof(T), count);
  scope.sync();
}

template <SHOAL_WORD T>
__device__ T atomic(AtomicOp op, const World& world, T* target, Exactly<T> operand, Pe pe,
                    Exactly<T> compare) {
  using Bits = detail::Bits<T>;
  T* const word = detail::reach(world, target, sizeof(T), pe);
  if (word != nullptr) return detail::atomic_on<T>(op, word, operand, compare);
  return static_cast<T>(detail::atomic_unreached(world, op, target, static_cast<Bits>(operand),
                                                 static_cast<Bits>(compare), sizeof(T), pe, true));
}

template <SHOAL_WORD T>
__device__ T atomic_fetch(const World& world, const T* target, Pe pe) {
  const T* const word = detail::reach(world, target, sizeof(T), pe);
  if (word == nullptr)
    return static_cast<T>(
        detail::atomic_unreached(world, AtomicOp::fetch, target, 0, 0, sizeof(T), pe, true));
  return static_cast<T>(ptx::ld_relaxed_sys(reinterpret_cast<const detail::Bits<T>*>(word)));
}

template <SHOAL_WORD T>
__device__ void atomic_set(const World& world, T* target, Exactly<T> value, Pe pe) {
  T* const word = detail::reach(world, target, sizeof(T), pe);
  using Bits = detail::Bits<T>;
  if (word != nullptr)
    ptx::st_relaxed_sys(reinterpret_cast<Bits*>(word), static_cast<Bits>(value));
  else
    detail::atomic_unreached(world, AtomicOp::set, target, static_cast<Bits>(value), 0, sizeof(T),
                             pe, false);
}

template <SHOAL_WORD T>
__device__ T atomic_fetch_add(const World& world, T* target, Exactly<T> value, Pe pe) {
  return atomic(AtomicOp::add, world, target, value, pe);
}

template <SHOAL_WORD T>
__device__ T atomic_fetch_and(const World& world, T* target, Exactly<T> value, Pe pe) {
  return atomic(AtomicOp::bit_and, world, target, value, pe);
}

template <SHOAL_WORD T>
__device__ T atomic_fetch_or(const World& world, T* target, Exactly<T> value, Pe pe) {
  return atomic(AtomicOp::bit_or, world, target, value, pe);
}

template <SHOAL_WORD T>
__device__ T atomic_fetch_xor(const World& world, T* target, Exactly<T> value, Pe pe) {
  return atomic(AtomicOp::bit_xor, world, target, value, pe);
}

template <SHOAL_WORD T>
__device__ T atomic_swap(const World& world, T* target, Exactly<T> value, Pe pe) {
  return atomic(AtomicOp::swap, world, target, value, pe);
}

template <SHOAL_WORD T>
__device__ T atomic_compare_swap(const World& world, T* target, Exactly<T> expected,
                                 Exactly<T> desired, Pe pe) {
  return atomic(AtomicOp::compare_swap, world, target, desired, pe, expected);
}

template <SHOAL_SCOPE S>
__device__ void fence(S scope) {
  scope.sync();
  ptx::fence_acq_rel_sys();  // by every thread: it orders what the same thread stores later
}

template <SHOAL_SCOPE S>
__device__ void quiet(S scope) {
  ptx::fence_sc_sys();
  scope.sync();
}

template <SHOAL_SCOPE S>
__device__ bool fence(S scope, const World& world) {
  fence(scope);
  const bool ok =
      world.proxy == nullptr || scope.rank() != 0 || detail::order_unreached(world, false);
  return scope.all(ok);
}

template <SHOAL_SCOPE S>
__device__ bool quiet(S scope, const World& world) {
  quiet(scope);
  const bool ok =
      world.proxy == nullptr || scope.rank() != 0 || detail::order_unreached(world, true);
  return scope.all(ok);
}

namespace detail {

/// One thread's signal. kReleases: whoever sees it sees what the thread has stored or acquired
/// before; that takes as long again.
template <bool kReleases>
__device__ void signal_by_one(const World& world, std::uint64_t* flag, SignalOp op,
                              std::uint64_t value, Pe pe) {
  std::uint64_t* const word = reach(world, flag, sizeof *flag, pe);
  if (word == nullptr)
    signal_unreached(world, flag, op, value, pe);
  else if (op == SignalOp::add)
    kReleases ? ptx::red_release_sys_add(word, value) : ptx::red_relaxed_sys_add(word, value);
  else
    kReleases ? ptx::st_release_sys(word, value) : ptx::st_relaxed_sys(word, value);
}

}  // namespace detail

template <SHOAL_SCOPE S>
__device__ void signal(S scope, const World& world, std::uint64_t* flag, SignalOp op,
                       std::uint64_t value, Pe pe) {
  scope.sync();
  if (scope.rank() == 0) detail::signal_by_one<true>(world, flag, op, value, pe);
}

template <SHOAL_SCOPE S, typename T>
__device__ void put_signal(S scope, const World& world, T* target, const Exactly<T>* source,
                           std::size_t count, std::uint64_t* flag, SignalOp op, std::uint64_t value,
                           Pe pe) {
  static_assert(std::is_trivially_copyable_v<T>);
  scope.sync();
  const std::size_t bytes = detail::extent(sizeof(T), sizeof(T), count);
  T* const to = detail::reach(world, target, bytes, pe);
  if (to == nullptr) {
    detail::put_unreached(world, scope.rank(), target, source, bytes, pe, flag, op, value);
    return scope.sync();
  }
  detail::copy<detail::Direction::put>(scope.rank(), scope.size(), to, source, bytes);
  signal(scope, world, flag, op, value, pe);
}

template <SHOAL_WORD T>
__device__ T signal_fetch(const T* flag) {
  return detail::load_acquire(flag);
}

template <SHOAL_SCOPE S, SHOAL_WORD T>
__device__ bool wait_until(S scope, const World& world, const T* variable, Compare compare,
                           Exactly<T> value) {
  const bool ok = scope.rank() != 0 ||
                  detail::wait_for<T>(world, FailureKind::wait_until, variable, compare, value);
  return scope.all(ok);
}

template <SHOAL_SCOPE S, SHOAL_WORD T>
__device__ bool test(S scope, const T* variable, Compare compare, Exactly<T> value) {
  return scope.all(scope.rank() != 0 ||
                   detail::holds<T>(detail::load_acquire(variable), compare, value));
}

template <SHOAL_SCOPE S, SHOAL_WORD T>
__device__ bool wait_until_all(S scope, const World& world, const T* variables, std::size_t count,
                               Compare compare, Exactly<T> value, const int* skip) {
  bool ok = true;
  for (std::size_t i = scope.rank(); i < count && ok; i += scope.size())
    if (skip == nullptr || skip[i] == 0)
      ok = detail::wait_for<T>(world, FailureKind::wait_until_all, variables + i, compare, value);
  return scope.all(ok);
}

template <SHOAL_SCOPE S, SHOAL_WORD T>
__device__ bool test_all(S scope, const T* variables, std::size_t count, Compare compare,
                         Exactly<T> value, const int* skip) {
  bool ok = true;
  for (std::size_t i = scope.rank(); i < count && ok; i += scope.size())
    if (skip == nullptr || skip[i] == 0)
      ok = detail::holds<T>(detail::load_acquire(variables + i), compare, value);
  return scope.all(ok);
}

template <SHOAL_SCOPE S, SHOAL_WORD T>
__device__ std::size_t wait_until_any(S scope, const World& world, const T* variables,
                                      std::size_t count, Compare compare, Exactly<T> value,
                                      const int* skip) {
  const unsigned scanners = detail::scanners(scope);
  detail::Scan found{kNoIndex, false};
  scope.sync();
  if (scope.rank() < scanners) {
    const unsigned mask = scanners == 32 ? ~0U : (1U << scanners) - 1;
    std::uint64_t waited_ns = 0;
    // Lanes may read different clocks: the leader's decides, so that they stay converged.
    const std::uint64_t start = ptx::globaltimer();
    for (bool late = false;;) {
      found = detail::scan<T>(scope.rank(), scanners, mask, variables, count, compare, value, skip);
      if (found.index != kNoIndex || !found.remaining || late) break;
      waited_ns = ptx::globaltimer() - start;
      late = waited_ns >= world.timeout_ns;
      if (scanners > 1) late = __shfl_sync(mask, static_cast<int>(late), 0) != 0;
    }
    if (scope.rank() == 0 && found.index == kNoIndex && found.remaining)
      detail::record_wait<T>(world, FailureKind::wait_until_any, variables, compare, value,
                             detail::load_acquire(variables), waited_ns, -1);
  }
  return detail::broadcast(scope, found.index);
}

template <SHOAL_SCOPE S, SHOAL_WORD T>
__device__ std::size_t test_any(S scope, const T* variables, std::size_t count, Compare compare,
                                Exactly<T> value, const int* skip) {
  const unsigned scanners = detail::scanners(scope);
  detail::Scan found{kNoIndex, false};
  scope.sync();
  if (scope.rank() < scanners)
    found = detail::scan<T>(scope.rank(), scanners, scanners == 32 ? ~0U : (1U << scanners) - 1,
                            variables, count, compare, value, skip);
  return detail::broadcast(scope, found.index);
}

// Release: every thread that signals issues a fence and stores relaxed, so that the fence overlaps
// with the load of the epoch.
template <SHOAL_SCOPE S>
__device__ bool barrier(S scope, const World& world, const Team& team) {
  const auto first = static_cast<Pe>(scope.rank());
  const auto step = static_cast<Pe>(scope.size());
  scope.sync();
  const std::uint64_t last = *team.epoch;
  if (first < world.n_pes) ptx::fence_acq_rel_sys();
  const std::uint64_t epoch = detail::next_epoch(team, last);
  bool ok = true;
  for (Pe pe = first; pe < world.n_pes; pe += step) {
    if (!detail::is_member(team, pe) || pe == world.my_pe) continue;
    std::uint64_t* const mine = team.arrived + world.my_pe;
    std::uint64_t* const theirs = detail::reach(world, mine, sizeof *mine, pe);
    if (theirs != nullptr)
      ptx::st_relaxed_sys(theirs, epoch);
    else
      ok = detail::arrive_unreached(world, mine, epoch, pe) && ok;
  }
  for (Pe pe = first; pe < world.n_pes && ok; pe += step)
    if (detail::is_member(team, pe) && pe != world.my_pe)
      ok = detail::wait_for<std::uint64_t>(world, FailureKind::barrier, team.arrived + pe,
                                           Compare::greater_equal, epoch, pe);
  ok = scope.all(ok);  // all threads have loaded the epoch
  if (scope.rank() == 0) *team.epoch = epoch;
  scope.sync();
  return ok;
}

}  // namespace shoal::device
