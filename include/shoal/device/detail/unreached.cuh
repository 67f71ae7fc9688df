// SPDX-License-Identifier: Apache-2.0
// unreached.cuh: operations on heaps that this GPU does not reach with loads and stores. They are
// posted to the proxy where the world has one, and reported as failures otherwise.
//
// These functions are not inlined, because they would cost their callers registers on the path of
// ordinary loads and stores; and they take the world by value, because a kernel that passes its
// address on reads it again for every operation.
#pragma once

#include <cstddef>
#include <cstdint>

#include <shoal/device/detail/failure.cuh>
#include <shoal/device/detail/proxy_platform.cuh>
#include <shoal/device/detail/proxy_ring.hpp>
#include <shoal/device/types.hpp>

namespace shoal::device::detail {

using ProxyProducer = proxy::Producer<GpuPlatform>;

__device__ inline std::size_t heap_offset(const World& world, const void* local) {
  return static_cast<std::size_t>(static_cast<const std::byte*>(local) - world.heap);
}

/// Whether [offset, offset + bytes) of `pe` exists.
__device__ inline bool exists(const World& world, std::size_t offset, std::size_t bytes, Pe pe) {
  return static_cast<std::uint32_t>(pe) < static_cast<std::uint32_t>(world.n_pes) &&
         offset <= world.heap_bytes && bytes <= world.heap_bytes - offset;
}

/// Reports that the PE or the range does not exist, or that this GPU cannot reach it.
__device__ __noinline__ inline void report_unreached(World world, const void* local,
                                                     std::size_t bytes, Pe pe) {
  FailureReport report{};
  report.offset = heap_offset(world, local);
  report.kind =
      exists(world, report.offset, bytes, pe) ? FailureKind::unreachable : FailureKind::bad_address;
  report.awaited = pe;
  report.bytes = bytes;
  record(world, report);
}

/// Whether the proxy can serve [local, local + bytes) of `pe`; reports where it cannot.
__device__ inline bool proxied(const World& world, const void* local, std::size_t bytes, Pe pe) {
  if (world.proxy != nullptr && exists(world, heap_offset(world, local), bytes, pe)) return true;
  report_unreached(world, local, bytes, pe);
  return false;
}

/// Reports how a post or wait ended: the first cause of the ring where it has failed. Returns
/// whether it was ok.
__device__ inline bool check_outcome(const World& world, const proxy::Request& request,
                                     proxy::Outcome outcome) {
  if (outcome == proxy::Outcome::ok) return true;
  const proxy::Control& control = *world.proxy->control;
  const bool failed = outcome == proxy::Outcome::failed;
  FailureReport report{};
  report.kind = outcome == proxy::Outcome::timeout   ? FailureKind::proxy_timeout
                : outcome == proxy::Outcome::aborted ? FailureKind::proxy_aborted
                                                     : FailureKind::proxy_failed;
  report.awaited = failed ? control.pe : request.pe;
  report.offset = failed ? control.offset : request.offset;
  report.bytes = failed                             ? control.bytes
                 : request.kind == proxy::Kind::put ? request.bytes
                                                    : request.width;
  report.expected = failed ? static_cast<std::uint64_t>(control.code) : 0;
  report.seen = static_cast<std::uint64_t>(failed ? control.kind : request.kind);
  report.waited_ns = failed ? 0 : world.proxy->timeout_ns;
  record(world, report);
  return false;
}

/// Posts the request; with `complete`, waits until it is complete.
__device__ inline bool post(const World& world, const proxy::Request& request, bool complete) {
  proxy::Ticket ticket = 0;
  proxy::Outcome outcome = ProxyProducer::post(*world.proxy, request, ticket);
  if (outcome == proxy::Outcome::ok && complete)
    outcome = ProxyProducer::wait(*world.proxy, ticket);
  return check_outcome(world, request, outcome);
}

__device__ inline void add_signal(proxy::Request& request, const World& world,
                                  const std::uint64_t* flag, SignalOp op, std::uint64_t value) {
  request.flags = op == SignalOp::set ? proxy::kSignalSet : proxy::kSignalAdd;
  request.signal_offset = heap_offset(world, flag);
  request.signal_value = value;
}

/// Thread 0 of the scope puts; `flag`: nullptr, or a signal after the data. The source must be
/// memory that the host's copies reach: not shared memory, not the stack.
__device__ __noinline__ inline void put_unreached(World world, unsigned rank, void* target,
                                                  const void* source, std::size_t bytes, Pe pe,
                                                  const std::uint64_t* flag, SignalOp op,
                                                  std::uint64_t value) {
  if (rank != 0 || !proxied(world, target, bytes, pe)) return;
  if (flag != nullptr && !proxied(world, flag, sizeof *flag, pe)) return;
  proxy::Request request{};
  request.kind = proxy::Kind::put;
  request.pe = pe;
  request.offset = heap_offset(world, target);
  request.source = reinterpret_cast<std::uint64_t>(source);
  request.bytes = bytes;
  if (flag != nullptr) add_signal(request, world, flag, op, value);
  if (bytes != 0 || flag != nullptr) post(world, request, true);
}

/// The elements of a strided put; the threads of a scope share them. Requests of one thread to one
/// PE complete in order, so the wait for the last covers all.
__device__ __noinline__ inline void put_strided_unreached(
    World world, unsigned rank, unsigned size, std::byte* target, std::size_t target_stride,
    const std::byte* source, std::size_t source_stride, std::size_t element, std::size_t count,
    std::size_t bytes, Pe pe) {
  if (!proxied(world, target, bytes, pe)) return;
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
  proxy::Request request{};
  request.kind = proxy::Kind::signal;
  request.pe = pe;
  add_signal(request, world, flag, op, value);
  return post(world, request, false);
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
  proxy::Ticket ticket = 0;
  std::uint64_t before = 0;
  proxy::Outcome outcome = ProxyProducer::post(*world.proxy, request, ticket);
  if (outcome == proxy::Outcome::ok && result)
    outcome = ProxyProducer::wait_value(*world.proxy, ticket, before);
  check_outcome(world, request, outcome);
  return before;
}

/// A fence, or with `complete` a quiet, of what this PE's kernels have posted.
__device__ __noinline__ inline bool order_unreached(World world, bool complete) {
  proxy::Request request{};
  request.kind = proxy::Kind::fence;
  if (!complete) return post(world, request, false);
  const proxy::Ticket ticket = ProxyProducer::quiet_ticket(*world.proxy);
  return check_outcome(world, request, ProxyProducer::wait_all(*world.proxy, ticket));
}

}  // namespace shoal::device::detail
