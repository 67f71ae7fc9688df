// SPDX-License-Identifier: Apache-2.0
#include "ep/cuda/group/group.hpp"

#include <algorithm>
#include <cstring>
#include <mutex>

#include "base/backoff.hpp"
#include "base/deadline.hpp"
#include "base/log.hpp"
#include "ep/cuda/group/relaxed_capture.hpp"
#include "ep/plan/notices.hpp"
#include "memory/cuda/stream_pool.hpp"
#include "memory/device.hpp"
#include "pe/memory.hpp"
#include "team/exchange.hpp"

namespace shoal::ep::cuda {
namespace {

/// A stream that this thread may wait for while it captures a graph from another one. Makes the
/// GPU's context current.
class UncapturedStream {
 public:
  explicit UncapturedStream(const memory::Device& gpu)
      : relaxed_(gpu),
        stream_(memory::cuda::take_stream(gpu, memory::cuda::StreamPriority::lowest)) {}

  cudaStream_t get() const { return stream_.get(); }

 private:
  RelaxedCapture relaxed_;
  std::shared_ptr<CUstream_st> stream_;
};

void report_default_stream() {
  static std::once_flag once;
  std::call_once(once, [] {
    log::info(
        "ep::Group: calls on CUDA's legacy default stream return when the GPU has executed them, "
        "because threads of this process move the rows by calls of the driver, which other calls "
        "on that stream can hold up (docs/guide/gpus.md)");
  });
}

}  // namespace

CudaGroup::CudaGroup(GroupState& owner) : state(owner) {
  const memory::Device& gpu = *state.world->memory().cuda();
  gpu.activate();
  multiprocessors = gpu.multiprocessors;
  require(state.shape.ranks <= kMaxDeviceRanks, Code::unsupported,
          "SHOAL-N555: an ep::Group on GPUs has at most {} ranks; this team has {}",
          kMaxDeviceRanks, state.shape.ranks);
  resources = std::make_shared<GroupResources>(gpu);
  recent_.emplace(resources);
  stream = resources->stream;
  default_stream = last_stream = stream;
  for (cudaEvent_t* const event : {&between_, &read_})
    check(cudaEventCreateWithFlags(event, cudaEventDisableTiming), "event of an ep::Group");
  report_memory = take_pinned(sizeof(FaultReport));
  report = static_cast<FaultReport*>(report_memory.get());
  const std::size_t table =
      sizeof(std::int32_t) * static_cast<std::size_t>(state.shape.experts + state.shape.ranks + 1);
  device_memory = resources->allocate(sizeof(GroupMemory) + table, stream, resources);
  device.memory = static_cast<GroupMemory*>(device_memory.get());
}

CudaGroup::~CudaGroup() {
  try {
    if (state.world->memory().cuda() != nullptr) state.world->memory().cuda()->activate();
  } catch (const std::exception& error) {
    log::warn("SHOAL-N556: an ep::Group could not reach its GPU: {}", error.what());
  }
  const RelaxedCapture relaxed;  // a collector of garbage may end the group at any time
  if (left_ && !capturing(last_stream)) (void)cudaEventRecord(between_, last_stream);
  // Kernels of a failed group end at their deadlines.
  if (last_stream != stream) (void)cudaEventSynchronize(between_);
  (void)cudaStreamSynchronize(stream);
  (void)cudaEventDestroy(between_);
  (void)cudaEventDestroy(read_);
}

void CudaGroup::open() {
  open(detail::DeviceLayout(state.shape), state.peers);
}

void CudaGroup::open(const detail::DeviceLayout& layout, std::span<std::byte* const> blocks) {
  state.world->memory().cuda()->activate();
  device.layout = layout;
  std::copy(blocks.begin(), blocks.end(), device.block);
  std::byte* const mine = blocks[static_cast<std::size_t>(state.me)];
  device.report = report;
  device.timeout_ns = static_cast<std::uint64_t>(std::chrono::nanoseconds(state.timeout).count());
  device.ranks = state.shape.ranks;
  device.me = state.me;
  device.top_k = state.shape.top_k;
  device.mask_failed = state.options.mask_failed ? 1 : 0;
  device.none_expert = state.shape.none_expert;
  // Between nodes each mode has memory of its own (show). Where ranks are masked, a rank in normal
  // mode may have ended there, which kernels cannot know.
  device.finds_other_mode = state.nodes.count == 1 && !state.options.mask_failed ? 1 : 0;
  check(cudaMemsetAsync(mine, 0, device.layout.control_end, stream), "signals of an ep::Group");
  // Empty rows of low-latency mode hold kSentinel.
  check(cudaMemsetAsync(mine + device.layout.normal_end, 0xff,
                        device.layout.total - device.layout.normal_end, stream),
        "slots of an ep::Group");
  check(cudaMemsetAsync(device.memory, 0, sizeof(GroupMemory), stream), "memory of an ep::Group");
  const std::vector<std::int32_t> words = expert_table_words(*state.shape.partition);
  auto* const table = reinterpret_cast<std::int32_t*>(device.memory + 1);
  check(cudaMemcpyAsync(table, words.data(), words.size() * sizeof(std::int32_t),
                        cudaMemcpyHostToDevice, stream),
        "experts of an ep::Group");
  set_experts(device, *state.shape.partition, state.me, table);
  check(cudaStreamSynchronize(stream), "start of an ep::Group");
  const memory::DeviceDescription mine_here = state.world->memory().cuda()->description();
  const auto all =
      shoal::detail::exchange(state_of(state.team), &mine_here, sizeof(mine_here), "ep group");
  ranks_on_gpu = 0;
  for (std::size_t at = 0; at < all.size(); at += sizeof(memory::DeviceDescription)) {
    memory::DeviceDescription theirs;
    std::memcpy(&theirs, all.data() + at, sizeof(theirs));
    if (theirs.uuid != mine_here.uuid) continue;
    ++ranks_on_gpu;
    if (theirs.process != mine_here.process) processes_share_gpu = true;
  }
}

void CudaGroup::show(const CudaGroup& other) {
  other_ = &other;
  device.finds_other_mode = 1;
  other_memory_ = resources->allocate(sizeof(DeviceGroup), stream, resources);
  const void* const shown = other_memory_.get();
  check(cudaMemcpyAsync(other_memory_.get(), &other.device, sizeof(DeviceGroup),
                        cudaMemcpyHostToDevice, stream),
        "the other mode of an ep::Group");
  check(cudaMemcpyAsync(static_cast<void*>(&device.memory->other_mode),
                        static_cast<const void*>(&shown), sizeof(shown), cudaMemcpyHostToDevice,
                        stream),
        "the other mode of an ep::Group");
  check(cudaStreamSynchronize(stream), "start of an ep::Group");
}

cudaStream_t CudaGroup::begin(const Launch& launch) {
  state.world->memory().cuda()->activate();
  cudaStream_t on =
      launch.stream != nullptr ? static_cast<cudaStream_t>(launch.stream) : default_stream;
  if (driver_moves_rows && on == cudaStreamLegacy) [[unlikely]]
    report_default_stream();
  captured_.release_gone([this](std::uint64_t graph) { state.arena.forget(graph); });
  begun_ = {on, captured_.enter(on)};
  if (captures()) has_captured.store(true, std::memory_order_relaxed);
  if (!captures()) {
    // Users can queue work on the group's own stream between calls, so it is ordered even when no
    // call is under way.
    if (on != last_stream && (under_way_ || last_stream == stream)) {
      if (last_stream == stream)
        check(cudaEventRecord(between_, stream), "order of an ep::Group's calls");
      else
        switches_ = true;
      record_left();
      check(cudaStreamWaitEvent(on, between_, 0), "order of an ep::Group's calls");
    }
    last_stream = on;
    under_way_ = true;
    wait_for_readers(on);
  }
  if (launch.after != nullptr)
    check(cudaStreamWaitEvent(on, static_cast<cudaEvent_t>(launch.after), 0), "Launch.after");
  return on;
}

void CudaGroup::order_after(cudaStream_t other) noexcept {
  const std::lock_guard lock(readers_mutex_);
  if (std::find(readers_.begin(), readers_.end(), other) == readers_.end())
    readers_.push_back(other);
}

void CudaGroup::wait_for_readers(cudaStream_t on) {
  const std::lock_guard lock(readers_mutex_);
  for (cudaStream_t reader : readers_) {
    // A graph that reads a result keeps it, so work that is being captured needs no order.
    if (reader == on || capturing(reader)) continue;
    check(cudaEventRecord(read_, reader), "order of an ep::Group's calls");
    check(cudaStreamWaitEvent(on, read_, 0), "order of an ep::Group's calls");
  }
  readers_.clear();
}

void CudaGroup::end(const Launch& launch, cudaStream_t on) {
  check(cudaGetLastError(), "launch of a kernel");
  if (launch.done != nullptr)
    check(cudaEventRecord(static_cast<cudaEvent_t>(launch.done), on), "Launch.done");
  record(on);
  if (waits_for_gpu()) [[unlikely]]
    wait_for_gpu();
}

/// True if the call that began last returns only when the GPU has executed it. The calls of the
/// driver that move rows need a lock of the context. Other calls of the process hold it while they
/// wait for kernels, which may wait for rows: on the legacy default stream a copy to pageable
/// memory and a launch into a full queue, on any stream the loading of a kernel at its first use.
/// Where several processes share the GPU, it executes the calls that move rows too rarely while
/// many kernels wait (docs/decisions/copies-hold-up-the-proxy.md).
bool CudaGroup::waits_for_gpu() const {
  return driver_moves_rows && !captures() &&
         (loads_lazily || processes_share_gpu || begun_.on == cudaStreamLegacy);
}

/// Polls, which holds no lock. Ends after the group's timeout at the latest: earlier work of the
/// stream may take longer, and kernels that wait in vain report it to a later call. Is not
/// interrupted, because the caller has not yet noted that the call is queued.
void CudaGroup::wait_for_gpu() {
  const RelaxedCapture relaxed(*state.world->memory().cuda());  // other threads may capture graphs
  record_left();
  Deadline deadline(Deadline::Clock::now() + state.timeout);
  for (Backoff backoff; !deadline.passed(Deadline::Clock::now()); backoff()) {
    const cudaError_t result =
        last_stream == stream ? cudaStreamQuery(stream) : cudaEventQuery(between_);
    under_way_ = result == cudaErrorNotReady;
    if (!under_way_) return;
    (void)cudaGetLastError();  // not an error, yet the runtime keeps it as one
  }
}

void CudaGroup::record(cudaStream_t on) {
  const bool captured = on == begun_.on ? captures() : capturing(on);
  if (on == stream || captured) return;
  left_ = !switches_ && (on == nullptr || on == cudaStreamLegacy);
  if (!left_) check(cudaEventRecord(between_, on), "order of an ep::Group's calls");
}

void CudaGroup::record_left() {
  if (left_) check(cudaEventRecord(between_, last_stream), "order of an ep::Group's calls");
  left_ = false;
}

bool CudaGroup::capturing(cudaStream_t on) const {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(on, &status), "Launch.stream");
  return status != cudaStreamCaptureStatusNone;
}

