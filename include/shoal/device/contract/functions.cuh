// SPDX-License-Identifier: Apache-2.0
// contract/functions.cuh: one-sided operations, signals, waits and barriers inside kernels. Include
// shoal/device/functions.cuh, which has the definitions too.
//
// Callers. All threads of a scope call a function that takes one, converged, with the same
// arguments. Such functions begin and end with scope.sync(): they see what other threads of the
// scope stored before, and every thread may use the results at once. A function without a scope
// works for each calling thread alone.
//
// Addresses. The remote side of an operation, flags and variables are addresses in this PE's heap;
// they name the copy on PE `pe`. The local side is any memory of this GPU. Local addresses are not
// checked.
//
// Memory order. put and get are unordered and return when the local side may be reused. fence
// orders what the scope stored before it ahead of what it stores later. quiet also waits until the
// earlier stores are visible everywhere. signal, put_signal and barrier release at system scope:
// whoever sees the signal sees everything that the scope stored before. Waits, tests and
// signal_fetch acquire at system scope for all threads of the scope. Atomics are relaxed.
//
// Alignment. put and get take any; they use 16-byte accesses when both addresses are equal modulo
// 16, and one store for a word of 4 or 8 bytes at a multiple of its size. Words must lie at a
// multiple of their size (not checked).
//
// Heaps out of reach. Where this GPU does not reach a heap with loads and stores and the world has
// a proxy (World::proxy), all operations but peer_pointer post requests, which a thread of this PE
// executes over the network. put, put_strided and put_signal return when the data are at their
// target, get and get_strided when they are here; the local side must be GPU memory, not shared
// memory or the stack. get_value takes words of 4 or 8 bytes. Atomics with a result wait for it.
// put_value, atomic_set and signal do not wait: quiet(scope, world) does. peer_pointer fails.
//
// Failure. Nothing traps. A wait returns false after World::timeout_ns. When a PE does not exist or
// cannot be reached, or a remote range leaves the heap, the call does nothing and results are zero.
// The first failure is kept in World::failure; shoal::cuda::check_failures throws it on the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <shoal/device/scope.cuh>
#include <shoal/device/types.hpp>

