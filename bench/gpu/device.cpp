// SPDX-License-Identifier: Apache-2.0
// device.cpp: operations inside kernels, of one block each. Every PE works on the next one.
#include "shoal/cuda.hpp"

#include "gpu/bench.hpp"
#include "gpu/device_kernels.hpp"

namespace shoal::bench::gpu {
namespace {

constexpr std::size_t kMostBytes = std::size_t{1} << 20;
constexpr std::uint32_t kMostRepeats = 64;  ///< operations of one kernel

class DeviceBench {
 public:
  DeviceBench(World& world, Peers& peers, const Options& options)
      : world_(world),
        peers_(peers),
        shape_(options.shape),
        source_(world.heap().allocate<std::byte>(kMostBytes)),
        target_(world.heap().allocate<std::byte>(kMostBytes)),
        words_(world.heap().allocate<std::uint64_t>(2)),
        results_(peers, options, "device") {}

  void run() {
    using enum DeviceOperation;
    measure("put_value", put_value, 8, kMostRepeats);
    measure("atomic_fetch_add", atomic_fetch_add, 0, kMostRepeats);
    measure("signal and wait", step, 0, kMostRepeats);
    measure("barrier", barrier, 0, kMostRepeats);
    for (const std::size_t bytes : {8, 4096}) measure("put, warp", put_warp, bytes, kMostRepeats);
    for (const std::size_t bytes : {8, 4096})
      measure("put_signal, warp", put_signal, bytes, kMostRepeats);
    for (const std::size_t bytes : {std::size_t{64} << 10, kMostBytes})
      measure("put, block", put_block, bytes, 8);
  }

 private:
  /// The time of one operation: that of a kernel of `repeats`, launch included, over their number.
  void measure(const char* name, DeviceOperation operation, std::size_t bytes,
               std::uint32_t repeats) {
    DeviceLoop loop{};
    loop.world = cuda::device_world(world_);
    loop.team = cuda::device_team(world_.team());
    loop.source = source_.data();
    loop.target = target_.data();
    loop.words = words_.data();
    loop.bytes = bytes;
    loop.repeats = repeats;
    loop.next = (peers_.me() + 1) % peers_.count();
    Timing timing = time_chain(
        peers_, stream_.get(), shape_,
        [&](std::int64_t) {
          loop.first = flagged_;
          flagged_ += repeats;
          run_device_loop(stream_.get(), operation, loop);
        },
        [&] {
          check(cudaStreamSynchronize(stream_.get()), "waiting for a chain");
          cuda::check_failures(world_);
        });
    timing.mean /= repeats;
    for (double& sample : timing.samples) sample /= repeats;
    timing.links.reset();  // of a kernel
    results_.add({{"operation", name}, {"launch", "plain"}, {"bytes", bytes}}, timing,
                 static_cast<double>(bytes));
  }

  World& world_;
  Peers& peers_;
  const Shape shape_;
  const Stream stream_;
  const SymmetricArray<std::byte> source_, target_;
  const SymmetricArray<std::uint64_t> words_;
  std::uint64_t flagged_ = 0;  ///< what the flag has reached
  Results results_;
};

}  // namespace

void run_device(World& world, Peers& peers, const Options& options) {
  DeviceBench(world, peers, options).run();
}

}  // namespace shoal::bench::gpu