std::vector<std::uint64_t> CudaGroup::failed_words() const {
  std::vector<std::uint64_t> words(static_cast<std::size_t>(state.shape.ranks));
  add_failed_words(device, words);
  // A rank that has given up low-latency mode writes no word for normal mode.
  if (other_ != nullptr) add_failed_words(other_->device, words);
  return words;
}

void CudaGroup::add_failed_words(const DeviceGroup& of, std::vector<std::uint64_t>& words) const {
  std::vector<std::uint64_t> read(words.size());
  // The group's stream may be under capture, or busy with a kernel that waits.
  const UncapturedStream reading(*state.world->memory().cuda());
  check(cudaMemcpy2DAsync(read.data(), sizeof(std::uint64_t), of.block[state.me] + of.layout.failed,
                          detail::kLine, sizeof(std::uint64_t), read.size(), cudaMemcpyDeviceToHost,
                          reading.get()),
        "state of the other ranks");
  check(cudaStreamSynchronize(reading.get()), "state of the other ranks");
  for (std::size_t rank = 0; rank < words.size(); ++rank)
    if (words[rank] == 0) words[rank] = read[rank];
}

std::optional<std::int32_t> CudaGroup::ask_failed_rank() {
  const std::vector<std::uint64_t> words = failed_words();
  for (std::int32_t rank = 0; rank < state.shape.ranks; ++rank)
    if (rank != state.me && words[static_cast<std::size_t>(rank)] != 0) return rank;
  return std::nullopt;
}

