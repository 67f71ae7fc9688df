// SPDX-License-Identifier: Apache-2.0
#include "ep/cuda/group.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>

#include "base/log.hpp"
#include "ep/checks.hpp"
#include "memory/cuda/stream_pool.hpp"
#include "memory/device.hpp"

namespace shoal::ep::cuda {

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  (void)cudaGetLastError();  // the next launch reports its own
  fail(Code::system, "{}: {} ({})", what, cudaGetErrorString(status), cudaGetErrorName(status));
}

// Memory and streams.

Resources::Resources(const memory::Device& gpu)
    : taken_stream(memory::cuda::take_stream(gpu, memory::cuda::StreamPriority::highest)),
      stream(taken_stream.get()) {
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location = {cudaMemLocationTypeDevice, gpu.device};
  check(cudaMemPoolCreate(&pool, &properties), "memory pool of an ep::Group");
  std::uint64_t all = ~std::uint64_t{0};  // memory that results leave is kept for the next ones
  check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all),
        "memory pool of an ep::Group");
}

Resources::~Resources() {
  (void)cudaMemPoolDestroy(pool);
}

std::shared_ptr<void> Resources::allocate(std::size_t bytes, cudaStream_t on,
                                          const std::shared_ptr<Resources>& self) const {
  void* memory = nullptr;
  check(cudaMallocFromPoolAsync(&memory, std::max<std::size_t>(bytes, 16), pool, on),
        "memory of an ep::Group");
  return {memory, [self](void* pointer) { (void)cudaFreeAsync(pointer, self->stream); }};
}

struct BlockPool::Blocks {
  explicit Blocks(std::shared_ptr<Resources> owner) : resources(std::move(owner)) {}
  std::shared_ptr<Resources> resources;
  std::mutex mutex;
  std::vector<std::shared_ptr<void>> free;
};

BlockPool::BlockPool(std::size_t bytes, std::shared_ptr<Resources> resources)
    : bytes_(bytes), blocks_(std::make_shared<Blocks>(std::move(resources))) {}

void BlockPool::reserve(std::size_t blocks) {
  {
    const std::lock_guard lock(blocks_->mutex);
    if (blocks_->free.size() >= blocks) return;  // nearly always: calls ask for this
  }
  std::vector<std::shared_ptr<void>> taken;
  for (std::size_t i = 0; i < blocks; ++i) taken.push_back(take());
}

std::shared_ptr<void> BlockPool::take() {
  std::shared_ptr<void> block;
  {
    const std::lock_guard lock(blocks_->mutex);
    if (!blocks_->free.empty()) {
      block = std::move(blocks_->free.back());
      blocks_->free.pop_back();
    }
  }
  if (block == nullptr) {
    const auto& resources = blocks_->resources;
    block = resources->allocate(bytes_, resources->stream, resources);
    check(cudaStreamSynchronize(resources->stream), "memory for the layout of an operation");
  }
  void* const pointer = block.get();
  return {pointer, [blocks = blocks_, block = std::move(block)](void*) mutable {
            const std::lock_guard lock(blocks->mutex);
            blocks->free.push_back(std::move(block));
          }};
}

namespace {

struct Pinned {
  std::mutex mutex;
  std::multimap<std::size_t, void*> free;
  static Pinned& instance() {
    static auto* pinned = new Pinned;  // never destroyed: groups may outlive static objects
    return *pinned;
  }
};

}  // namespace

std::shared_ptr<void> take_pinned(std::size_t bytes) {
  auto& pinned = Pinned::instance();
  void* memory = nullptr;
  {
    const std::lock_guard lock(pinned.mutex);
    if (const auto found = pinned.free.find(bytes); found != pinned.free.end()) {
      memory = found->second;
      pinned.free.erase(found);
    }
  }
  if (memory == nullptr)
    check(cudaHostAlloc(&memory, bytes, cudaHostAllocMapped | cudaHostAllocPortable),
          "host memory of an ep::Group");
  std::memset(memory, 0, bytes);
  return {memory, [bytes](void* pointer) {
            auto& home = Pinned::instance();
            const std::lock_guard lock(home.mutex);
            home.free.emplace(bytes, pointer);
          }};
}

// The group.

namespace {

const char* name_of(Phase phase) {
  switch (phase) {
    case Phase::none:
      return "route";
    case Phase::notify:
      return "notify";
    case Phase::receive:
    case Phase::slots:
    case Phase::answer_rows:
      return "receive";
    case Phase::answers:
      return "notify";
    case Phase::fetched:
      return "finish";
    case Phase::slot_grant:
    case Phase::answer_grant:
    case Phase::weights:
      return "send";
  }
  return "unknown";
}

const char* wanted(Phase phase) {
  switch (phase) {
    case Phase::none:
      return "nothing";
    case Phase::notify:
      return "its counts";
    case Phase::receive:
    case Phase::slots:
      return "rows";
    case Phase::answers:
    case Phase::answer_rows:
      return "its answers";
    case Phase::fetched:
      return "word that it has fetched its rows";
    case Phase::slot_grant:
    case Phase::answer_grant:
      return "word that it has read its rows";
    case Phase::weights:
      return "its weights";
  }
  return "unknown";
}

const char* operation_of(const Report& report) {
  switch (report.phase) {
    case Phase::none:
      return "route";
    case Phase::notify:
    case Phase::receive:
      return "dispatch";
    case Phase::answers:
    case Phase::fetched:
      return "combine";
    case Phase::slot_grant:
    case Phase::slots:
      return "low_latency_dispatch";
    default:
      return "low_latency_combine";
  }
}

}  // namespace

