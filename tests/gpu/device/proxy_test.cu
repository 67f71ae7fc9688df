// SPDX-License-Identifier: Apache-2.0
// Kernels that put, signal, add and wait between emulated nodes: the proxy executes the requests,
// over ofi TCP where libfabric is there.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "gpu/device/world.hpp"
#include "shoal/collective.hpp"
#include "shoal/device.hpp"
#include "support/expect_error.hpp"

namespace shoal::test {
namespace {

using device::Block;
using device::Thread;
using device::Warp;

constexpr int kRounds = 50, kWords = 1000;

struct Arrays {
  std::uint64_t* data;    ///< kWords, written by the left neighbour
  std::uint64_t* flags;   ///< 0: data are there; 1: data were read; 2: additions
  std::uint64_t* source;  ///< kWords of this PE
  std::uint64_t* faults;  ///< of this PE: words that were wrong, results that were wrong
};

/// One block of each PE. Every round: put with signal to the right, check what the left has put.
__global__ void exchange(const __grid_constant__ device::World world, Arrays arrays) {
  const Pe to = (world.my_pe + 1) % world.n_pes,
           from = (world.my_pe + world.n_pes - 1) % world.n_pes;
  for (std::uint64_t round = 1; round <= kRounds; ++round) {
    for (int i = threadIdx.x; i < kWords; i += blockDim.x)
      arrays.source[i] = round * kWords + i + world.my_pe;
    device::put_signal(Block{}, world, arrays.data, arrays.source, kWords, arrays.flags,
                       SignalOp::set, round, to);
    if (!device::wait_until(Block{}, world, arrays.flags, Compare::equal, round)) return;
    for (int i = threadIdx.x; i < kWords; i += blockDim.x)
      if (device::get_value(world, arrays.data + i, world.my_pe) != round * kWords + i + from)
        atomicAdd(reinterpret_cast<unsigned long long*>(arrays.faults), 1ULL);
    if (threadIdx.x == 0) device::atomic_fetch_add(world, arrays.flags + 2, std::uint64_t{1}, to);
    device::signal(Block{}, world, arrays.flags + 1, SignalOp::add, 1, from);
    if (!device::wait_until(Block{}, world, arrays.flags + 1, Compare::greater_equal, round))
      return;
  }
  device::put_value(world, arrays.data + threadIdx.x, std::uint64_t{threadIdx.x}, to);
  device::quiet(Block{}, world);
}

void check_exchange(World& world, const TestStream& stream) {
  auto data = world.heap().allocate<std::uint64_t>(kWords);
  auto flags = world.heap().allocate<std::uint64_t>(3);
  auto source = world.heap().allocate<std::uint64_t>(kWords);
  auto faults = world.heap().allocate<std::uint64_t>(2);
  ASSERT_NE(cuda::device_world(world).proxy, nullptr);
  barrier(world.team());
  constexpr int kThreads = 128;
  device::launch_collective(world, stream, {.grid = 1, .block = kThreads}, exchange,
                            cuda::device_world(world),
                            Arrays{data.data(), flags.data(), source.data(), faults.data()});
  stream.synchronize();
  cuda::check_failures(world);
  barrier(world.team());
  EXPECT_EQ(fetch(world, faults)[0], 0U);
  EXPECT_EQ(fetch(world, flags)[2], std::uint64_t{kRounds});
  const auto got = fetch(world, data);
  for (std::uint64_t i = 0; i < kThreads; ++i) EXPECT_EQ(got[i], i);
  barrier(world.team());
}

/// One block of each PE reads what the next PE has: bytes, words and every third word.
__global__ void read_right(const __grid_constant__ device::World world, std::uint64_t* theirs,
                           std::uint64_t* copy, std::uint64_t* thirds, std::uint64_t* values) {
  const Pe from = (world.my_pe + 1) % world.n_pes;
  device::get(Block{}, world, copy, theirs, kWords, from);
  device::get_strided(Block{}, world, thirds, 1, theirs, 3, kWords / 3, from);
  if (threadIdx.x < 8) values[threadIdx.x] = device::get_value(world, theirs + threadIdx.x, from);
}

void check_gets(World& world, const TestStream& stream) {
  auto mine = world.heap().allocate<std::uint64_t>(kWords);
  auto copy = world.heap().allocate<std::uint64_t>(kWords);
  auto thirds = world.heap().allocate<std::uint64_t>(kWords / 3);
  auto values = world.heap().allocate<std::uint64_t>(8);
  const auto words_of = [](Pe pe) {
    std::vector<std::uint64_t> words(kWords);
    for (std::size_t i = 0; i < kWords; ++i) words[i] = 1000 * static_cast<std::uint64_t>(pe) + i;
    return words;
  };
  fill(world, mine, words_of(world.my_pe()));
  barrier(world.team());
  read_right<<<1, 64, 0, stream>>>(cuda::device_world(world), mine.data(), copy.data(),
                                   thirds.data(), values.data());
  stream.synchronize();
  cuda::check_failures(world);
  const auto expected = words_of((world.my_pe() + 1) % world.n_pes());
  EXPECT_EQ(fetch(world, copy), expected);
  const auto strided = fetch(world, thirds), single = fetch(world, values);
  for (std::size_t i = 0; i < kWords / 3; ++i) EXPECT_EQ(strided[i], expected[3 * i]);
  for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(single[i], expected[i]);
  barrier(world.team());
}

Settings proxy_settings() {
  Settings settings = cuda_settings();
  settings.node_size = 1;
#ifdef SHOAL_WITH_OFI
  settings.transport_inside = "ofi";
  settings.ofi_provider = "tcp;ofi_rxm";
#endif
  return settings;
}

TEST(DeviceProxyOnGpu, ExchangesInternode) {
  SHOAL_NEEDS_GPU();
  run_gpu_pes(2, check_exchange, proxy_settings());
}

TEST(DeviceProxyOnGpu, ReadsFromOtherNodes) {
  SHOAL_NEEDS_GPU();
  run_gpu_pes(2, check_gets, proxy_settings());
}

TEST(DeviceProxyOnGpu, WorksWithASmallRing) {
  SHOAL_NEEDS_GPU();
  Settings settings = proxy_settings();
  settings.proxy_slots = 3;
  run_gpu_pes(2, check_exchange, settings);
}

__global__ void put_outside(const __grid_constant__ device::World world, std::uint64_t* words) {
  device::put_value(world, words + world.heap_bytes, std::uint64_t{1}, 1 - world.my_pe);
}

TEST(DeviceProxyOnGpu, ReportsBadAddresses) {
  SHOAL_NEEDS_GPU();
  run_gpu_pes(
      2,
      [](World& world, const TestStream& stream) {
        auto words = world.heap().allocate<std::uint64_t>(1);
        put_outside<<<1, 1, 0, stream>>>(cuda::device_world(world), words.data());
        stream.synchronize();
        expect_error(Code::invalid_argument, "nothing was done",
                     [&] { cuda::check_failures(world); });
        barrier(world.team());
      },
      proxy_settings());
}

}  // namespace
}  // namespace shoal::test
