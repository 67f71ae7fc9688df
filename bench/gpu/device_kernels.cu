// SPDX-License-Identifier: Apache-2.0
#include "gpu/device_kernels.hpp"

#include "gpu/kernels.hpp"
#include "shoal/device.hpp"

namespace shoal::bench::gpu {
namespace {

/// An instance per operation, so that registers and code of one do not depend on the others.
template <DeviceOperation Op>
__global__ void device_loop_kernel(const __grid_constant__ DeviceLoop loop) {
  using namespace shoal::device;
  const device::World& world = loop.world;
  std::uint64_t* const flag = loop.words + 1;
  for (std::uint32_t i = 0; i < loop.repeats; ++i) {
    const std::uint64_t number = loop.first + i + 1;
    if constexpr (Op == DeviceOperation::put_value)
      put_value(world, reinterpret_cast<std::uint64_t*>(loop.target), number, loop.next);
    if constexpr (Op == DeviceOperation::put_warp)
      put_bytes(Warp{}, world, loop.target, loop.source, loop.bytes, loop.next);
    if constexpr (Op == DeviceOperation::put_block)
      put_bytes(Block{}, world, loop.target, loop.source, loop.bytes, loop.next);
    if constexpr (Op == DeviceOperation::put_signal)
      put_signal(Warp{}, world, loop.target, loop.source, loop.bytes, flag, SignalOp::set, number,
                 loop.next);
    if constexpr (Op == DeviceOperation::atomic_fetch_add)
      atomic_fetch_add(world, loop.words, std::uint64_t{1}, loop.next);
    if constexpr (Op == DeviceOperation::step) {
      signal(Thread{}, world, flag, SignalOp::set, number, loop.next);
      wait_until(Thread{}, world, flag, Compare::greater_equal, number);
    }
    if constexpr (Op == DeviceOperation::barrier) barrier(Block{}, world, loop.team);
  }
  quiet(Thread{});
}

template <DeviceOperation Op>
void launch(cudaStream_t stream, const DeviceLoop& loop, unsigned threads) {
  device_loop_kernel<Op><<<1, threads, 0, stream>>>(loop);
  check(cudaGetLastError(), "launching a loop of device operations");
}

}  // namespace

void run_device_loop(cudaStream_t stream, DeviceOperation operation, const DeviceLoop& loop) {
  constexpr unsigned kThread = 1, kWarp = 32, kBlock = 512;
  switch (operation) {
    case DeviceOperation::put_value:
      return launch<DeviceOperation::put_value>(stream, loop, kThread);
    case DeviceOperation::put_warp:
      return launch<DeviceOperation::put_warp>(stream, loop, kWarp);
    case DeviceOperation::put_block:
      return launch<DeviceOperation::put_block>(stream, loop, kBlock);
    case DeviceOperation::put_signal:
      return launch<DeviceOperation::put_signal>(stream, loop, kWarp);
    case DeviceOperation::atomic_fetch_add:
      return launch<DeviceOperation::atomic_fetch_add>(stream, loop, kThread);
    case DeviceOperation::step:
      return launch<DeviceOperation::step>(stream, loop, kThread);
    case DeviceOperation::barrier:
      return launch<DeviceOperation::barrier>(stream, loop, kBlock);
  }
}

}  // namespace shoal::bench::gpu
