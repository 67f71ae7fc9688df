// SPDX-License-Identifier: Apache-2.0
// unreached.cuh: operations on heaps that this GPU does not reach with loads and stores. The NIC
// executes what it can (nic_calls.cuh). All else is posted to the proxy where the world has one,
// and reported as a failure otherwise.
//
// These functions are not inlined, because they would cost their callers registers on the path of
// ordinary loads and stores; and they take the world by value, because a kernel that passes its
// address on reads it again for every operation. What they call takes it by reference, so that each
// fits into the 64 registers of a kernel of 1024 threads, also when it is compiled apart from it.
//
// Order between both paths. A put is complete when it returns. A signal, a fence and a quiet first
// wait for what is left on the other path: values and signals of this block on the NIC, values and
// atomics of all kernels on the proxy.
#pragma once

#include <cstddef>
#include <cstdint>

#include <shoal/device/detail/nic_calls.cuh>
#include <shoal/device/detail/proxied.cuh>
#include <shoal/device/types.hpp>

namespace shoal::device::detail {

/// Thread 0 of the scope puts; `flag`: nullptr, or a signal after the data. The source must be
/// memory that the host's copies reach: not shared memory, not the stack.
__device__ __noinline__ inline void put_unreached(World world, unsigned rank, void* target,
                                                  const void* source, std::size_t bytes, Pe pe,
                                                  const std::uint64_t* flag, SignalOp op,
                                                  std::uint64_t value) {
  if (rank != 0 || !proxied(world, target, bytes, pe)) return;
  if (flag != nullptr && !proxied(world, flag, sizeof *flag, pe)) return;
  if ((flag == nullptr || op == SignalOp::set) &&
      nic_put(world, target, source, bytes, pe, flag, value))
    return;
  if (flag != nullptr && !drain_nic(world, pe)) return;
  proxy::Request request{};
  request.kind = proxy::Kind::put;
  request.pe = pe;
  request.offset = heap_offset(world, target);
  request.source = reinterpret_cast<std::uint64_t>(source);
  request.bytes = bytes;
  if (flag != nullptr) add_signal(request, world, flag, op, value);
  if (bytes != 0 || flag != nullptr) post(world, request, true);
}

/// Thread 0 of the scope gets. The target must be memory that the host's copies reach: not shared
/// memory, not the stack. Puts on the NIC to `source` are complete; values and signals may not be.
__device__ __noinline__ inline void get_unreached(World world, unsigned rank, void* target,
                                                  const void* source, std::size_t bytes, Pe pe) {
  if (rank != 0 || !proxied(world, source, bytes, pe) || bytes == 0) return;
  proxy::Request request{};
  request.kind = proxy::Kind::get;
  request.pe = pe;
  request.offset = heap_offset(world, source);
  request.source = reinterpret_cast<std::uint64_t>(target);
  request.bytes = bytes;
  post(world, request, true);
}

/// The elements of a strided get, as put_strided_unreached.
__device__ __noinline__ inline void get_strided_unreached(
    World world, unsigned rank, unsigned size, std::byte* target, std::size_t target_stride,
    const std::byte* source, std::size_t source_stride, std::size_t element, std::size_t count,
    std::size_t bytes, Pe pe) {
  if (!proxied(world, source, bytes, pe)) return;
  proxy::Request request{};
  request.kind = proxy::Kind::get;
  request.pe = pe;
  request.bytes = element;
  for (std::size_t i = rank; i < count; i += size) {
    request.offset = heap_offset(world, source + i * source_stride);
    request.source = reinterpret_cast<std::uint64_t>(target + i * target_stride);
    if (!post(world, request, i + size >= count)) return;
  }
}

/// Starts a put of the calling thread, and a signal after it where `flag` is not nullptr; does not
/// wait. The source must stay as it is until something later has arrived. Returns whether the post
/// was accepted.
__device__ __noinline__ inline bool start_put_unreached(World world, void* target,
                                                        const void* source, std::size_t bytes,
                                                        Pe pe, const std::uint64_t* flag,
                                                        SignalOp op, std::uint64_t value) {
  if (!proxied(world, target, bytes, pe)) return false;
  if (flag != nullptr && !proxied(world, flag, sizeof *flag, pe)) return false;
  proxy::Request request{};
  request.kind = proxy::Kind::put;
  request.pe = pe;
  request.offset = heap_offset(world, target);
  request.source = reinterpret_cast<std::uint64_t>(source);
  request.bytes = bytes;
  if (flag != nullptr) add_signal(request, world, flag, op, value);
  return post(world, request, false);
}

/// The elements of a strided put; the threads of a scope share them. Requests of one thread to one
/// PE complete in order, so the wait for the last covers all.
__device__ __noinline__ inline void put_strided_unreached(
    World world, unsigned rank, unsigned size, std::byte* target, std::size_t target_stride,
    const std::byte* source, std::size_t source_stride, std::size_t element, std::size_t count,
    std::size_t bytes, Pe pe) {
  if (!proxied(world, target, bytes, pe)) return;
  if (nic_put_strided(world, target, source, bytes, pe, element, target_stride, source_stride, rank,
                      size, count))
    return;
  proxy::Request request{};
  request.kind = proxy::Kind::put;
  request.pe = pe;
  request.bytes = element;
  for (std::size_t i = rank; i < count; i += size) {
    request.offset = heap_offset(world, target + i * target_stride);
    request.source = reinterpret_cast<std::uint64_t>(source + i * source_stride);
    if (!post(world, request, i + size >= count)) return;
  }
}

/// The low `width` bytes of `value`. Does not wait.
__device__ __noinline__ inline void put_value_unreached(World world, void* target,
                                                        std::uint64_t value, unsigned width,
                                                        Pe pe) {
  if (!proxied(world, target, width, pe)) return;
  if (nic_put_value(world, target, value, width, pe)) return;
  proxy::Request request{};
  request.kind = proxy::Kind::put_value;
  request.width = static_cast<std::uint8_t>(width);
  request.pe = pe;
  request.offset = heap_offset(world, target);
  request.operand = value;
  post(world, request, false);
}

/// A value of any size, in requests that contain its parts. Does not wait.
template <typename T>
__device__ void put_value_unreached(const World& world, T* target, const T& value, Pe pe) {
  constexpr std::size_t kWidth = sizeof(T) % 8 == 0   ? 8
                                 : sizeof(T) % 4 == 0 ? 4
                                 : sizeof(T) % 2 == 0 ? 2
                                                      : 1;
  for (std::size_t at = 0; at < sizeof(T); at += kWidth) {
    std::uint64_t part = 0;
    memcpy(&part, reinterpret_cast<const char*>(&value) + at, kWidth);
    put_value_unreached(world, reinterpret_cast<char*>(target) + at, part, kWidth, pe);
  }
}

/// Does not wait.
__device__ __noinline__ inline bool signal_unreached(World world, const std::uint64_t* flag,
                                                     SignalOp op, std::uint64_t value, Pe pe) {
  if (!proxied(world, flag, sizeof *flag, pe)) return false;
  bool ok = true;
  if (op == SignalOp::set && nic_signal(world, flag, value, pe, ok)) return ok;
  if (!drain_nic(world, pe)) return false;
  proxy::Request request{};
  request.kind = proxy::Kind::signal;
  request.pe = pe;
  add_signal(request, world, flag, op, value);
  return post(world, request, false);
}

/// The signal of a barrier, after all that this PE's kernels have posted to NICs.
__device__ inline bool arrive_unreached(const World& world, const std::uint64_t* flag,
                                        std::uint64_t epoch, Pe pe) {
  if (!drain_nic(world, -1)) return false;
  return signal_unreached(world, flag, SignalOp::set, epoch, pe);
}

/// Returns the value before, or 0 after a failure. With `result` false it does not wait.
__device__ __noinline__ inline std::uint64_t atomic_unreached(World world, AtomicOp op,
                                                              const void* word,
                                                              std::uint64_t operand,
                                                              std::uint64_t compare, unsigned width,
                                                              Pe pe, bool result) {
  if (!proxied(world, word, width, pe)) return 0;
  proxy::Request request{};
  request.kind = proxy::Kind::atomic;
  request.op = op;
  request.width = static_cast<std::uint8_t>(width);
  request.flags = result ? proxy::kResult : 0;
  request.pe = pe;
  request.offset = heap_offset(world, word);
  request.operand = operand;
  request.compare = compare;
  if (result) return post_for_value(world, request);
  post(world, request, false);
  return 0;
}

/// A fence, or with `complete` a quiet, of what this PE's kernels have posted. With a NIC both
/// wait: a fence orders requests of one path before those of the other.
__device__ __noinline__ inline bool order_unreached(World world, bool complete) {
  if (uses_nic(world)) {
    const bool ok = drain_nic(world, -1);
    return drain_proxy(world) && ok;
  }
  if (complete) return drain_proxy(world);
  proxy::Request request{};
  request.kind = proxy::Kind::fence;
  return post(world, request, false);
}

}  // namespace shoal::device::detail