namespace shoal::device {

/// The address of `local` (in this PE's heap) in the heap of `pe`, for ordinary loads and stores;
/// nullptr and a failure report when this GPU cannot reach it.
template <typename T>
__device__ T* peer_pointer(const World& world, T* local, Pe pe);

// Put and get.

/// Copies `bytes` bytes of local memory at `source` to `target` on `pe`.
template <SHOAL_SCOPE S>
__device__ void put_bytes(S scope, const World& world, void* target, const void* source,
                          std::size_t bytes, Pe pe);

/// Copies `bytes` bytes at `source` on `pe` to local memory at `target`. Reads memory, not caches.
template <SHOAL_SCOPE S>
__device__ void get_bytes(S scope, const World& world, void* target, const void* source,
                          std::size_t bytes, Pe pe);

/// put_bytes and get_bytes for `count` elements.
template <SHOAL_SCOPE S, typename T>
__device__ void put(S scope, const World& world, T* target, const Exactly<T>* source,
                    std::size_t count, Pe pe);
template <SHOAL_SCOPE S, typename T>
__device__ void get(S scope, const World& world, T* target, const Exactly<T>* source,
                    std::size_t count, Pe pe);

/// One element per calling thread, in one access when it has 1, 2, 4 or 8 bytes. Another PE may
/// wait for a Word that put_value stores.
template <typename T>
__device__ void put_value(const World& world, T* target, Exactly<T> value, Pe pe);
template <typename T>
__device__ T get_value(const World& world, const T* source, Pe pe);

/// `count` elements, `target_stride` and `source_stride` elements apart, both at least 1.
template <SHOAL_SCOPE S, typename T>
__device__ void put_strided(S scope, const World& world, T* target, std::size_t target_stride,
                            const Exactly<T>* source, std::size_t source_stride, std::size_t count,
                            Pe pe);
template <SHOAL_SCOPE S, typename T>
__device__ void get_strided(S scope, const World& world, T* target, std::size_t target_stride,
                            const Exactly<T>* source, std::size_t source_stride, std::size_t count,
                            Pe pe);

// Atomics on words of 4 or 8 bytes, by each calling thread. Each returns the value before.

template <SHOAL_WORD T>
__device__ T atomic(AtomicOp op, const World& world, T* target, Exactly<T> operand, Pe pe,
                    Exactly<T> compare = 0);
template <SHOAL_WORD T>
__device__ T atomic_fetch(const World& world, const T* target, Pe pe);
template <SHOAL_WORD T>
__device__ void atomic_set(const World& world, T* target, Exactly<T> value, Pe pe);
template <SHOAL_WORD T>
__device__ T atomic_fetch_add(const World& world, T* target, Exactly<T> value, Pe pe);
template <SHOAL_WORD T>
__device__ T atomic_fetch_and(const World& world, T* target, Exactly<T> value, Pe pe);
template <SHOAL_WORD T>
__device__ T atomic_fetch_or(const World& world, T* target, Exactly<T> value, Pe pe);
template <SHOAL_WORD T>
__device__ T atomic_fetch_xor(const World& world, T* target, Exactly<T> value, Pe pe);
template <SHOAL_WORD T>
__device__ T atomic_swap(const World& world, T* target, Exactly<T> value, Pe pe);
template <SHOAL_WORD T>
__device__ T atomic_compare_swap(const World& world, T* target, Exactly<T> expected,
                                 Exactly<T> desired, Pe pe);

// Order.

/// Orders what the scope stored before the call ahead of what it stores later.
template <SHOAL_SCOPE S>
__device__ void fence(S scope);
/// Returns when what the scope stored before is visible everywhere.
template <SHOAL_SCOPE S>
__device__ void quiet(S scope);

/// Do what fence and quiet of the scope do, for all requests as well that kernels of this PE posted
/// to the proxy before. Return false when one of them has failed, or the deadline passed.
template <SHOAL_SCOPE S>
__device__ bool fence(S scope, const World& world);
template <SHOAL_SCOPE S>
__device__ bool quiet(S scope, const World& world);

// Signals: 64-bit words of the heap.

/// Sets `flag` on `pe` to `value`, or adds `value` to it. Releases what the scope stored before.
template <SHOAL_SCOPE S>
__device__ void signal(S scope, const World& world, std::uint64_t* flag, SignalOp op,
                       std::uint64_t value, Pe pe);

/// put, then signal: whoever sees the signal sees the data. A put that fails sends no signal.
template <SHOAL_SCOPE S, typename T>
__device__ void put_signal(S scope, const World& world, T* target, const Exactly<T>* source,
                           std::size_t count, std::uint64_t* flag, SignalOp op, std::uint64_t value,
                           Pe pe);

/// The value of a signal of this PE.
template <SHOAL_WORD T>
__device__ T signal_fetch(const T* flag);

// Wait and test on variables of this PE's heap that other PEs write. `skip` is nullptr or an array
// in memory of this GPU with an element per variable: a nonzero element leaves its variable out.

/// Waits until `*variable` compares with `value` as asked. Returns false when the deadline passed.
template <SHOAL_SCOPE S, SHOAL_WORD T>
__device__ bool wait_until(S scope, const World& world, const T* variable, Compare compare,
                           Exactly<T> value);
/// True if it compares so now.
template <SHOAL_SCOPE S, SHOAL_WORD T>
__device__ bool test(S scope, const T* variable, Compare compare, Exactly<T> value);

/// Waits until all of `count` variables compare as asked; the threads of the scope share the work.
template <SHOAL_SCOPE S, SHOAL_WORD T>
__device__ bool wait_until_all(S scope, const World& world, const T* variables, std::size_t count,
                               Compare compare, Exactly<T> value, const int* skip = nullptr);
template <SHOAL_SCOPE S, SHOAL_WORD T>
__device__ bool test_all(S scope, const T* variables, std::size_t count, Compare compare,
                         Exactly<T> value, const int* skip = nullptr);

/// Waits until one of `count` variables compares as asked. Returns the lowest index that does.
/// Returns kNoIndex when the deadline passed, and at once when every variable is excluded. Exclude
/// variables that have been handled: a lower index wins every time.
template <SHOAL_SCOPE S, SHOAL_WORD T>
__device__ std::size_t wait_until_any(S scope, const World& world, const T* variables,
                                      std::size_t count, Compare compare, Exactly<T> value,
                                      const int* skip = nullptr);
template <SHOAL_SCOPE S, SHOAL_WORD T>
__device__ std::size_t test_any(S scope, const T* variables, std::size_t count, Compare compare,
                                Exactly<T> value, const int* skip = nullptr);

// Barrier.

/// Waits until every PE of the team has called. What each scope stored before is visible to all
/// afterwards. One scope of each PE calls; all PEs make the same number of calls, those of
/// StreamOperations::barrier included. Returns false when the deadline passed: the team is then out
/// of step and no longer usable.
template <SHOAL_SCOPE S>
__device__ bool barrier(S scope, const World& world, const Team& team);

}  // namespace shoal::device