std::int32_t CudaGroup::cause_of(std::int32_t rank) const {
  const std::vector<std::uint64_t> words = failed_words();
  return detail::first_cause(rank, state.shape.ranks,
                             [&](std::int32_t by) { return words[static_cast<std::size_t>(by)]; });
}

std::optional<std::int32_t> CudaGroup::in_other_mode(std::int32_t rank, bool low_latency) const {
  const std::vector<std::uint64_t> words = failed_words();
  for (std::int32_t links = 0; links < state.shape.ranks; ++links) {
    const std::uint64_t word = words[static_cast<std::size_t>(rank)];
    const std::int32_t named = static_cast<std::int32_t>(static_cast<std::uint32_t>(word)) - 1;
    if (named < 0 || named >= state.shape.ranks) break;
    if (detail::says_other_mode(word)) return low_latency ? named : rank;
    if (!detail::says_gave_up(word)) break;
    rank = named;
  }
  return std::nullopt;
}

std::optional<Error> CudaGroup::on_own_stream(
    const std::function<std::optional<Error>(cudaStream_t)>& read) const {
  const UncapturedStream reading(*state.world->memory().cuda());
  return read(reading.get());
}

std::shared_ptr<void> CudaGroup::allocate(std::size_t bytes) {
  return recent_->take(bytes, last_stream);
}

Tensor CudaGroup::tensor(const std::shared_ptr<void>& memory, std::size_t offset, DataType dtype,
                         std::initializer_list<std::int64_t> shape) const {
  TensorView view(static_cast<std::byte*>(memory.get()) + offset, dtype, shape);
  view.device = state.device;
  return {view, memory};
}

void CudaGroup::drain() {
  const RelaxedCapture relaxed(*state.world->memory().cuda());
  record_left();
  if (last_stream == stream)
    check(cudaStreamSynchronize(stream), "work of an ep::Group");
  else
    check(cudaEventSynchronize(between_), "work of an ep::Group");
  under_way_ = false;
  throw_failed();
}

void CudaGroup::synchronize() {
  state.world->memory().cuda()->activate();
  record_left();
  // After an interrupt the group is as before, and its work continues.
  (void)poll_while_not_ready(
      [this] { return last_stream == stream ? cudaStreamQuery(stream) : cudaEventQuery(between_); },
      "synchronize of an ep::Group");
  drain();
  throw_reported();
}

}  // namespace shoal::ep::cuda
