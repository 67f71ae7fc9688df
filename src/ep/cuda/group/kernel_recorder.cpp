// SPDX-License-Identifier: Apache-2.0
#include "ep/cuda/group/kernel_recorder.hpp"

#include <chrono>
#include <cstring>
#include <map>
#include <thread>

#include "base/log.hpp"
#include "ep/cuda/group/relaxed_capture.hpp"
#include "memory/cuda/stream_pool.hpp"
#include "memory/device.hpp"
#include "pe/memory.hpp"
#include "shoal/settings.hpp"

namespace shoal::ep::cuda {

namespace record = shoal::detail::record;

namespace {

using Clock = std::chrono::steady_clock;

/// One for all groups on this GPU: it has work about once a second.
std::shared_ptr<CUstream_st> stream_of(const memory::Device& gpu) {
  static std::mutex mutex;
  static std::map<const void*, std::weak_ptr<CUstream_st>> streams;
  const std::lock_guard lock(mutex);
  auto& kept = streams[gpu.context];
  auto stream = kept.lock();
  if (stream == nullptr) {
    stream = memory::cuda::take_stream(gpu, memory::cuda::StreamPriority::lowest);
    kept = stream;
  }
  return stream;
}

std::int64_t nanoseconds(Clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

/// Time limits of the GPU. A kernel that waits for a peer can hold up the queue in which the
/// copy is; the record is then older.
constexpr auto kCopyLimit = std::chrono::milliseconds(20);
constexpr auto kClockLimit = std::chrono::milliseconds(1);

}  // namespace

KernelRecorder::KernelRecorder(RecordedKernels kernels)
    : kernels_(std::move(kernels)),
      group_(kernels_.normal != nullptr ? *kernels_.normal : *kernels_.low_latency),
      bytes_(kernel_record_bytes(group_.state.shape.experts_of(group_.state.me))),
      host_memory_(take_pinned(sizeof(Epochs) + bytes_)),
      clock_memory_(take_pinned(sizeof(ClockReading))),
      last_(std::make_unique<std::byte[]>(bytes_)) {
  const memory::Device& gpu = *group_.state.world->memory().cuda();
  gpu.activate();
  stream_ = stream_of(gpu);
  const auto memory = group_.resources->allocate(bytes_, group_.stream, group_.resources);
  check(cudaMemsetAsync(memory.get(), 0, bytes_, group_.stream), "record of kernels");
  check(cudaStreamSynchronize(group_.stream), "record of kernels");
  std::memset(host_memory_.get(), 0, sizeof(Epochs));  // those of a mode without kernels
  preload_clock();
  for (CudaGroup* const group : {kernels_.normal, kernels_.low_latency}) {
    if (group == nullptr) continue;
    group->record_memory = memory;
    group->device.record = static_cast<KernelRecord*>(memory.get());
  }
  const bool low_latency_counts = kernels_.low_latency != nullptr && kernels_.low_latency_counts;
  if (low_latency_counts) kernels_.low_latency->low_latency_counts = true;
  group_.state.recorder.leave_counters_to_kernels(kernels_.normal != nullptr, low_latency_counts);
  refresh_ = std::make_unique<record::Refresh>([this] { refresh(); },
                                               group_.state.world->settings().metrics_interval);
}

void KernelRecorder::stop() noexcept {
  if (refresh_ == nullptr) return;
  refresh_.reset();
  try {
    refresh();
  } catch (const std::exception& error) {
    log::debug("the record of a group could not be refreshed: {}", error.what());
  }
}

KernelRecorder::~KernelRecorder() {
  refresh_.reset();
  const RelaxedCapture relaxed;
  // The host memory has other users from now on.
  if (copying_) (void)cudaStreamSynchronize(stream_.get());
}

void KernelRecorder::refresh() {
  const std::lock_guard lock(mutex_);
  for (CudaGroup* const group : {kernels_.normal, kernels_.low_latency})
    if (group != nullptr) group->warn_of_unnoticed_fault();
  if (!copy()) return;
  // The first replies take longer. Not when the group starts, where programs wait for it.
  for (int i = questions_ == 0 ? 3 : 1; i > 0; --i) ask_clock();
  const auto& copied = *reinterpret_cast<const KernelRecord*>(last_.get());
  record::KernelCounts counts =
      counts_of(copied, done_, group_.state.shape, kernels_.borders, group_.state.me, clock_);
  if (clock_ == 0) {  // no reply yet
    counts.launches.clear();
    counts.wait = {};
  }
  for (const CudaGroup* const group : {kernels_.normal, kernels_.low_latency})
    if (group != nullptr && group->has_captured.load(std::memory_order_relaxed)) counts.done = {};
  group_.state.recorder.show(counts);
}

bool KernelRecorder::copy() {
  const memory::Device* const gpu = group_.state.world->memory().cuda();
  if (gpu == nullptr) return false;  // the world is closed
  const RelaxedCapture relaxed(*gpu);
  auto* const host = static_cast<std::byte*>(host_memory_.get());
  const auto deadline = Clock::now() + kCopyLimit;
  const auto arrived = [&] {
    cudaError_t status = cudaErrorNotReady;
    while ((status = cudaStreamQuery(stream_.get())) == cudaErrorNotReady &&
           Clock::now() < deadline)
      std::this_thread::yield();
    if (status != cudaErrorNotReady) check(status, "record of kernels");
    return status == cudaSuccess;
  };
  if (copying_ && !arrived()) return false;
  const auto fetch = [&](std::byte* to, const void* from, std::size_t bytes) {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_.get()),
          "record of kernels");
  };
  // The epochs first: launches that end meanwhile count next time.
  copying_ = true;
  constexpr std::size_t kOne = sizeof(std::uint64_t);  // of normal mode
  if (kernels_.normal != nullptr) fetch(host, kernels_.normal->device.memory, kOne);
  if (kernels_.low_latency != nullptr)
    fetch(host + kOne,
          reinterpret_cast<const std::byte*>(kernels_.low_latency->device.memory) + kOne,
          sizeof(Epochs) - kOne);
  fetch(host + sizeof(Epochs), group_.record_memory.get(), bytes_);
  if (!arrived()) return false;
  copying_ = false;
  std::memcpy(&done_, host, sizeof done_);
  std::memcpy(last_.get(), host + sizeof(Epochs), bytes_);
  add_last_launches(*reinterpret_cast<KernelRecord*>(last_.get()), done_, kernels_.borders);
  return true;
}

/// The clocks drift by microseconds per second, so each refresh asks again. A question without a
/// reply changes nothing.
void KernelRecorder::ask_clock() {
  auto& reading = *static_cast<ClockReading*>(clock_memory_.get());
  if (reading.question != questions_) return;  // the last one is still under way
  launch_clock(&reading, ++questions_, stream_.get());
  if (cudaGetLastError() != cudaSuccess) {
    --questions_;
    return;
  }
  copying_ = true;
  const auto deadline = Clock::now() + kClockLimit;
  while (reading.question != questions_)
    if (Clock::now() > deadline) return;
  clock_ = nanoseconds(Clock::now()) - static_cast<std::int64_t>(reading.time);
  copying_ = false;
}

void KernelRecorder::add_to(Statistics& statistics) {
  const std::lock_guard lock(mutex_);
  copy();
  add_counts(*reinterpret_cast<const KernelRecord*>(last_.get()), statistics);
}

}  // namespace shoal::ep::cuda
