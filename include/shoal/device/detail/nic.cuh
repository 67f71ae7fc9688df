// SPDX-License-Identifier: Apache-2.0
// nic.cuh: operations on unreached heaps by the queues of World::gda (gda/path.hpp), for kernels
// that send everything that they send to a PE through its NIC. They wait for nothing that the proxy
// has: a kernel takes one of both for all its puts and signals.
#pragma once

#include <cstddef>
#include <cstdint>

#include <shoal/device/detail/gda/cuda_platform.cuh>
#include <shoal/device/detail/gda/path.hpp>
#include <shoal/device/detail/world.cuh>
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

}  // namespace shoal::device::detail
