// SPDX-License-Identifier: Apache-2.0
// Transfers on streams with signals as kernels: puts to a neighbour or to all PEs, and entries of a
// table by index. Their loads of peers' memory bypass the caches of the SM.
//
// Memory order: all threads of a block store, meet at a barrier, then one thread raises the flag of
// the target by a release at system scope. Waits acquire at system scope before the block loads.
#include <algorithm>

#include "device/cuda/start.cuh"
#include "device/cuda/stream_kernels.hpp"
#include "shoal/device/functions.cuh"

namespace shoal::detail::kernels {
namespace {

namespace dd = shoal::device::detail;

/// A block of a transfer moves kThreads * dd::kUnroll * 16 bytes at once.
constexpr unsigned kThreads = 1024;
constexpr unsigned kFetchThreads = 512;
/// Bytes of an entry that a warp has in flight.
constexpr std::size_t kPiece = 32 * dd::kUnroll * sizeof(ulonglong2);
/// 2 MiB in flight: four times the product of bandwidth and latency of a GPU's links.
constexpr std::size_t kMaxFetchBlocks = 64;

__global__ void __launch_bounds__(kThreads)
    transfer_kernel(const __grid_constant__ device::World world,
                    const __grid_constant__ Transfer transfer) {
  bool ready = true;
  if (threadIdx.x == 0 && transfer.ready != nullptr)
    ready = dd::wait_for<std::uint64_t>(world, device::FailureKind::wait_until, transfer.ready,
                                        Compare::greater_equal, transfer.at_least, transfer.setter);
  if (!__syncthreads_and(ready)) return;
  dd::copy<dd::Direction::get>(threadIdx.x, blockDim.x, transfer.target, transfer.source,
                               transfer.bytes);
  __syncthreads();
  if (threadIdx.x == 0) ptx::st_release_sys(transfer.flag, transfer.value);
}

/// One block per PE, from the next PE on, so that not all PEs write to the same one.
__global__ void __launch_bounds__(kThreads)
    put_to_all_kernel(const __grid_constant__ device::World world,
                      const __grid_constant__ device::Team team,
                      const __grid_constant__ PutToAll put) {
  const Pe pe = (world.my_pe + 1 + static_cast<Pe>(blockIdx.x)) % world.n_pes;
  if (!dd::is_member(team, pe)) return;
  std::byte* const base = dd::base_of(world, pe);
  for (int i = 0; i < put.count; ++i) {
    const detail::StreamBlock& block = put.blocks[i];
    std::byte* const target = base + (static_cast<std::byte*>(block.place) - world.heap);
    if (target != block.source && !(block.others_only && pe == world.my_pe))
      dd::copy<dd::Direction::get>(threadIdx.x, blockDim.x, target, block.source, block.bytes);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    auto* const flags = reinterpret_cast<std::uint64_t*>(
        base + (reinterpret_cast<std::byte*>(put.flags) - world.heap));
    ptx::st_release_sys(flags + world.my_pe, put.value);
  }
}

__global__ void wait_for_all_kernel(const __grid_constant__ device::World world,
                                    const __grid_constant__ device::Team team,
                                    const std::uint64_t* flags, std::uint64_t value) {
  for (auto pe = static_cast<Pe>(threadIdx.x); pe < world.n_pes; pe += static_cast<Pe>(blockDim.x))
    if (dd::is_member(team, pe))
      dd::wait_for<std::uint64_t>(world, device::FailureKind::wait_until_all, flags + pe,
                                  Compare::greater_equal, value, pe);
}

/// Reports index number `i` of a fetch.
__device__ void record_bad_index(const device::World& world, std::int64_t i, std::int32_t index,
                                 std::int64_t entries) {
  device::FailureReport report{};
  report.kind = device::FailureKind::bad_index;
  report.awaited = -1;
  report.offset = static_cast<std::uint64_t>(i);
  report.expected = static_cast<std::uint64_t>(entries);
  report.seen = static_cast<std::uint64_t>(static_cast<std::int64_t>(index));
  dd::record(world, report);
}

/// A warp copies a piece of an entry at a time; it loads the index of its next piece before.
__global__ void __launch_bounds__(kFetchThreads)
    fetch_entries_kernel(const __grid_constant__ device::World world,
                         const __grid_constant__ detail::EntryFetch fetch, std::uint32_t pieces) {
  const auto lane = static_cast<unsigned>(threadIdx.x) % 32;
  const std::int64_t items = fetch.count * pieces;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * (kFetchThreads / 32);
  const std::int64_t entries = fetch.entries_per_pe * world.n_pes;
  const std::ptrdiff_t offset = static_cast<const std::byte*>(fetch.part) - world.heap;
  std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * (kFetchThreads / 32) +
                      static_cast<std::int64_t>(threadIdx.x / 32);
  std::int32_t next = item < items ? fetch.indices[item / pieces] : 0;
  for (; item < items; item += step) {
    const std::int32_t index = next;
    if (item + step < items) next = fetch.indices[(item + step) / pieces];
    const std::int64_t i = item / pieces;
    const std::size_t first = static_cast<std::size_t>(item - i * pieces) * kPiece;
    const std::size_t bytes = min(kPiece, fetch.entry_bytes - first);
    auto* const target = static_cast<std::uint8_t*>(fetch.target) +
                         static_cast<std::size_t>(i) * fetch.entry_bytes + first;
    const bool exists = index >= 0 && index < entries;
    if (exists) {
      const std::int64_t pe = index / fetch.entries_per_pe;
      const std::byte* const source =
          dd::base_of(world, static_cast<Pe>(pe)) + offset +
          static_cast<std::size_t>(index - pe * fetch.entries_per_pe) * fetch.entry_bytes + first;
      dd::copy<dd::Direction::get>(lane, 32, target, source, bytes);
    } else {
      for (std::size_t b = lane; b < bytes; b += 32) target[b] = 0;
      if (lane == 0 && first == 0) record_bad_index(world, i, index, entries);
    }
    if (first != 0) continue;
    const std::int64_t row = i / fetch.per_row, column = (i - row * fetch.per_row) * fetch.words;
    for (std::int64_t w = lane; w < fetch.words; w += 32)
      fetch.words_target[row * fetch.row_stride + (column + w) * fetch.step] =
          exists ? fetch.words_table[index * fetch.words + w] : 0;
  }
}

/// Threads of a block that copies so many bytes: one for each 16, in whole warps.
unsigned threads_for(std::size_t bytes) {
  const std::size_t warps = (bytes + 511) / 512;
  return static_cast<unsigned>(std::clamp(warps * 32, std::size_t{32}, std::size_t{kThreads}));
}

}  // namespace

const char* load_transfers() {
  return load_kernels(transfer_kernel, put_to_all_kernel, wait_for_all_kernel,
                      fetch_entries_kernel);
}

const char* transfer(cuda::Stream stream, const device::World& world, const Transfer& transfer) {
  transfer_kernel<<<1, threads_for(transfer.bytes), 0, stream>>>(world, transfer);
  return started();
}

const char* put_to_all(cuda::Stream stream, const device::World& world, const device::Team& team,
                       const PutToAll& put) {
  std::size_t most = 0;
  for (int i = 0; i < put.count; ++i) most = std::max(most, put.blocks[i].bytes);
  put_to_all_kernel<<<static_cast<unsigned>(world.n_pes), threads_for(most), 0, stream>>>(
      world, team, put);
  return started();
}

const char* wait_for_all(cuda::Stream stream, const device::World& world, const device::Team& team,
                         const std::uint64_t* flags, std::uint64_t value) {
  const unsigned threads =
      std::clamp((static_cast<unsigned>(world.n_pes) + 31) / 32 * 32, 32U, kThreads);
  wait_for_all_kernel<<<1, threads, 0, stream>>>(world, team, flags, value);
  return started();
}

const char* fetch_entries(cuda::Stream stream, const device::World& world,
                          const detail::EntryFetch& fetch) {
  const std::size_t pieces = (fetch.entry_bytes + kPiece - 1) / kPiece;
  const std::size_t warps = static_cast<std::size_t>(fetch.count) * pieces;
  const std::size_t blocks = std::clamp((warps + kFetchThreads / 32 - 1) / (kFetchThreads / 32),
                                        std::size_t{1}, kMaxFetchBlocks);
  fetch_entries_kernel<<<static_cast<unsigned>(blocks), kFetchThreads, 0, stream>>>(
      world, fetch, static_cast<std::uint32_t>(pieces));
  return started();
}

}  // namespace shoal::detail::kernels