CudaGroup::CudaGroup(GroupState& owner) : state(owner) {
  const memory::Device& gpu = *state.world->cuda();
  gpu.activate();
  multiprocessors = gpu.multiprocessors;
  require(state.shape.ranks <= kMaxDeviceRanks, Code::unsupported,
          "an ep::Group on GPUs has at most {} members; this team has {}", kMaxDeviceRanks,
          state.shape.ranks);
  resources = std::make_shared<Resources>(gpu);
  stream = resources->stream;
  last_stream = stream;
  check(cudaEventCreateWithFlags(&between_, cudaEventDisableTiming), "event of an ep::Group");
  report_memory = take_pinned(sizeof(Report));
  report = static_cast<Report*>(report_memory.get());
  device_memory = resources->allocate(sizeof(Memory), stream, resources);
  device.memory = static_cast<Memory*>(device_memory.get());
}

CudaGroup::~CudaGroup() {
  try {
    if (state.world->cuda() != nullptr) state.world->cuda()->activate();
  } catch (const std::exception& error) {
    log::warn("an ep::Group could not reach its GPU: {}", error.what());
  }
  // Kernels of a failed group end by their deadlines.
  if (last_stream != stream) (void)cudaEventSynchronize(between_);
  (void)cudaStreamSynchronize(stream);
  (void)cudaEventDestroy(between_);
}

void CudaGroup::open() {
  state.world->cuda()->activate();
  device.layout = detail::DeviceLayout(state.shape);
  for (std::int32_t rank = 0; rank < state.shape.ranks; ++rank)
    device.block[rank] = state.peers[rank];
  device.report = report;
  device.timeout_ns = static_cast<std::uint64_t>(std::chrono::nanoseconds(state.timeout).count());
  device.ranks = state.shape.ranks;
  device.me = state.me;
  device.experts = state.shape.experts;
  device.local_experts = state.shape.local_experts;
  device.top_k = state.shape.top_k;
  device.mask_failed = state.options.mask_failed ? 1 : 0;
  check(cudaMemsetAsync(state.block, 0, device.layout.control_end, stream),
        "signals of an ep::Group");
  // Rows of low-latency mode: kSentinel.
  check(cudaMemsetAsync(state.block + device.layout.normal_end, 0xff,
                        device.layout.total - device.layout.normal_end, stream),
        "slots of an ep::Group");
  check(cudaMemsetAsync(device.memory, 0, sizeof(Memory), stream), "memory of an ep::Group");
  check(cudaStreamSynchronize(stream), "start of an ep::Group");
  const auto& mine = state.world->cuda()->description().uuid;
  const auto all = state.world->exchange(state.team.state(), mine.data(), mine.size(), "ep group");
  members_on_gpu = 0;
  for (std::size_t at = 0; at < all.size(); at += mine.size())
    members_on_gpu += std::memcmp(all.data() + at, mine.data(), mine.size()) == 0 ? 1 : 0;
}

cudaStream_t CudaGroup::begin(const Launch& launch) {
  state.world->cuda()->activate();
  cudaStream_t on = launch.stream != nullptr ? static_cast<cudaStream_t>(launch.stream) : stream;
  begun_ = {on, capturing(on)};
  if (!begun_.captured) {
    // On the group's own stream users may have work too, between calls.
    if (on != last_stream && (under_way_ || last_stream == stream)) {
      if (last_stream == stream)
        check(cudaEventRecord(between_, stream), "order of an ep::Group's calls");
      check(cudaStreamWaitEvent(on, between_, 0), "order of an ep::Group's calls");
    }
    last_stream = on;
    under_way_ = true;
  }
  if (launch.after != nullptr)
    check(cudaStreamWaitEvent(on, static_cast<cudaEvent_t>(launch.after), 0), "Launch.after");
  return on;
}

void CudaGroup::end(const Launch& launch, cudaStream_t on) {
  check(cudaGetLastError(), "launch of a kernel");
  if (launch.done != nullptr)
    check(cudaEventRecord(static_cast<cudaEvent_t>(launch.done), on), "Launch.done");
  record(on);
}

void CudaGroup::record(cudaStream_t on) const {
  const bool captured = on == begun_.on ? begun_.captured : capturing(on);
  if (on != stream && !captured)
    check(cudaEventRecord(between_, on), "order of an ep::Group's calls");
}

bool CudaGroup::capturing(cudaStream_t on) const {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(on, &status), "Launch.stream");
  return status != cudaStreamCaptureStatusNone;
}

