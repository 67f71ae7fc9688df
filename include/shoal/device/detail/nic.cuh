// SPDX-License-Identifier: Apache-2.0
// nic.cuh: operations on unreached heaps by the queues of World::gda (gda/path.hpp): puts from the
// heap or of few bytes, values, and signals that set a word.
//
// The device API has them in kernels that define SHOAL_DEVICE_GDA before they include it. Other
// kernels take the proxy: a kernel has as many registers as its largest call needs, on
// whatever path, and these calls need up to 127.
//
// Those functions return false where they did nothing and the proxy must serve the target, which
// exists. The three that need no such kernels never leave anything to the proxy.
#pragma once

#include <cstddef>
#include <cstdint>

#include <shoal/device/detail/gda/cuda_platform.cuh>
#include <shoal/device/detail/gda/path.hpp>
#include <shoal/device/detail/proxied.cuh>
#include <shoal/device/types.hpp>

namespace shoal::device::detail {

/// All threads of a block use the same queue to a PE.
__device__ inline std::uint32_t spread_of_block() {
  return blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
}

/// The route to [local, local + bytes) of `pe`; nullptr: none.
__device__ inline const gda::Route* nic_route(const World& world, const void* local,
                                              std::size_t bytes, Pe pe) {
  if (world.gda == nullptr) return nullptr;
  return gda::route_to(*world.gda, pe, heap_offset(world, local), bytes);
}

__device__ inline gda::CudaPlatform nic_platform(const World& world) {
  return {world.gda->abort};
}

/// Reports how an operation ended. Returns whether it was ok.
__device__ inline bool check_nic(const World& world, gda::Operation operation,
                                 const gda::Ending& ending, std::size_t offset, std::size_t bytes) {
  if (ending.outcome == gda::Outcome::ok) return true;
  FailureReport report{};
  report.kind = ending.outcome == gda::Outcome::timeout   ? FailureKind::gda_timeout
                : ending.outcome == gda::Outcome::aborted ? FailureKind::gda_aborted
                                                          : FailureKind::gda_failed;
  report.awaited = static_cast<Pe>(ending.queue->peer);
  report.offset = offset;
  report.bytes = bytes;
  report.seen = static_cast<std::uint64_t>(operation) |
                static_cast<std::uint64_t>(ending.queue->sends.number) << 8;
  report.expected = ptx::ld_acquire_gpu(&ending.queue->shared->failure);
  report.waited_ns = world.timeout_ns;
  record(world, report);
  return false;
}

// For kernels that send all they send to a PE through its NIC. They wait for nothing that the proxy
// has: a kernel takes one of both for all its puts and signals.

/// Starts a put of the calling thread, and sets `flag` after it unless it is nullptr. The source
/// must stay as it is until a later signal has arrived, unless `complete`: then both are at the
/// peer on return, or World::timeout_ns have passed. Returns whether it was posted, and complete.
__device__ inline bool post_to_nic(const World& world, const void* target, const void* source,
                                   std::size_t bytes, Pe pe, const std::uint64_t* flag,
                                   std::uint64_t value, bool complete) {
  const gda::Route* const route = nic_route(world, target, bytes, pe);
  if (route == nullptr || !gda::can_send(*world.gda, *route, source, bytes) ||
      (flag != nullptr && nic_route(world, flag, sizeof *flag, pe) == nullptr)) {
    report_unreached(world, target, bytes, pe);
    return false;
  }
  gda::Flag sets;
  if (flag != nullptr) sets = {heap_offset(world, flag), value};
  const gda::Transfer transfer{heap_offset(world, target), source, bytes};
  gda::CudaPlatform platform = nic_platform(world);
  const gda::Flag* const after = flag == nullptr ? nullptr : &sets;
  const gda::Ending ending =
      complete ? gda::put(*world.gda, *route, spread_of_block(), transfer, after, platform,
                          world.timeout_ns)
               : gda::start_put(*world.gda, *route, spread_of_block(), transfer, after, platform);
  return check_nic(world, gda::Operation::put, ending, transfer.offset, bytes);
}

/// Sets a word after all that this block has posted for the PE. Does not wait.
__device__ inline bool signal_by_nic(const World& world, const std::uint64_t* flag,
                                     std::uint64_t value, Pe pe) {
  const gda::Route* const route = nic_route(world, flag, sizeof *flag, pe);
  if (route == nullptr) {
    report_unreached(world, flag, sizeof *flag, pe);
    return false;
  }
  const std::size_t offset = heap_offset(world, flag);
  gda::CudaPlatform platform = nic_platform(world);
  return check_nic(world, gda::Operation::signal,
                   gda::signal(*world.gda, *route, spread_of_block(), {offset, value}, platform),
                   offset, sizeof *flag);
}

/// Starts the puts of all lanes of a warp, except those of 0 bytes, and then sets the flags that
/// are not nullptr, with one doorbell; as post_to_nic() without `complete`. All lanes call, with
/// one PE. Returns the same to all.
__device__ inline bool post_each_to_nic(const World& world, const void* target, const void* source,
                                        std::size_t bytes, Pe pe, const std::uint64_t* flag,
                                        std::uint64_t value) {
  const gda::Warp warp;
  const gda::Route* route = world.gda == nullptr ? nullptr : &world.gda->by_pe[pe];
  const bool fits = (bytes == 0 || (nic_route(world, target, bytes, pe) != nullptr &&
                                    gda::can_send(*world.gda, *route, source, bytes))) &&
                    (flag == nullptr || nic_route(world, flag, sizeof *flag, pe) != nullptr);
  std::uint32_t misfits = 0;
  warp.count_before(!fits, misfits);
  if (misfits != 0) {
    if (!fits) report_unreached(world, target, bytes, pe);
    return false;
  }
  if (route == nullptr || route->n_queues == 0) return true;  // nothing to send
  const gda::Queue& queue = route->queues[spread_of_block() % route->n_queues];
  std::uint32_t others = 0;  // puts that take more than one request
  warp.count_before(bytes > queue.largest_message || queue.sends.blocks <= 2 * warp.size(), others);
  if (others != 0) {
    bool ok = bytes == 0 || post_to_nic(world, target, source, bytes, pe, nullptr, 0, false);
    __syncwarp();
    ok = (flag == nullptr || signal_by_nic(world, flag, value, pe)) && ok;
    warp.count_before(!ok, others);
    return others == 0;
  }
  const std::size_t offset = bytes == 0 ? 0 : heap_offset(world, target);
  gda::Flag sets;
  if (flag != nullptr) sets = {heap_offset(world, flag), value};
  gda::CudaPlatform platform = nic_platform(world);
  const gda::Ending ending =
      gda::start_each(warp, *world.gda, *route, spread_of_block(), {offset, source, bytes},
                      flag == nullptr ? nullptr : &sets, platform);
  return ending.outcome == gda::Outcome::ok ||
         check_nic(world, gda::Operation::put, ending, offset, bytes);
}

/// Waits for all that kernels of this PE have posted, for all PEs.
__device__ inline bool wait_for_nic(const World& world) {
  gda::CudaPlatform platform = nic_platform(world);
  return check_nic(world, gda::Operation::order, gda::drain_all(*world.gda, platform), 0, 0);
}

#ifdef SHOAL_DEVICE_GDA

__device__ inline bool uses_nic(const World& world) {
  return world.gda != nullptr;
}

/// Waits for what this block has posted for `pe`; -1: for what all kernels have, for all PEs.
__device__ __noinline__ inline bool drain_nic(const World& world, Pe pe) {
  if (world.gda == nullptr) return true;
  const gda::Routes& routes = *world.gda;
  gda::CudaPlatform platform = nic_platform(world);
  const gda::Ending ending =
      pe < 0 ? gda::drain_all(routes, platform)
             : gda::drain(routes, routes.by_pe[pe], spread_of_block(), platform);
  return check_nic(world, gda::Operation::order, ending, 0, 0);
}

/// `flag`: nullptr, or a word to set after the data.
__device__ inline bool nic_put(const World& world, const void* target, const void* source,
                               std::size_t bytes, Pe pe, const std::uint64_t* flag,
                               std::uint64_t value) {
  const gda::Route* const route = nic_route(world, target, bytes, pe);
  if (route == nullptr || !gda::can_send(*world.gda, *route, source, bytes)) return false;
  gda::Flag sets;
  if (flag != nullptr) {
    if (nic_route(world, flag, sizeof *flag, pe) == nullptr) return false;
    if (!drain_proxy(world)) return true;
    sets = {heap_offset(world, flag), value};
  }
  const std::size_t offset = heap_offset(world, target);
  gda::CudaPlatform platform = nic_platform(world);
  check_nic(world, gda::Operation::put,
            gda::put(*world.gda, *route, spread_of_block(), {offset, source, bytes},
                     flag == nullptr ? nullptr : &sets, platform),
            offset, bytes);
  return true;
}

__device__ inline bool nic_put_strided(const World& world, const void* target, const void* source,
                                       std::size_t bytes, Pe pe, std::size_t element,
                                       const gda::Strides& strides) {
  const gda::Route* const route = nic_route(world, target, bytes, pe);
  if (route == nullptr || strides.count == 0) return false;
  const std::size_t span = (strides.count - 1) * strides.source + element;
  if (element > gda::kInlineBytes && !gda::can_send(*world.gda, *route, source, span)) return false;
  const std::size_t offset = heap_offset(world, target);
  gda::CudaPlatform platform = nic_platform(world);
  check_nic(world, gda::Operation::put,
            gda::put_strided(*world.gda, *route, spread_of_block(), {offset, source, element},
                             strides, platform),
            offset, bytes);
  return true;
}

__device__ inline bool nic_put_value(const World& world, const void* target, std::uint64_t value,
                                     unsigned width, Pe pe) {
  const gda::Route* const route = nic_route(world, target, width, pe);
  if (route == nullptr) return false;
  const std::size_t offset = heap_offset(world, target);
  gda::CudaPlatform platform = nic_platform(world);
  check_nic(world, gda::Operation::put_value,
            gda::put_value(*world.gda, *route, spread_of_block(), offset, value, width, platform),
            offset, width);
  return true;
}

/// Sets the word, after what the proxy has. `ok`: whether it was posted.
__device__ inline bool nic_signal(const World& world, const std::uint64_t* flag,
                                  std::uint64_t value, Pe pe, bool& ok) {
  const gda::Route* const route = nic_route(world, flag, sizeof *flag, pe);
  if (route == nullptr) return false;
  ok = drain_proxy(world);
  if (!ok) return true;
  const std::size_t offset = heap_offset(world, flag);
  gda::CudaPlatform platform = nic_platform(world);
  ok = check_nic(world, gda::Operation::signal,
                 gda::signal(*world.gda, *route, spread_of_block(), {offset, value}, platform),
                 offset, sizeof *flag);
  return true;
}

#else

__device__ inline bool uses_nic(const World&) {
  return false;
}
__device__ inline bool drain_nic(const World&, Pe) {
  return true;
}
__device__ inline bool nic_put(const World&, const void*, const void*, std::size_t, Pe,
                               const std::uint64_t*, std::uint64_t) {
  return false;
}
__device__ inline bool nic_put_strided(const World&, const void*, const void*, std::size_t, Pe,
                                       std::size_t, const gda::Strides&) {
  return false;
}
__device__ inline bool nic_put_value(const World&, const void*, std::uint64_t, unsigned, Pe) {
  return false;
}
__device__ inline bool nic_signal(const World&, const std::uint64_t*, std::uint64_t, Pe, bool&) {
  return false;
}

#endif

}  // namespace shoal::device::detail
