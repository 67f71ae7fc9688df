// SPDX-License-Identifier: Apache-2.0
// proxied.cuh: requests to the proxy.
//
// SHOAL_DEVICE_APART (failure.cuh): these take requests and the world by reference, because a
// caller that keeps neither in registers needs few of them.
#pragma once

#include <cstddef>
#include <cstdint>

#include <shoal/device/detail/failure.cuh>
#include <shoal/device/detail/proxy_ring.hpp>
#include <shoal/device/detail/world.cuh>
#include <shoal/device/ptx.cuh>
#include <shoal/device/types.hpp>

namespace shoal::device::detail {

/// The Platform (proxy_ring.hpp) of rings whose producers are threads of a GPU.
struct GpuPlatform {
  template <typename T>
  __device__ static T load_acquire_system(const T* word) {
    return ptx::ld_acquire_sys(word);
  }
  __device__ static std::uint64_t load_relaxed_system(const std::uint64_t* word) {
    return ptx::ld_relaxed_sys(word);
  }
  __device__ static void store_relaxed_system(std::uint64_t* word, std::uint64_t value) {
    ptx::st_relaxed_sys(word, value);
  }
  __device__ static void store_release_system(std::uint64_t* word, std::uint64_t value) {
    ptx::st_release_sys(word, value);
  }

  // Words in this GPU's memory that only its kernels use.
  __device__ static std::uint64_t load_acquire_local(const std::uint64_t* word) {
    return ptx::ld_acquire_sys(word);
  }
  __device__ static bool compare_exchange_local(std::uint64_t* word, std::uint64_t expected,
                                                std::uint64_t desired) {
    return atomicCAS(reinterpret_cast<unsigned long long*>(word), expected, desired) == expected;
  }
  /// Raises the word to `value`, if it is lower; releases at the scope of the GPU.
  __device__ static void raise_local(std::uint64_t* word, std::uint64_t value) {
    __threadfence();
    atomicMax(reinterpret_cast<unsigned long long*>(word), value);
  }

  __device__ static std::uint64_t clock_ns() { return ptx::globaltimer(); }
  /// A poll of pinned memory takes about a microsecond by itself.
  __device__ static void pause() {}
};

using ProxyProducer = proxy::Producer<GpuPlatform>;

/// True if the proxy can serve [local, local + bytes) of `pe`; reports where it cannot.
__device__ SHOAL_DEVICE_APART inline bool proxied(const World& world, const void* local,
                                                  std::size_t bytes, Pe pe) {
  if (world.proxy != nullptr && exists(world, heap_offset(world, local), bytes, pe)) return true;
#ifdef __CUDACC_RDC__
  report_range(world, local, bytes, pe);
#else
  report_unreached(world, local, bytes, pe);
#endif
  return false;
}

/// Reports how a post or wait failed: the first cause of the ring where that has failed.
__device__ SHOAL_DEVICE_APART inline void report_outcome(const World& world,
                                                         const proxy::Request& request,
                                                         proxy::Outcome outcome) {
  const proxy::Control& control = *world.proxy->control;
  const bool failed = outcome == proxy::Outcome::failed;
  FailureReport report{};
  report.kind = outcome == proxy::Outcome::timeout   ? FailureKind::proxy_timeout
                : outcome == proxy::Outcome::aborted ? FailureKind::proxy_aborted
                                                     : FailureKind::proxy_failed;
  report.awaited = failed ? control.pe : request.pe;
  report.offset = failed ? control.offset : request.offset;
  report.bytes = failed                            ? control.bytes
                 : proxy::moves_data(request.kind) ? request.bytes
                                                   : request.width;
  report.expected = failed ? static_cast<std::uint64_t>(control.code) : 0;
  report.seen = static_cast<std::uint64_t>(failed ? control.kind : request.kind);
  report.waited_ns = failed ? 0 : world.proxy->timeout_ns;
  record(world, report);
}

/// Returns whether a post or wait was ok; reports where it was not.
__device__ inline bool check_outcome(const World& world, const proxy::Request& request,
                                     proxy::Outcome outcome) {
  if (outcome != proxy::Outcome::ok) report_outcome(world, request, outcome);
  return outcome == proxy::Outcome::ok;
}

/// Posts the request; with `complete`, waits until it is complete.
__device__ SHOAL_DEVICE_APART inline bool post(const World& world, const proxy::Request& request,
                                               bool complete) {
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

/// Posts an atomic and waits for the value before, which stays 0 after a failure.
__device__ SHOAL_DEVICE_APART inline std::uint64_t post_for_value(const World& world,
                                                                  const proxy::Request& request) {
  proxy::Ticket ticket = 0;
  std::uint64_t before = 0;
  proxy::Outcome outcome = ProxyProducer::post(*world.proxy, request, ticket);
  if (outcome == proxy::Outcome::ok)
    outcome = ProxyProducer::wait_value(*world.proxy, ticket, before);
  check_outcome(world, request, outcome);
  return before;
}

/// Waits for what kernels of this PE have posted to the proxy.
__device__ SHOAL_DEVICE_APART inline bool drain_proxy(const World& world) {
  proxy::Request request{};
  request.kind = proxy::Kind::fence;
  const proxy::Ticket ticket = ProxyProducer::quiet_ticket(*world.proxy);
  return check_outcome(world, request, ProxyProducer::wait_all(*world.proxy, ticket));
}

}  // namespace shoal::device::detail
