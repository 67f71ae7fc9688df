// SPDX-License-Identifier: Apache-2.0
// Kernels with shared send queues (transport/gda/) on the NIC that is a kernel (emulator/gpu/): on
// one GPU, and between two where there are two.
#include "gpu/emulator/rig.hpp"
#include "shoal/device/detail/gda/cuda_platform.cuh"
#include "shoal/device/detail/gda/operations.hpp"

namespace shoal::test {
namespace {

using emulator::Ordering;

constexpr std::uint64_t kLimit = 20'000'000'000;  // nanoseconds
constexpr Ordering kOrderings[] = {Ordering::strict, Ordering::adaptive, Ordering::unordered};
constexpr const char* kNames[] = {"strict", "adaptive", "unordered"};

int gpus() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

/// What a kernel uses of a queue and of both memories.
struct Client {
  gda::Queue queue;
  std::byte* local;
  mlx5::Memory here, there;  ///< the first bytes of both memories

  __device__ mlx5::Memory at_peer(std::uint64_t offset) const {
    return {there.address + offset, there.key};
  }
  __device__ mlx5::Memory at(std::uint64_t offset) const {
    return {here.address + offset, here.key};
  }
  __device__ gda::Source from(std::uint64_t offset, bool readable) const {
    return {readable ? local + offset : nullptr, at(offset)};
  }
  __device__ gda::Result result(std::uint64_t offset) const {
    return {reinterpret_cast<std::uint64_t*>(local + offset), at(offset)};
  }
};

Client client_of(const NicRig& rig, std::size_t i = 0) {
  return {rig.queue(i), rig.a.memory.at(), rig.here(0), rig.at_peer(0)};
}

/// Words 0 and 1 of the peer count signals and fetch-and-adds; each warp has 64 bytes from 128 on,
/// and a block of kBlock bytes from kBlocks on, of which it sends kBlockBytes.
constexpr std::uint64_t kBlocks = 32768, kBlock = 32768, kBlockBytes = 20004;

/// Each warp does `operations` operations, by its first lane.
__global__ void run_mix(Client client, int operations, std::uint64_t limit, unsigned* failed) {
  gda::CudaPlatform platform{nullptr, true};
  const unsigned warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (threadIdx.x % 32 != 0) return;
  const std::uint64_t deadline = platform.now() + limit;
  const std::uint64_t words = 128 + 64 * warp, block = kBlocks + kBlock * warp;
  auto* const word = reinterpret_cast<volatile std::uint64_t*>(client.local + words);
  std::uint64_t ticket = 0, before = 0;
  unsigned bad = 0;
  for (std::uint64_t i = 1; i <= operations; ++i) {
    gda::Outcome outcome = gda::Outcome::ok;
    *word = i;  // its last reader was waited for
    if (i % 4 == 0)
      outcome = gda::fetch_add(client.queue, client.at_peer(8), 1, client.result(words + 8),
                               deadline, platform, before);
    else if (i % 4 == 1)
      outcome = gda::put_signal(client.queue, client.from(block, false), client.at_peer(block),
                                kBlockBytes, {client.at_peer(0), 1}, deadline, platform, ticket);
    else
      outcome = gda::put(client.queue, client.from(words, i % 4 == 2), client.at_peer(words), 8,
                         deadline, platform, ticket);
    if (outcome == gda::Outcome::ok && i % 4 >= 2)
      outcome = gda::wait(client.queue, ticket, deadline, platform);
    bad += outcome != gda::Outcome::ok ? 1 : 0;
  }
  bad += gda::quiet(client.queue, deadline, platform) != gda::Outcome::ok ? 1 : 0;
  if (bad != 0) atomicAdd(failed, bad);
}

/// Puts of 8 bytes by all lanes of a warp at once.
__global__ void run_puts(Client client, int laps, std::uint64_t limit, unsigned* failed) {
  gda::CudaPlatform platform{nullptr, true};
  const gda::Warp warp;
  const std::uint64_t deadline = platform.now() + limit;
  std::uint64_t ticket = 0;
  unsigned bad = 0;
  for (int lap = 0; lap < laps; ++lap) {
    const std::uint64_t at = 8 * ((lap * 32 + threadIdx.x) % 4096);
    const gda::Outcome outcome =
        gda::post_each(warp, client.queue,
                       {.source = client.from(at, true), .remote = client.at_peer(at), .bytes = 8},
                       deadline, platform, ticket);
    bad += outcome != gda::Outcome::ok ? 1 : 0;
  }
  if (warp.rank() == 0)
    bad += gda::quiet(client.queue, deadline, platform) != gda::Outcome::ok ? 1 : 0;
  if (bad != 0) atomicAdd(failed, bad);
}

constexpr std::uint64_t kDataBytes = 40000, kSignal = 65536, kAnswer = 65536 + 64;

/// One block: fills the data, puts them with a signal, and waits for an answer, lap by lap.
__global__ void produce(Client client, int laps, std::uint64_t limit, unsigned* failed) {
  gda::CudaPlatform platform{nullptr, true};
  const std::uint64_t deadline = platform.now() + limit;
  auto* const data = reinterpret_cast<std::uint64_t*>(client.local);
  const auto* const answer = reinterpret_cast<std::uint64_t*>(client.local + kAnswer);
  for (std::uint64_t lap = 1; lap <= laps; ++lap) {
    for (unsigned i = threadIdx.x; i < kDataBytes / 8; i += blockDim.x) data[i] = lap;
    __syncthreads();
    if (threadIdx.x == 0) {
      std::uint64_t ticket = 0;
      gda::Outcome outcome =
          gda::put_signal(client.queue, client.from(0, false), client.at_peer(0), kDataBytes,
                          {client.at_peer(kSignal), 1}, deadline, platform, ticket);
      if (outcome == gda::Outcome::ok)
        outcome = gda::wait(client.queue, ticket, deadline, platform);
      while (device::ptx::ld_acquire_sys(answer) < lap && platform.now() < deadline) {
      }
      if (outcome != gda::Outcome::ok || platform.now() >= deadline) atomicAdd(failed, 1);
    }
    __syncthreads();
  }
}

/// One block of the peer: waits for each signal and looks at all data.
__global__ void consume(std::byte* memory, std::uint64_t* answer, int laps, std::uint64_t limit,
                        unsigned* failed) {
  gda::CudaPlatform platform{nullptr, true};
  const std::uint64_t deadline = platform.now() + limit;
  const auto* const signal = reinterpret_cast<std::uint64_t*>(memory + kSignal);
  const auto* const data = reinterpret_cast<volatile std::uint64_t*>(memory);
  for (std::uint64_t lap = 1; lap <= laps; ++lap) {
    if (threadIdx.x == 0) {
      while (device::ptx::ld_acquire_sys(signal) < lap && platform.now() < deadline) {
      }
      if (platform.now() >= deadline) atomicAdd(failed, 1000);
    }
    __syncthreads();
    unsigned wrong = 0;
    for (unsigned i = threadIdx.x; i < kDataBytes / 8; i += blockDim.x)
      wrong += data[i] != lap ? 1 : 0;
    if (wrong != 0) atomicAdd(failed, 1);
    __syncthreads();
    if (threadIdx.x == 0) device::ptx::st_release_sys(answer, lap);
  }
}

/// A counter that kernels add to and the host reads.
class Counter {
 public:
  Counter() {
    check_cuda(cudaHostAlloc(reinterpret_cast<void**>(&value_), sizeof *value_,
                             cudaHostAllocMapped | cudaHostAllocPortable));
    *value_ = 0;
  }
  ~Counter() { cudaFreeHost(value_); }
  Counter(const Counter&) = delete;
  Counter& operator=(const Counter&) = delete;
  unsigned* get() const { return value_; }
  unsigned value() const { return *static_cast<volatile unsigned*>(value_); }

