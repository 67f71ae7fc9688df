// SPDX-License-Identifier: Apache-2.0
// Kernels that put, signal and wait between emulated nodes by World::gda: they build the requests
// of an emulated NIC, which serves heaps in pinned host memory. Additions go to the proxy.
#define SHOAL_DEVICE_GDA

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "gpu/device/world.hpp"
#include "shoal/collective.hpp"
#include "shoal/device.hpp"
#include "support/expect_error.hpp"
#include "support/world/verbs.hpp"

namespace shoal::test {
namespace {

using device::Block;
using device::Thread;
using device::Warp;

constexpr int kRounds = 30, kWords = 1000, kStrided = 20, kBlocks = 3, kThreads = 128;

/// Memory of one block.
struct Area {
  std::uint64_t data[kWords];
  std::uint64_t strided[2 * kStrided];
  std::uint64_t values[kThreads];
  std::uint64_t flags[4];  ///< 0: data are there; 1: data were read; 2: additions; 3: by a warp
};

/// Every round: values, a strided put and a put with a signal to the right; check what the left has
/// put; add at the right, and add to the flag that says so.
__global__ void exchange(const __grid_constant__ device::World world, Area* areas, Area* sources,
                         unsigned long long* faults) {
  Area& area = areas[blockIdx.x];
  Area& source = sources[blockIdx.x];
  const Pe to = (world.my_pe + 1) % world.n_pes,
           from = (world.my_pe + world.n_pes - 1) % world.n_pes;
  const auto expect = [&](const std::uint64_t* word, std::uint64_t value) {
    if (device::get_value(world, word, world.my_pe) != value) atomicAdd(faults, 1ULL);
  };
  for (std::uint64_t round = 1; round <= kRounds; ++round) {
    for (int i = threadIdx.x; i < kWords; i += blockDim.x)
      source.data[i] = round * kWords + i + world.my_pe;
    for (int i = threadIdx.x; i < kStrided; i += blockDim.x) source.strided[i] = round + i;
    device::put_value(world, area.values + threadIdx.x, round + threadIdx.x, to);
    device::put_strided(Block{}, world, area.strided, 2, source.strided, 1, kStrided, to);
    device::put_signal(Block{}, world, area.data, source.data, kWords, area.flags, SignalOp::set,
                       round, to);
    if (!device::wait_until(Block{}, world, area.flags, Compare::equal, round)) return;
    for (int i = threadIdx.x; i < kWords; i += blockDim.x)
      expect(area.data + i, round * kWords + i + from);
    for (int i = threadIdx.x; i < kStrided; i += blockDim.x)
      expect(area.strided + 2 * i, round + i);
    expect(area.values + threadIdx.x, round + threadIdx.x);
    if (threadIdx.x == 0) device::atomic_fetch_add(world, area.flags + 2, std::uint64_t{1}, to);
    device::signal(Block{}, world, area.flags + 1, SignalOp::add, 1, from);
    if (!device::wait_until(Block{}, world, area.flags + 1, Compare::greater_equal, round)) return;
  }
  if (threadIdx.x / 32 == 1) device::signal(Warp{}, world, area.flags + 3, SignalOp::set, 9, to);
  device::quiet(Block{}, world);
}

__global__ void barriers(const __grid_constant__ device::World world, device::Team team,
                         std::uint64_t* words, unsigned long long* faults) {
  for (std::uint64_t round = 1; round <= kRounds; ++round) {
    for (Pe pe = threadIdx.x; pe < world.n_pes; pe += blockDim.x)
      if (pe != world.my_pe) device::put_value(world, words + world.my_pe, round, pe);
    if (!device::barrier(Block{}, world, team)) return;
    for (Pe pe = threadIdx.x; pe < world.n_pes; pe += blockDim.x)
      if (pe != world.my_pe && device::get_value(world, words + pe, world.my_pe) < round)
        atomicAdd(faults, 1ULL);
  }
}

void check_exchange(World& world, const TestStream& stream) {
  auto areas = world.heap().allocate<Area>(kBlocks);
  auto sources = world.heap().allocate<Area>(kBlocks);
  auto words = world.heap().allocate<std::uint64_t>(static_cast<std::size_t>(world.n_pes()));
  auto faults = world.heap().allocate<unsigned long long>(1);
  ASSERT_NE(cuda::device_world(world).gda, nullptr) << world.describe_transport(1);
  barrier(world.team());
  device::launch_collective(world, stream, {.grid = kBlocks, .block = kThreads}, exchange,
                            cuda::device_world(world), areas.data(), sources.data(), faults.data());
  stream.synchronize();
  cuda::check_failures(world);
  barrier(world.team());
  for (const Area& area : fetch(world, areas)) {
    EXPECT_EQ(area.flags[2], std::uint64_t{kRounds});
    EXPECT_EQ(area.flags[3], 9U);
  }
  device::launch_collective(world, stream, {.grid = 1, .block = kThreads}, barriers,
                            cuda::device_world(world), cuda::device_team(world.team()),
                            words.data(), faults.data());
  stream.synchronize();
  cuda::check_failures(world);
  EXPECT_EQ(fetch(world, faults)[0], 0U);
  barrier(world.team());
}

class DeviceGdaOnGpu : public WithVerbs, public testing::WithParamInterface<std::string> {};

Settings gda_settings() {
  Settings settings = cuda_settings();
  settings.cuda_handle = "pinned";
  settings.symmetric_size = std::size_t{16} << 20;
  settings.node_size = 1;
  settings.transport_inside = "automatic";
  add_kernel_queues(settings);
  return settings;
}

TEST_P(DeviceGdaOnGpu, ExchangesInternode) {
  SHOAL_NEEDS_GPU();
  emulate("ORDERING", GetParam());
  run_gpu_pes(2, check_exchange, gda_settings());
}

__global__ void put_one(const __grid_constant__ device::World world, std::uint64_t* word) {
  device::put(Thread{}, world, word, word, 1, 1 - world.my_pe);
}

TEST_P(DeviceGdaOnGpu, ReportsTheQueueThatEnded) {
  SHOAL_NEEDS_GPU();
  emulate("ORDERING", GetParam());
  run_gpu_pes(
      2,
      [](World& world, const TestStream& stream) {
        auto word = world.heap().allocate<std::uint64_t>(1);
        device::World view = cuda::device_world(world);
        // The same queues, with a key that the peer does not know.
        device::gda::Routes routes{};
        std::vector<device::gda::Route> by_pe(2);
        cudaMemcpy(&routes, view.gda, sizeof routes, cudaMemcpyDefault);
        cudaMemcpy(by_pe.data(), routes.by_pe, 2 * sizeof by_pe[0], cudaMemcpyDefault);
        for (auto& route : by_pe) route.heap.key ^= 0x5500;
        std::byte* copy = nullptr;
        ASSERT_EQ(cudaMalloc(&copy, sizeof routes + 2 * sizeof by_pe[0]), cudaSuccess);
        routes.by_pe = reinterpret_cast<const device::gda::Route*>(copy + sizeof routes);
        cudaMemcpy(copy, &routes, sizeof routes, cudaMemcpyDefault);
        cudaMemcpy(copy + sizeof routes, by_pe.data(), 2 * sizeof by_pe[0], cudaMemcpyDefault);
        view.gda = reinterpret_cast<const device::gda::Routes*>(copy);
        barrier(world.team());
        if (world.my_pe() == 0) {
          put_one<<<1, 1, 0, stream>>>(view, word.data());
          stream.synchronize();
          expect_error(Code::peer_failed, "by queue pair", [&] { cuda::check_failures(world); });
        }
        barrier(world.team());
        cudaFree(copy);
      },
      gda_settings());
}

INSTANTIATE_TEST_SUITE_P(Tiers, DeviceGdaOnGpu, testing::Values("strict", "adaptive", "unordered"),
                         [](const auto& tier) { return tier.param; });

}  // namespace
}  // namespace shoal::test