void CudaGroup::throw_failed() {
  require(state.failure.empty(), Code::closed, "the group failed before: {}", state.failure);
  const auto fault = static_cast<Fault>(report->fault);
  if (fault == Fault::timeout || fault == Fault::peer_failed) throw_reported();
}

void CudaGroup::throw_reported() {
  const auto fault = static_cast<Fault>(report->fault);
  if (fault == Fault::none) return;
  const Pe member = state.team.world_pe(report->member);
  const Pe my_pe = state.team.world_pe(state.me);
  const std::uint64_t epoch = report->epoch;
  const auto waited = [&] {
    return fmt::format(
        "on PE {} of {}: waiting for {} from PE {}, expected epoch {}, seen {}, phase {}", my_pe,
        state.world->n_pes(), wanted(report->phase), member, epoch,
        static_cast<std::uint64_t>(report->seen), name_of(report->phase));
  };
  switch (fault) {
    case Fault::timeout:
      state.failure = fmt::format(
          "{} (epoch {}) timed out after {} ms {}; {}. Setting: {}.", operation_of(*report), epoch,
          state.timeout.count(), waited(), state.world->describe_progress(member),
          state.options.timeout.count() > 0 ? "GroupOptions.timeout" : "SHOAL_TIMEOUT_MS");
      throw Error(Code::timeout, state.failure);
    case Fault::peer_failed:
      state.failure =
          fmt::format("{} (epoch {}) failed {}; PE {} gave this group up: its own message says why",
                      operation_of(*report), epoch, waited(), member);
      throw Error(Code::peer_failed, state.failure);
    default:
      break;
  }
  // The others leave the group usable; each is told once.
  const std::int64_t token = report->token, value = report->value, allowed = report->allowed;
  report->fault = static_cast<std::uint32_t>(Fault::none);
  switch (fault) {
    case Fault::mismatch:
      fail(
          Code::mismatch,
          "members of the group call different operations: PE {} and PE {} differ in operation, dtype, scales, weights "
          "or handle ({}, epoch {})",
          state.team.world_pe(0), member, operation_of(*report), epoch);
    case Fault::no_dispatch:
      fail(
          Code::invalid_argument,
          "{} (epoch {}): the handle is of a dispatch that did not take place; Group::synchronize says why",
          operation_of(*report), epoch);
    case Fault::no_room:
      detail::fail_no_room(state, member, state.shape.max_received());
    case Fault::too_many_rows:
      fail(Code::exhausted,
           "dispatch: PE {} allows {} rows (DispatchOptions.worst_case_rows) but is sent {}",
           member, allowed, value);
    case Fault::too_many_expert_major:
      fail(
          Code::exhausted,
          "dispatch: PE {} is sent {} rows, one for each expert of a token and gaps of expert_alignment included, but "
          "its result has room for {} (DispatchOptions.worst_case_rows; where that is 0, what GroupOptions.max_tokens, "
          "now {}, leaves in a result). Raise it; with worst_case_rows a result may also take the room of others "
          "(live_results, now {})",
          member, value, allowed, state.shape.max_tokens, state.shape.live_results);
    case Fault::bad_index:
      fail(Code::invalid_argument,
           "{}: topk_idx[{}, {}] is {}; allowed: 0 to {}, or -1 for none. It counts as -1",
           operation_of(*report), token, allowed, value, state.shape.experts - 1);
    default:
      fail(Code::invalid_argument,
           "{}: topk_idx[{}] names expert {} twice; each expert may stand once in a row",
           operation_of(*report), token, value);
  }
}

std::optional<std::int32_t> CudaGroup::ask_failed_rank() {
  state.world->cuda()->activate();
  std::vector<std::uint64_t> failed(static_cast<std::size_t>(state.shape.ranks));
  check(cudaMemcpy2DAsync(failed.data(), sizeof(std::uint64_t), state.block + device.layout.failed,
                          detail::kLine, sizeof(std::uint64_t), failed.size(),
                          cudaMemcpyDeviceToHost, stream),
        "whether members have failed");
  check(cudaStreamSynchronize(stream), "whether members have failed");
  for (std::int32_t member = 0; member < state.shape.ranks; ++member)
    if (member != state.me && failed[static_cast<std::size_t>(member)] != 0) return member;
  return std::nullopt;
}

std::shared_ptr<void> CudaGroup::allocate(std::size_t bytes) const {
  return resources->allocate(bytes, last_stream, resources);
}

Tensor CudaGroup::tensor(const std::shared_ptr<void>& memory, std::size_t offset, DataType dtype,
                         std::initializer_list<std::int64_t> shape) const {
  TensorView view(static_cast<std::byte*>(memory.get()) + offset, dtype, shape);
  view.device = state.device;
  return {view, memory};
}

void CudaGroup::drain() {
  state.world->cuda()->activate();
  if (last_stream == stream)
    check(cudaStreamSynchronize(stream), "work of an ep::Group");
  else
    check(cudaEventSynchronize(between_), "work of an ep::Group");
  under_way_ = false;
  throw_failed();
}

void CudaGroup::synchronize() {
  drain();
  throw_reported();
}

}  // namespace shoal::ep::cuda