 private:
  unsigned* value_ = nullptr;
};

/// Ordering, form of the completion queue, GPU of the peer.
using Setting = std::tuple<Ordering, bool, int>;

class GpuNic : public ::testing::TestWithParam<Setting> {
 protected:
  void SetUp() override {
    SHOAL_NEEDS_GPU();
    shape.ordering = std::get<0>(GetParam());
    shape.collapsed = std::get<1>(GetParam());
    shape.device_there = std::get<2>(GetParam());
    if (shape.device_there >= gpus()) GTEST_SKIP() << "one GPU";
    shape.options.reorder = std::chrono::microseconds(3);
    shape.options.lifetime = std::chrono::seconds(60);
  }
  NicShape shape;
};

// Back-pressure: 32 warps wait for room in 16 slots.
TEST_P(GpuNic, ManyWarpsOnATinyQueue) {
  constexpr int kBlocksOfWarps = 8, kWarps = 32, kOperations = 80;
  shape.blocks = 16;
  shape.bytes = kBlocks + kWarps * kBlock;
  Counter failed;
  const BoundedStream stream(0);
  NicRig rig(shape);
  std::vector<std::uint64_t> pattern(shape.bytes / 8);
  for (std::size_t i = 0; i < pattern.size(); ++i) pattern[i] = 0x9e3779b97f4a7c15 * (i + 1);
  rig.a.memory.write(0, pattern);
  rig.start();
  run_mix<<<kBlocksOfWarps, 128, 0, stream.get()>>>(client_of(rig), kOperations, kLimit,
                                                    failed.get());
  ASSERT_EQ(stream.wait(), cudaSuccess);
  EXPECT_EQ(failed.value(), 0u);
  rig.stop();
  EXPECT_EQ(rig.b.memory.word(0), kWarps * kOperations / 4u);
  EXPECT_EQ(rig.b.memory.word(8), kWarps * kOperations / 4u);
  for (std::uint64_t warp = 0; warp < kWarps; ++warp) {
    EXPECT_EQ(rig.b.memory.word(128 + 64 * warp), kOperations - 1u) << warp;
    const auto sent = rig.a.memory.read<std::byte>(kBlocks + kBlock * warp, kBlockBytes);
    const auto seen = rig.b.memory.read<std::byte>(kBlocks + kBlock * warp, kBlockBytes);
    EXPECT_TRUE(sent == seen) << warp;
  }
  const gda::Shared shared = rig.a.shared();
  EXPECT_EQ(shared.completed, shared.reserved);
  EXPECT_EQ(rig.a.nic.report(rig.a.pairs[0]).requests, shared.reserved);
  EXPECT_EQ(rig.a.nic.stopped(), emu::Stopped::by_owner);
}

TEST_P(GpuNic, IndicesWrap) {
  constexpr int kLaps = 2100;  // 67200 requests
  Counter failed;
  const BoundedStream stream(0);
  NicRig rig(shape);
  std::vector<std::uint64_t> pattern(4096);
  for (std::size_t i = 0; i < pattern.size(); ++i) pattern[i] = i + 1;
  rig.a.memory.write(0, pattern);
  rig.start();
  run_puts<<<1, 32, 0, stream.get()>>>(client_of(rig), kLaps, kLimit, failed.get());
  ASSERT_EQ(stream.wait(), cudaSuccess);
  EXPECT_EQ(failed.value(), 0u);
  rig.stop();
  EXPECT_TRUE(rig.b.memory.read(0, pattern.size()) == pattern);
  EXPECT_EQ(rig.a.nic.report(rig.a.pairs[0]).requests, kLaps * 32u);
}

TEST_P(GpuNic, ASignalPublishesTheData) {
  constexpr int kLaps = 300;
  Counter failed;
  const BoundedStream here(0), there(shape.device_there);
  NicRig rig(shape);
  rig.start();
  {
    const emu::OnDevice on(shape.device_there);
    consume<<<1, 256, 0, there.get()>>>(rig.b.memory.at(),
                                        reinterpret_cast<std::uint64_t*>(rig.a.memory.at(kAnswer)),
                                        kLaps, kLimit, failed.get());
  }
  produce<<<1, 256, 0, here.get()>>>(client_of(rig), kLaps, kLimit, failed.get());
  ASSERT_EQ(here.wait(), cudaSuccess);
  ASSERT_EQ(there.wait(), cudaSuccess);
  EXPECT_EQ(failed.value(), 0u);
}

// The kernel ends with the reason of the NIC, the peer's queue pair is in the error state, and
// other queue pairs go on.
TEST_P(GpuNic, AnErrorEndsTheQueueAndNoOther) {
  shape.pairs = 3;
  Counter failed;
  const BoundedStream stream(0);
  NicRig rig(shape);
  rig.start();
  Client bad = client_of(rig, 0);
  bad.there.key = 0x7700;
  run_puts<<<1, 32, 0, stream.get()>>>(bad, 10, kLimit, failed.get());
  ASSERT_EQ(stream.wait(), cudaSuccess);
  EXPECT_GT(failed.value(), 0u);
  const gda::Failure failure = gda::decode(rig.a.shared(0).failure, 0, 0);
  EXPECT_EQ(failure.cause, gda::Cause::nic);
  if (!shape.collapsed) {
    EXPECT_EQ(failure.syndrome, mlx5::Syndrome::remote_access);
    EXPECT_EQ(failure.opcode, mlx5::Opcode::write);
  }
  EXPECT_EQ(rig.a.nic.report(rig.a.pairs[0]).failed, 1u);
  const unsigned before = failed.value();
  run_puts<<<1, 32, 0, stream.get()>>>(client_of(rig, 2), 10, kLimit, failed.get());
  ASSERT_EQ(stream.wait(), cudaSuccess);
  EXPECT_EQ(failed.value(), before);
  EXPECT_EQ(rig.b.nic.report(rig.b.pairs[0]).failed, 1u);
  EXPECT_EQ(rig.b.nic.report(rig.b.pairs[2]).failed, 0u);
}

TEST_P(GpuNic, ASilentPeerIsGivenUp) {
  shape.options.retry = std::chrono::milliseconds(20);
  Counter failed;
  const BoundedStream stream(0);
  NicRig rig(shape);
  rig.start();
  rig.a.nic.end(rig.a.pairs[0], emu::Ended::peer_is_gone);
  run_puts<<<1, 32, 0, stream.get()>>>(client_of(rig), 1, kLimit, failed.get());
  ASSERT_EQ(stream.wait(), cudaSuccess);
  EXPECT_GT(failed.value(), 0u);
  if (!shape.collapsed)
    EXPECT_EQ(gda::decode(rig.a.shared().failure, 0, 0).syndrome, mlx5::Syndrome::retry_exceeded);
}

TEST_P(GpuNic, RemovedKeysAreRefused) {
  Counter failed;
  const BoundedStream stream(0);
  NicRig rig(shape);
  rig.start();
  run_puts<<<1, 32, 0, stream.get()>>>(client_of(rig), 1, kLimit, failed.get());
  ASSERT_EQ(stream.wait(), cudaSuccess);
  EXPECT_EQ(failed.value(), 0u);
  rig.b.nic.remove_key(rig.b.key);
  run_puts<<<1, 32, 0, stream.get()>>>(client_of(rig), 1, kLimit, failed.get());
  ASSERT_EQ(stream.wait(), cudaSuccess);
  EXPECT_GT(failed.value(), 0u);
}

TEST_P(GpuNic, QueuePairsMayComeWhileItRuns) {
  shape.options.pairs = 2;
  Counter failed;
  const BoundedStream stream(0);
  const emu::QueueMemory here(0, shape.blocks, shape.collapsed);
  const emu::QueueMemory there(shape.device_there, shape.blocks, shape.collapsed);
  NicRig rig(shape);
  rig.start();
  const auto add = [&](NicEnd& end, const emu::QueueMemory& memory) {
    return end.nic.add_queue_pair({.ring = memory.ring_bytes(),
                                   .blocks = shape.blocks,
                                   .record = memory.sends(),
                                   .completions = end.nic.add_completion_queue(
                                       memory.entry_bytes(), memory.log_entries(), shape.collapsed),
                                   .access = kAllAccess});
  };
  Client client = client_of(rig);
  client.queue.sends = {here.ring(), shape.blocks, add(rig.a, here), here.sends(), here.doorbell()};
  client.queue.completions.entries = here.entries();
  client.queue.shared = reinterpret_cast<gda::Shared*>(here.shared());
  emu::connect(rig.a.nic, client.queue.sends.number, rig.b.nic, add(rig.b, there), shape.ordering);
  rig.a.nic.update();
  rig.b.nic.update();
  run_puts<<<1, 32, 0, stream.get()>>>(client, 10, kLimit, failed.get());
  ASSERT_EQ(stream.wait(), cudaSuccess);
  EXPECT_EQ(failed.value(), 0u);
  EXPECT_EQ(rig.a.nic.report(rig.a.pairs[0]).requests, 0u);
  rig.stop();
  EXPECT_EQ(rig.a.nic.report(client.queue.sends.number).requests, 320u);
}

INSTANTIATE_TEST_SUITE_P(Tiers, GpuNic,
                         ::testing::Combine(::testing::ValuesIn(kOrderings), ::testing::Bool(),
                                            ::testing::Values(0, 1)),
                         [](const auto& made) {
                           return std::string(kNames[static_cast<int>(std::get<0>(made.param))]) +
                                  (std::get<1>(made.param) ? "Collapsed" : "EntryEach") +
                                  (std::get<2>(made.param) == 0 ? "OneGpu" : "TwoGpus");
                         });

// No GPU stays busy: the kernel ends by itself.
TEST(GpuNicEnd, WithoutItsOwner) {
  SHOAL_NEEDS_GPU();
  for (const bool by_lifetime : {true, false}) {
    NicShape shape;
    shape.options.lifetime = std::chrono::milliseconds(by_lifetime ? 200 : 20000);
    // Shorter than the period of the heartbeats.
    shape.options.owner_timeout =
        by_lifetime ? std::chrono::milliseconds(0) : std::chrono::milliseconds(5);
    NicRig rig(shape);
    rig.start();
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    while (rig.a.nic.is_running() && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_FALSE(rig.a.nic.is_running());
    EXPECT_EQ(rig.a.nic.stopped(),
              by_lifetime ? emu::Stopped::lifetime : emu::Stopped::owner_silent);
  }
}

TEST(GpuNicArguments, AreChecked) {
  SHOAL_NEEDS_GPU();
  EXPECT_THROW(emu::Nic({.blocks = 5}), std::invalid_argument);
  EXPECT_THROW(emu::Nic({.warps = 1}), std::invalid_argument);
  EXPECT_THROW(emu::Nic({.bytes_per_ns = -1}), std::invalid_argument);
  emu::Nic nic({});
  const std::uint32_t record = 0;
  EXPECT_THROW(nic.add_queue_pair({.blocks = 16, .record = &record}), std::invalid_argument);
  EXPECT_THROW(nic.add_completion_queue(nullptr, 23, false), std::invalid_argument);
  EXPECT_THROW(nic.remove_key(7), std::invalid_argument);
  EXPECT_THROW(nic.report(1), std::invalid_argument);
}

}  // namespace
}  // namespace shoal::test
