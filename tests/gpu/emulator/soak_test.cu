// SPDX-License-Identifier: Apache-2.0
// 10^5 rows through the NIC that is a kernel, with random sizes, delays and orders, each of which
// the receiver looks at byte by byte. Takes seconds; a deadline ends it.
//
// A block of each queue pair puts 31 rows with one doorbell and then a signal; a block at the other
// end waits for the signal, compares the rows and answers. With slices, the NIC's kernel ends and
// goes on meanwhile.
#include "gpu/emulator/rig.hpp"
#include "shoal/device/detail/gda/cuda_platform.cuh"
#include "shoal/device/detail/gda/operations.hpp"

namespace shoal::test {
namespace {

using emulator::Ordering;

constexpr std::uint64_t kLimit = 40'000'000'000;  // nanoseconds
constexpr unsigned kRows = 31, kLaps = 810, kPairs = 4;
static_assert(kRows * kLaps * kPairs >= 100'000);
/// Of a queue pair: rows at their largest distance, then the word of signals and answers.
constexpr std::uint64_t kRowRoom = 32768, kArea = kRowRoom * 32;

__device__ std::uint32_t mixed(std::uint32_t x) {
  x = (x ^ x >> 16) * 0x7feb352dU;
  x = (x ^ x >> 15) * 0x846ca68bU;
  return x ^ x >> 16;
}
/// Bytes of a row: mostly small, some that workers copy in several jobs. A multiple of 4.
__device__ std::uint32_t row_bytes(unsigned pair, unsigned lap, unsigned row) {
  const std::uint32_t x = mixed(pair << 24 ^ lap << 8 ^ row);
  return 4 + 4 * (x % 8 == 0 ? x / 8 % 8000 : x / 8 % 200);
}
__device__ std::uint32_t word_of(unsigned pair, unsigned lap, unsigned row, unsigned i) {
  return mixed(i * 0x9e3779b9U ^ mixed(pair << 24 ^ lap << 8 ^ row));
}
__device__ void delay(unsigned pair, unsigned lap, unsigned salt) {
  const std::uint32_t x = mixed(pair << 20 ^ lap * 7 ^ salt);
  if (x % 4 == 0) __nanosleep(x / 4 % 20000);
}

struct SoakClient {
  gda::Queue queue;
  std::byte* local;
  mlx5::Memory here, there;
};

__global__ void produce_rows(const SoakClient* clients, std::uint64_t limit, unsigned* failed) {
  const unsigned pair = blockIdx.x;
  const SoakClient client = clients[pair];
  const std::uint64_t area = pair * kArea, word = area + kRowRoom * kRows;
  gda::CudaPlatform platform{nullptr, true};
  const std::uint64_t deadline = platform.now() + limit;
  const auto* const answer = reinterpret_cast<std::uint64_t*>(client.local + word);
  for (unsigned lap = 1; lap <= kLaps; ++lap) {
    for (unsigned row = threadIdx.x / 32; row < kRows; row += blockDim.x / 32) {
      auto* const to = reinterpret_cast<std::uint32_t*>(client.local + area + row * kRowRoom);
      for (unsigned i = threadIdx.x % 32; i < row_bytes(pair, lap, row) / 4; i += 32)
        to[i] = word_of(pair, lap, row, i);
    }
    __syncthreads();
    if (threadIdx.x < 32) {
      delay(pair, lap, 1);
      const unsigned row = threadIdx.x;
      const std::uint64_t at = area + row * kRowRoom;
      std::uint64_t ticket = 0;
      gda::Outcome outcome =
          gda::post_each(gda::Warp{}, client.queue,
                         {.source = {nullptr, {client.here.address + at, client.here.key}},
                          .remote = {client.there.address + at, client.there.key},
                          .bytes = row < kRows ? row_bytes(pair, lap, row) : 0},
                         deadline, platform, ticket);
      if (threadIdx.x == 0) {
        if (outcome == gda::Outcome::ok)
          outcome = gda::signal(
              client.queue,
              {{client.there.address + word, client.there.key}, lap, gda::SignalKind::set},
              deadline, platform, ticket);
        while (outcome == gda::Outcome::ok && device::ptx::ld_acquire_sys(answer) < lap)
          if (platform.now() > deadline) outcome = gda::Outcome::timeout;
        if (outcome != gda::Outcome::ok) atomicAdd(failed, 1U << 16);
      }
    }
    if (__syncthreads_or(*static_cast<volatile unsigned*>(failed) != 0)) return;
  }
}

__global__ void compare_rows(std::byte* memory, SoakClient* clients, std::uint64_t limit,
                             unsigned* failed) {
  const unsigned pair = blockIdx.x;
  const std::uint64_t area = pair * kArea, word = area + kRowRoom * kRows;
  gda::CudaPlatform platform{nullptr, true};
  const std::uint64_t deadline = platform.now() + limit;
  const auto* const signal = reinterpret_cast<std::uint64_t*>(memory + word);
  for (unsigned lap = 1; lap <= kLaps; ++lap) {
    if (threadIdx.x == 0)
      while (device::ptx::ld_acquire_sys(signal) < lap &&
             *static_cast<volatile unsigned*>(failed) == 0)
        if (platform.now() > deadline) atomicAdd(failed, 1U << 16);
    __syncthreads();
    unsigned wrong = 0;
    for (unsigned row = threadIdx.x / 32; row < kRows; row += blockDim.x / 32) {
      const auto* const from =
          reinterpret_cast<volatile std::uint32_t*>(memory + area + row * kRowRoom);
      for (unsigned i = threadIdx.x % 32; i < row_bytes(pair, lap, row) / 4; i += 32)
        wrong += from[i] != word_of(pair, lap, row, i) ? 1 : 0;
    }
    if (wrong != 0) atomicAdd(failed, 1);
    if (__syncthreads_or(*static_cast<volatile unsigned*>(failed) != 0)) return;
    if (threadIdx.x == 0) {
      delay(pair, lap, 2);
      device::ptx::st_release_sys(reinterpret_cast<std::uint64_t*>(clients[pair].local + word),
                                  std::uint64_t{lap});
    }
  }
}

class GpuNicSoak : public ::testing::TestWithParam<std::tuple<Ordering, int>> {};

TEST_P(GpuNicSoak, NoRowIsWrong) {
  SHOAL_NEEDS_GPU();
  int gpus = 0;
  check_cuda(cudaGetDeviceCount(&gpus));
  const int there = gpus > 1 ? 1 : 0;
  NicShape shape{
      .ordering = std::get<0>(GetParam()),
      .device_there = there,
      .bytes = kArea * kPairs,
      .options = {.delay = std::chrono::microseconds(2), .reorder = std::chrono::microseconds(15)},
      .pairs = kPairs};
  shape.options.seed = 1 + static_cast<std::uint64_t>(std::get<1>(GetParam()));
  if (std::get<1>(GetParam()) == 1) shape.options.slice = std::chrono::milliseconds(1);
  const BoundedStream from(0), to(there);
  void* pinned = nullptr;
  check_cuda(cudaHostAlloc(&pinned, 4096, cudaHostAllocMapped | cudaHostAllocPortable));
  const std::shared_ptr<void> owner(pinned, [](void* memory) { cudaFreeHost(memory); });
  auto* const failed = new (pinned) unsigned{0};
  auto* const clients = reinterpret_cast<SoakClient*>(static_cast<std::byte*>(pinned) + 64);
  NicRig rig(shape);
  for (std::size_t i = 0; i < kPairs; ++i)
    clients[i] = {rig.queue(i), rig.a.memory.at(), rig.here(0), rig.at_peer(0)};
  rig.start();
  {
    const emu::OnDevice on(there);
    compare_rows<<<kPairs, 256, 0, to.get()>>>(rig.b.memory.at(), clients, kLimit, failed);
  }
  produce_rows<<<kPairs, 256, 0, from.get()>>>(clients, kLimit, failed);
  EXPECT_EQ(from.wait(std::chrono::seconds(50)), cudaSuccess);
  EXPECT_EQ(to.wait(std::chrono::seconds(50)), cudaSuccess);
  EXPECT_EQ(*static_cast<volatile unsigned*>(failed), 0u)
      << "65536 for each wait that ended, 1 for each thread with a wrong row";
  rig.stop();
  for (std::size_t i = 0; i < kPairs; ++i)
    EXPECT_GE(rig.a.nic.report(rig.a.pairs[i]).requests, std::uint64_t{kRows} * kLaps);
}
std::string name_of(const testing::TestParamInfo<std::tuple<Ordering, int>>& made) {
  constexpr const char* kNames[] = {"strict", "adaptive", "unordered"};
  return std::string(kNames[static_cast<int>(std::get<0>(made.param))]) +
         (std::get<1>(made.param) == 1 ? "InSlices" : "");
}
INSTANTIATE_TEST_SUITE_P(Tiers, GpuNicSoak,
                         ::testing::Combine(::testing::Values(Ordering::strict, Ordering::adaptive,
                                                              Ordering::unordered),
                                            ::testing::Values(0, 1)),
                         name_of);

}  // namespace
}  // namespace shoal::test
