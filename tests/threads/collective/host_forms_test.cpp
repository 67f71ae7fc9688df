// SPDX-License-Identifier: Apache-2.0
// Collectives of the host over heaps in GPU memory, on a driver without a GPU and kernels of the
// test: when they run as kernels, and failures of those.
#include <gtest/gtest.h>

#ifdef SHOAL_WITH_CUDA

#include <atomic>
#include <cstring>
#include <vector>

#include "checks/collective/device_heap.hpp"
#include "checks/world/operations.hpp"
#include "collective/host_forms.hpp"
#include "collective/reduce_kernel.hpp"
#include "shoal/collective.hpp"
#include "support/cuda/fake_cuda.hpp"
#include "support/expect_error.hpp"
#include "support/world/world_local.hpp"

namespace shoal::test {
namespace {

using collective::kernels::Launch;
using collective::kernels::ReduceArguments;

std::atomic<int> started = 0;

/// `address` of this PE's heap in that of PE `index` of the team.
std::byte* on_pe(const Launch& launch, const void* address, std::size_t index) {
  const device::World& world = launch.world;
  const Pe pe = launch.team.pes[index];
  std::byte* const heap = world.bases != nullptr
                              ? world.bases[pe]
                              : world.window + static_cast<std::size_t>(pe) * world.stride;
  return heap + (static_cast<const std::byte*>(address) - world.heap);
}

// Kernels that read the sources of all PEs, which are ready. They do not wait for other PEs: the
// checks meet before they write to their sources again.

const char* broadcast_kernel(const Launch& launch, void* target, const void* source,
                             std::size_t bytes, Pe root) {
  ++started;
  std::memmove(target, on_pe(launch, source, static_cast<std::size_t>(root)), bytes);
  return nullptr;
}
const char* spread_kernel(const Launch& launch, void* target, const void* source, std::size_t bytes,
                          bool same) {
  ++started;
  const auto me = static_cast<std::size_t>(launch.team.my_pe);
  for (std::size_t pe = 0; pe < static_cast<std::size_t>(launch.team.size); ++pe)
    std::memcpy(static_cast<std::byte*>(target) + pe * bytes,
                on_pe(launch, source, pe) + (same ? 0 : me * bytes), bytes);
  return nullptr;
}

const char* loaded(const memory::Device&) {
  return nullptr;
}
const char* not_on_gpu_0(const memory::Device& gpu) {
  return gpu.device == 0 ? "not on this one" : nullptr;
}
const char* does_not_start(const Launch&, void*, const void*, std::size_t, Pe) {
  return "the reason of CUDA";
}

Settings settings() {
  Settings result = world_settings();
  result.heap = "cuda";
  result.symmetric_size = std::size_t{32} << 20;
  return result;
}

/// Does what run_threads does, on `pes` PEs of four GPUs, with `table` in place of the kernels.
void run(const collective::KernelTable& table, const std::function<void(World&)>& body) {
  const FakeCuda fake({.gpus = 4});
  collective::replace_kernel_table(&table);
  started = 0;
  run_threads(4, settings(), body);
}

/// The reduction of every PE in the same order, on a copy: other PEs may still read the target.
const char* reduce_kernel(const Launch& launch, cuda::ElementType type, ReduceOp op,
                          const ReduceArguments& arguments) {
  ++started;
  const DataType dtype = type == cuda::ElementType::bfloat16  ? DataType::bfloat16
                         : type == cuda::ElementType::float32 ? DataType::float32
                                                              : DataType::int64;
  const std::size_t first = arguments.scatter ? static_cast<std::size_t>(launch.team.my_pe) *
                                                    arguments.count * size_of(dtype)
                                              : 0;
  std::vector<const void*> sources;
  for (std::size_t pe = 0; pe < static_cast<std::size_t>(launch.team.size); ++pe)
    sources.push_back(on_pe(launch, arguments.source, pe) + first);
  collective::kernel_of(dtype, op)(arguments.target, sources, arguments.count);
  return nullptr;
}
constexpr collective::KernelTable kTable = {loaded, broadcast_kernel, spread_kernel, reduce_kernel};

TEST(HostForms, MoveByKernels) {
  std::atomic<int> expected = 0;
  run(kTable, [&](World& world) {
    const std::size_t bytes = 5000;
    const auto source = world.heap().allocate<std::uint8_t>(4 * bytes);
    const auto target = world.heap().allocate<std::uint8_t>(4 * bytes);
    std::vector<std::uint8_t> mine(4 * bytes, static_cast<std::uint8_t>(world.my_pe() + 1));
    world.put(source.on(world.my_pe()), mine);
    const auto at = [&](std::size_t i) { return local(world, target, i); };
    broadcast_bytes(world.team(), target.data(), source.data(), bytes, 2);
    EXPECT_EQ(at(bytes - 1), 3);
    all_gather_bytes(world.team(), target.data(), source.data(), bytes);
    EXPECT_EQ(at(3 * bytes + 7), 4);
    all_to_all_bytes(world.team(), target.data(), source.data(), bytes);
    EXPECT_EQ(at(bytes), 2);
    broadcast_bytes(world.team(), target.data(), source.data(), 0, 0);  // starts none
    expected += 3;
    barrier(world.team());
  });
  EXPECT_EQ(started, expected);
}

TEST(HostForms, ReduceByKernels) {
  run(kTable, [](World& world) {
    const auto source = world.heap().allocate<float>(4000);
    const auto target = world.heap().allocate<float>(4000);
    world.put(source.on(world.my_pe()),
              std::vector<float>(4000, static_cast<float>(world.my_pe() + 1)));
    reduce(world.team(), DataType::float32, ReduceOp::sum, target.data(), source.data(), 4000);
    EXPECT_EQ(local(world, target, 3999), 10.0F);
    reduce_scatter(world.team(), DataType::float32, ReduceOp::prod, target.data(), source.data(),
                   1000);
    EXPECT_EQ(local(world, target, 999), 24.0F);
    barrier(world.team());
    // In place, PEs read what others would overwrite: no kernel.
    reduce_scatter(world.team(), DataType::float32, ReduceOp::sum, source.data(), source.data(),
                   1000);
    EXPECT_EQ(local(world, source, 0), 10.0F);
    barrier(world.team());
  });
  EXPECT_EQ(started, 8);
}

// All PEs take the same way: one of them, in both teams of the check, has no kernels.
TEST(HostForms, CopyThroughTheHostWhereOnePeHasNoKernels) {
  constexpr collective::KernelTable table = {not_on_gpu_0, broadcast_kernel, spread_kernel,
                                             reduce_kernel};
  run(table, [](World& world) { check_collectives_on_device_heap(world); });
  EXPECT_EQ(started, 0);
}

TEST(HostForms, ReportThatAKernelDoesNotStart) {
  constexpr collective::KernelTable table = {loaded, does_not_start, spread_kernel, reduce_kernel};
  run(table, [](World& world) {
    const auto memory = world.heap().allocate<std::uint8_t>(2000);
    expect_error(Code::system, "broadcast did not start on GPU", [&] {
      broadcast_bytes(world.team(), memory.data(), memory.data() + 1000, 1000, 0);
    });
    barrier(world.team());
  });
}

}  // namespace
}  // namespace shoal::test

#endif  // SHOAL_WITH_CUDA
