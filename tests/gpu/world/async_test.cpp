// SPDX-License-Identifier: Apache-2.0
// Start in the background on a GPU: worlds open and groups warm up on other threads, while the
// thread that started all of them continues to use the GPU.
#include <future>
#include <memory>
#include <vector>

#include "checks/ep/gpu_low_latency.hpp"
#include "gpu/device/world.hpp"

namespace shoal::test {
namespace {

/// The work of a program while Shoal starts: copies to a GPU and back on its own stream.
class Loading {
 public:
  explicit Loading(int device) : device_(device) {
    activate();
    check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    check_cuda(cudaHostAlloc(&host_, 2 * kBytes, cudaHostAllocPortable));
    check_cuda(cudaMalloc(&on_gpu_, kBytes));
  }
  ~Loading() {  // nothing waits on the GPU any more
    cudaSetDevice(device_);
    cudaFree(on_gpu_);
    cudaFreeHost(host_);
    cudaStreamDestroy(stream_);
  }
  Loading(const Loading&) = delete;
  Loading& operator=(const Loading&) = delete;

  /// Copies a block to the GPU and back.
  void step() {
    activate();
    auto* const words = static_cast<int*>(host_);
    constexpr std::size_t kWords = kBytes / sizeof(int);
    words[0] = words[kWords - 1] = ++steps_;
    check_cuda(cudaMemcpyAsync(on_gpu_, words, kBytes, cudaMemcpyHostToDevice, stream_));
    check_cuda(cudaMemcpyAsync(words + kWords, on_gpu_, kBytes, cudaMemcpyDeviceToHost, stream_));
    check_cuda(cudaStreamSynchronize(stream_));
    EXPECT_EQ(words[kWords], steps_);
    EXPECT_EQ(words[2 * kWords - 1], steps_);
  }
  int steps() const { return steps_; }

 private:
  static constexpr std::size_t kBytes = std::size_t{1} << 20;
  void activate() const { check_cuda(cudaSetDevice(device_)); }

  const int device_;
  int steps_ = 0;
  cudaStream_t stream_ = nullptr;
  void* host_ = nullptr;
  void* on_gpu_ = nullptr;
};

/// Steps until all of these are ready, and at least one.
template <typename T>
std::vector<T> load_until_ready(Loading& loading, std::vector<std::future<T>>& futures) {
  const auto ready = [](std::future<T>& one) {
    return one.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  };
  do loading.step();
  while (!std::all_of(futures.begin(), futures.end(), ready));
  std::vector<T> values;
  for (std::future<T>& one : futures) values.push_back(one.get());
  return values;
}

TEST(StartInTheBackground, OfWorldsAndGroupsWhileTheProgramGoesOn) {
  SHOAL_NEEDS_GPU();
  constexpr Pe kPes = 4;
  const EpCase c{
      .ranks = kPes, .experts = 3 * kPes, .top_k = 4, .hidden = 512, .max_tokens = 40, .seed = 1};
  const Settings settings = gpu_settings();
  Loading loading(0);
  auto bootstraps = thread_bootstraps(kPes, settings);
  std::vector<std::future<World>> opening;
  for (auto& bootstrap : bootstraps)
    opening.push_back(
        World::open_async({settings, std::shared_ptr<Bootstrap>(std::move(bootstrap))}));
  std::vector<World> worlds = load_until_ready(loading, opening);

  std::vector<std::future<std::unique_ptr<GpuGroup>>> making;
  for (World& world : worlds)
    making.push_back(std::async(std::launch::async, [&] {
      ep::GroupOptions options = options_for(c);
      options.preinitialize = true;
      return std::make_unique<GpuGroup>(world, options);
    }));
  std::vector<std::unique_ptr<GpuGroup>> groups = load_until_ready(loading, making);
  EXPECT_GE(loading.steps(), 2);

  // Each PE runs on a thread that has made neither.
  std::vector<std::future<void>> running;
  for (std::unique_ptr<GpuGroup>& group : groups)
    running.push_back(std::async(std::launch::async, [&] {
      World world = group->world;
      const auto box = world.heap().allocate<int>(1);
      world.put_value(box.on(right(world))[0], 100 + world.my_pe());
      barrier(world.team());
      EXPECT_EQ(fetch(world, box)[0], 100 + left(world));
      for (int i = 0; i < 2; ++i) {
        GpuRound(*group, c, {}).run();
        GpuLowLatencyRound(*group, c, {}).run();
      }
      group.reset();
    }));
  for (std::future<void>& one : running) one.get();
  running.clear();
  for (World& world : worlds)
    running.push_back(std::async(std::launch::async, [&] { world.close(); }));
  for (std::future<void>& one : running) one.get();
}

}  // namespace
}  // namespace shoal::test
