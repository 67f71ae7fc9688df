// SPDX-License-Identifier: Apache-2.0
// CudaDeviceSide: memory and streams through the driver API, kernels through the CUDA runtime,
// which shares the primary context.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "base/backoff.hpp"
#include "base/check.hpp"
#include "base/deadline.hpp"
#include "base/log.hpp"
#include "device/cuda/kernel_routes.hpp"
#include "device/cuda/stream_kernels.hpp"
#include "device/make_device_side.hpp"
#include "fabric/fabric.hpp"
#include "memory/cuda/driver.hpp"
#include "memory/cuda/stream_pool.hpp"
#include "pe/memory.hpp"
#include "shoal/device/detail/proxy_ring.hpp"
#include "transport/proxy.hpp"

namespace shoal::detail {
namespace {

using cuda::Stream;
using device::FailureReport;
using memory::cuda::address;

/// Copies of at least this size use a copy engine. A kernel finishes smaller ones before an engine
/// has started. The exact limit is not measured.
constexpr std::size_t kCopyEngineBytes = std::size_t{256} << 10;
/// Kernels of this PE that wait for the proxy and may be queued at a time. A launch into a full
/// queue of a stream (about 1000) holds locks of the driver that the proxy's copies need.
constexpr std::int64_t kMostQueued = 256;
/// Bytes that one block moves in the time of a second launch.
constexpr std::size_t kFusedSignalBytes = std::size_t{32} << 10;
/// Bytes that one block of a transfer moves in the time of two more launches.
constexpr std::size_t kTransferBytes = std::size_t{128} << 10;

/// The legacy default stream, by either of its names.
bool is_legacy(Stream stream) {
  return reinterpret_cast<std::uintptr_t>(stream) <= 1;
}

/// In the heap: `head` and `completed_copy` of the proxy's ring, and the Ring for kernels.
constexpr std::size_t kProxyWords = 2 + sizeof(device::proxy::Ring) / sizeof(std::uint64_t);

class CudaDeviceSide final : public DeviceSide {
 public:
  explicit CudaDeviceSide(const DeviceSideContext& context);
  ~CudaDeviceSide() override { release(); }

  void check_local(const char* what, const void* memory, std::size_t bytes) const override;
  void copy(Stream stream, void* target, const void* source, std::size_t bytes) const override;
  void copy_strided(Stream stream, void* target, std::size_t target_stride, const void* source,
                    std::size_t source_stride, std::size_t element,
                    std::size_t count) const override {
    start("strided copy", kernels::copy_strided, stream, target, target_stride, source,
          source_stride, element, count);
  }
  void store(Stream stream, void* target, std::uint64_t value, std::size_t width) const override {
    start("put_value", kernels::store, stream, target, value, width);
  }
  void atomic(Stream stream, AtomicOp op, void* word, std::uint64_t operand, std::uint64_t compare,
              std::size_t width, void* result) const override {
    start("atomic", kernels::atomic, stream, op, word, operand, compare, width, result);
  }
  void signal(Stream stream, std::uint64_t* word, SignalOp op, std::uint64_t value) const override {
    start("signal", kernels::signal, stream, word, op, value);
  }
  void copy_signal(Stream stream, void* target, const void* source, std::size_t bytes,
                   std::uint64_t* word, SignalOp op, std::uint64_t value) const override {
    if (bytes != 0 && bytes <= kFusedSignalBytes) {
      start("put_signal", kernels::copy_signal, stream, target, source, bytes, word, op, value);
      return;
    }
    if (bytes != 0) copy(stream, target, source, bytes);
    signal(stream, word, op, value);
  }
  void wait(Stream stream, const Condition& condition) const override {
    start("wait_until", kernels::wait, stream, world_, condition);
  }
  void test(Stream stream, const Condition& condition, int* result) const override {
    start("test", kernels::test, stream, condition, result);
  }
  void barrier(Stream stream, const device::Team& team) const override {
    start_counted("barrier", kernels::barrier, stream, world_, team,
                  launch_.pes_on_device == 1 && device_->compute_capability >= 90);
  }
  void transfer(Stream stream, const Transfer& transfer) const override;
  void put_to_all(Stream stream, const device::Team& team,
                  std::span<const detail::StreamBlock> blocks, std::uint64_t* flags,
                  std::uint64_t value) const override;
  void wait_for_all(Stream stream, const device::Team& team, const std::uint64_t* flags,
                    std::uint64_t value) const override {
    start("wait_for_all", kernels::wait_for_all, stream, world_, team, flags, value);
  }
  void fetch_entries(Stream stream, const detail::EntryFetch& fetch) const override {
    start("fetch_entries", kernels::fetch_entries, stream, world_, fetch);
  }
  void order(Stream before, Stream after) const override;
  bool captures(Stream stream) const override {
    // The legacy default stream cannot be asked while another thread captures.
    cudaStreamCaptureStatus status{};
    return !is_legacy(stream) && cudaStreamIsCapturing(stream, &status) == cudaSuccess &&
           status != cudaStreamCaptureStatusNone;
  }
  void post(Stream stream, const Posts& posts) const override {
    start_counted("a request to the proxy", kernels::post, stream, world_, posts);
  }
  void fetch_block(Stream stream, const device::AllToAllV& arguments, Pe index, Pe me,
                   Pe pe) const override {
    start_counted("a block of all_to_all_v", kernels::fetch_block, stream, world_, arguments, index,
                  me, pe);
  }
  void drain(Stream stream) const override {
    start_counted("a wait for the proxy", kernels::drain, stream, world_);
  }
  std::byte* scratch(std::int32_t team, std::size_t bytes) const override;
  std::optional<Error> proxy_failure() const override {
    return proxy_ == nullptr ? std::nullopt : proxy_->failure();
  }
  bool nic_reaches(Pe pe, std::size_t offset, std::size_t bytes) const override {
    return routes_ != nullptr && routes_->reaches(pe, offset, bytes);
  }
  std::optional<Error> nic_failure(Pe pe, Stream stream) const override {
    return routes_ == nullptr ? std::nullopt : routes_->failure(pe, stream);
  }

 private:
  void release() noexcept;
  std::uint64_t* await_turn(Stream stream) const;
  void start_proxy(const DeviceSideContext& context);
  void map_queues(const DeviceSideContext& context);
  void lay_out_heap(const DeviceSideContext& context);
  void lay_out_packets(const DeviceSideContext& context);
  /// False where `before` has no work left, and where `after` is captured and `before` is not.
  bool needs_event(Stream before, Stream after) const;
  void check_runtime(cudaError_t result, const char* what) const {
    require(result == cudaSuccess, Code::system, "SHOAL-N460: {} failed on GPU {}: {}: {}", what,
            launch_.device, cudaGetErrorName(result), cudaGetErrorString(result));
  }
  template <typename Launch, typename... Arguments>
  void start(const char* what, Launch* kernel, const Arguments&... arguments) const {
    device_->activate();
    const char* const failure = unusable_ != nullptr ? unusable_ : kernel(arguments...);
    require(failure == nullptr, Code::system, "SHOAL-N460: {} did not start on GPU {}: {}", what,
            launch_.device, failure == nullptr ? "" : failure);
  }

  /// For kernels that wait for the proxy. Their last argument is the word that counts their ends
  /// (await_turn).
  template <typename Launch, typename... Arguments>
  void start_counted(const char* what, Launch* kernel, Stream stream,
                     const Arguments&... arguments) const {
    std::uint64_t* const ended = await_turn(stream);
    try {
      start(what, kernel, stream, arguments..., ended);
    } catch (...) {
      if (ended != nullptr) queued_.fetch_sub(1, std::memory_order_relaxed);
      throw;
    }
  }

  const memory::cuda::Driver& driver_;
  std::shared_ptr<memory::Device> device_;
  std::shared_ptr<CUstream_st> launch_stream_;    ///< owns launch_.priority
  const char* unusable_ = nullptr;                ///< why the kernels could not be loaded
  std::vector<std::byte*> bases_;                 ///< the heaps of all PEs; nullptr: not reached
  mutable cudaEvent_t ordering_ = nullptr;        ///< created at its first use
  std::uint64_t* proxy_words_ = nullptr;          ///< in the heap: the ring's head, copy and Ring
  void* proxy_memory_ = nullptr;                  ///< of the ring and `ended_`, pinned
  std::uint64_t* ended_ = nullptr;                ///< kernels that have waited for the proxy
  mutable std::atomic<std::uint64_t> queued_{0};  ///< kernels that wait for it, not in graphs
  struct Scratch {
    std::byte* memory = nullptr;
    std::size_t bytes = 0;
  };
  mutable std::mutex scratch_mutex_;
  mutable std::vector<std::pair<std::int32_t, Scratch>> scratch_;  ///< by team; the newest last
  std::unique_ptr<transport::Proxy> proxy_;                        ///< where a heap is out of reach
  std::unique_ptr<KernelRoutes> routes_;  ///< where a network has queues for kernels
};

CudaDeviceSide::CudaDeviceSide(const DeviceSideContext& context)
    : driver_(memory::cuda::driver()), device_(context.memory.device()) {
  device_->activate();
  launch_.device = device_->device;
  const auto here = device_->description().uuid;
  const auto& devices = context.memory.devices();
  launch_.pes_on_device = static_cast<int>(std::count_if(
      devices.begin(), devices.end(), [&](const auto& other) { return other.uuid == here; }));
  world_.my_pe = context.placement.my_pe;
  world_.n_pes = context.placement.n_pes;
  world_.heap = context.memory.heap_base();
  world_.heap_bytes = context.memory.heap_size();
  world_.timeout_ns =
      static_cast<std::uint64_t>(std::chrono::nanoseconds(context.settings.timeout).count());
  lay_out_heap(context);
  // Not an error here: the heap can be used without kernels. Calls that start one throw.
  unusable_ = kernels::load();

  launch_stream_ = memory::cuda::take_stream(*device_, memory::cuda::StreamPriority::highest);
  launch_.priority = launch_stream_.get();
  void* report = nullptr;
  check(driver_, driver_.host_alloc(&report, sizeof(FailureReport), CU_MEMHOSTALLOC_PORTABLE),
        "SHOAL-N461: cannot pin host memory for failure reports");
  world_.failure = new (report) FailureReport{};
  try {
    start_proxy(context);
    map_queues(context);
  } catch (...) {
    release();
    throw;
  }
}

void CudaDeviceSide::release() noexcept {
  proxy_.reset();
  routes_.reset();
  if (driver_.set_current(device_->context) != CUDA_SUCCESS) return;
  if (ordering_ != nullptr) cudaEventDestroy(ordering_);
  for (const auto& [team, scratch] : scratch_) driver_.mem_free(address(scratch.memory));
  driver_.host_free(world_.failure);
  if (proxy_memory_ != nullptr) driver_.host_free(proxy_memory_);
}

/// Starts the proxy where kernels cannot reach a heap by loads and stores, but the host can.
void CudaDeviceSide::start_proxy(const DeviceSideContext& context) {
  const auto slots = static_cast<std::uint64_t>(context.settings.proxy_slots);
  bool wanted = false;
  for (std::size_t pe = 0; pe < bases_.size(); ++pe)
    wanted |= bases_[pe] == nullptr &&
              (context.fabric.gpu_map().capabilities[pe] & transport::capability::put) != 0;
  if (slots == 0 || !wanted) return;
  const std::size_t ring_bytes = transport::proxy_ring_bytes(slots);
  const std::size_t bytes = ring_bytes + sizeof *ended_;
  check(driver_, driver_.host_alloc(&proxy_memory_, bytes, CU_MEMHOSTALLOC_PORTABLE),
        fmt::format(
            "SHOAL-N461: cannot pin {} bytes for the ring of the proxy; setting: SHOAL_PROXY_SLOTS",
            bytes));
  std::memset(proxy_memory_, 0, bytes);
  ended_ = reinterpret_cast<std::uint64_t*>(static_cast<std::byte*>(proxy_memory_) + ring_bytes);
  device::proxy::Ring ring{};
  transport::place_proxy_ring(ring, static_cast<std::byte*>(proxy_memory_), slots);
  ring.head = proxy_words_;
  ring.completed_copy = proxy_words_ + 1;
  ring.timeout_ns = world_.timeout_ns;
  auto* const place = proxy_words_ + 2;
  check(driver_, driver_.copy(address(place), address(&ring), sizeof ring, device_->stream),
        "SHOAL-N460: cannot copy the description of the proxy's ring to the GPU");
  device_->synchronize("the set-up of the proxy");
  const Placement& placement = context.placement;
  std::int64_t core = context.settings.proxy_core;
  if (core >= 0)  // of the first PE of the host; the next core for the next PE
    core += std::count(placement.host_of.begin(), placement.host_of.begin() + placement.my_pe,
                       placement.host_of[placement.me()]);
  proxy_ = transport::make_proxy(
      {.my_pe = placement.my_pe,
       .n_pes = placement.n_pes,
       .heap_bytes = world_.heap_bytes,
       .ring = ring,
       .timeout = context.settings.timeout,
       .route = [&fabric = context.fabric](Pe pe) { return fabric.polled_route(pe); },
       .wait = progress_wait_of(context.settings.progress_wait),
       .core = core});
  world_.proxy = reinterpret_cast<const device::proxy::Ring*>(place);
}

/// Sizes are powers of two, so that all blocks of a team together are less than twice the largest.
/// Blocks that were too small stay: queued work and graphs may use them.
std::byte* CudaDeviceSide::scratch(std::int32_t team, std::size_t bytes) const {
  const std::lock_guard lock(scratch_mutex_);
  for (const auto& [of, found] : scratch_)
    if (of == team && found.bytes >= bytes) return found.memory;
  device_->activate();
  Scratch made{nullptr, std::bit_ceil(bytes)};
  // An allocation does not belong to the work that this thread may be capturing.
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  check_runtime(cudaThreadExchangeStreamCaptureMode(&mode), "the mode of a capture");
  CUdeviceptr allocated = 0;
  const CUresult result = driver_.mem_alloc(&allocated, made.bytes);
  check_runtime(cudaThreadExchangeStreamCaptureMode(&mode), "the mode of a capture");
  memory::cuda::check(driver_, result, [&] {
    return fmt::format("SHOAL-N458: {} bytes of GPU memory for a collective of team {}", made.bytes,
                       team);
  });
  made.memory = reinterpret_cast<std::byte*>(allocated);
  scratch_.emplace_back(team, made);
  return made.memory;
}

/// Waits on the host until a kernel that waits for the proxy may be queued, at most
/// SHOAL_TIMEOUT_MS. Returns the word that counts its end; nullptr where it is not counted: without
/// a proxy, and in graphs, each replay of which takes one place in a queue.
std::uint64_t* CudaDeviceSide::await_turn(Stream stream) const {
  if (ended_ == nullptr || captures(stream)) return nullptr;
  const std::uint64_t before = queued_.fetch_add(1, std::memory_order_relaxed);
  // Negative where kernels that were queued later have ended.
  const auto waiting = [&] {
    return static_cast<std::int64_t>(before -
                                     std::atomic_ref(*ended_).load(std::memory_order_relaxed));
  };
  if (waiting() < kMostQueued) return ended_;
  Deadline deadline(std::chrono::steady_clock::now() + std::chrono::nanoseconds(world_.timeout_ns));
  Backoff backoff;
  while (waiting() >= kMostQueued) {
    backoff();
    const bool late = deadline.passed(std::chrono::steady_clock::now());
    if (!late) continue;
    queued_.fetch_sub(1, std::memory_order_relaxed);
    fail(Code::timeout,
         "SHOAL-N462: an operation on a stream timed out on PE {} of {}: {} operations that wait "
         "for the proxy are queued, and none of them has ended for {} ms. Setting: "
         "SHOAL_TIMEOUT_MS.",
         world_.my_pe, world_.n_pes, waiting(), world_.timeout_ns / 1'000'000);
  }
  return ended_;
}

/// The proxy must exist as well, because it serves what NICs cannot do.
void CudaDeviceSide::map_queues(const DeviceSideContext& context) {
  if (world_.proxy == nullptr) return;
  std::vector<const transport::DeviceQueues*> queues;
  for (Pe pe = 0; pe < world_.n_pes; ++pe) queues.push_back(context.fabric.device_queues(pe));
  routes_ = std::make_unique<KernelRoutes>(*device_, queues, world_.heap, world_.timeout_ns);
  world_.gda = routes_->get();
}

/// Allocates the words of all teams and, where the heaps do not lie at equal distances, the table
/// of heaps.
void CudaDeviceSide::lay_out_heap(const DeviceSideContext& context) {
  Memory& memory = context.memory;
  const auto n_pes = static_cast<std::size_t>(context.placement.n_pes);
  const auto teams = static_cast<std::size_t>(context.settings.max_teams);
  const std::size_t team_words = teams * team_stride(context.placement.n_pes);
  const std::size_t words = team_words + n_pes + kProxyWords;
  const std::size_t bytes = words * sizeof(std::uint64_t);
  const auto offset = memory.heap().allocate(bytes, alignof(std::uint64_t));
  require(
      offset && *offset + bytes <= memory.heap_mapped(), Code::exhausted,
      "SHOAL-N463: the signals of {} teams of {} PEs take {} bytes of the symmetric heap, whose "
      "first step has {}; settings: SHOAL_MAX_TEAMS, SHOAL_SYMMETRIC_SIZE",
      teams, n_pes, bytes, memory.heap_mapped());
  team_words_ = reinterpret_cast<std::uint64_t*>(world_.heap + *offset);
  device_->zero(team_words_, bytes);

  proxy_words_ = team_words_ + team_words + n_pes;
  lay_out_packets(context);

  const std::vector<std::byte*>& bases = bases_ = context.fabric.peer_bases();
  const std::ptrdiff_t stride = n_pes == 1 ? 0 : bases[1] - bases[0];
  bool window = true;
  for (std::size_t pe = 0; pe < n_pes; ++pe)
    window = window && bases[pe] != nullptr &&
             bases[pe] - bases[0] == static_cast<std::ptrdiff_t>(pe) * stride;
  world_.window = bases[0];
  world_.stride = static_cast<std::size_t>(stride);
  if (!window) {
    auto* const table = team_words_ + team_words;
    world_.bases = reinterpret_cast<std::byte* const*>(table);
    check(driver_,
          driver_.copy(address(table), address(static_cast<const void*>(bases.data())),
                       n_pes * sizeof bases[0], device_->stream),
          "SHOAL-N460: cannot copy the table of heaps to the GPU");
  }
  device_->synchronize("the set-up of the device side");
}

/// Allocates the memory of packets where the heap has room. The first epoch is not 0, so zeros are
/// no packet.
void CudaDeviceSide::lay_out_packets(const DeviceSideContext& context) {
  constexpr std::size_t kAlignment = 128;  // bytes
  Memory& memory = context.memory;
  limits_ = collective_limits(context.settings);
  const std::size_t part = packet_part(context.settings.collective_scratch, memory.heap_mapped());
  if (part == 0) return;
  const std::size_t bytes = part * kPacketParts;
  const auto offset = memory.heap().allocate(bytes, kAlignment);
  if (!offset) return;  // on all PEs alike
  if (*offset + bytes > memory.heap_mapped()) {
    memory.heap().release(*offset);
    return;
  }
  packets_ = world_.heap + *offset;
  packet_part_ = part;
  device_->zero(packets_, bytes);
}

void CudaDeviceSide::check_local(const char* what, const void* memory, std::size_t bytes) const {
  device_->activate();
  const auto* const first = static_cast<const std::byte*>(memory);
  for (const std::byte* const byte : {first, first + bytes - 1}) {
    CUmemorytype type = CU_MEMORYTYPE_HOST;
    const CUresult result =
        driver_.pointer_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address(byte));
    require(result == CUDA_SUCCESS, Code::invalid_argument,
            "SHOAL-N464: {}: the local buffer of {} bytes at {} is not memory that GPU {} can use; "
            "allowed: GPU memory, the symmetric heap, pinned host memory",
            what, bytes, memory, launch_.device);
  }
}

void CudaDeviceSide::copy(Stream stream, void* target, const void* source,
                          std::size_t bytes) const {
  if (bytes < kCopyEngineBytes) {
    start("copy", kernels::copy, stream, target, source, bytes);
    return;
  }
  device_->activate();
  check(
      driver_, driver_.copy(address(target), address(source), bytes, stream),
      fmt::format("SHOAL-N460: a copy of {} bytes did not start on GPU {}", bytes, launch_.device));
}

bool CudaDeviceSide::needs_event(Stream before, Stream after) const {
  if (is_legacy(before) || captures(before)) return true;
  // A query by a thread that captures invalidates its capture.
  return !captures(after) && driver_.stream_query(before) != CUDA_SUCCESS;
}

void CudaDeviceSide::transfer(Stream stream, const Transfer& transfer) const {
  if (transfer.bytes <= kTransferBytes) {
    start("transfer", kernels::transfer, stream, world_, transfer);
    return;
  }
  if (transfer.ready != nullptr)
    wait(stream, {transfer.ready, Compare::greater_equal, transfer.at_least, sizeof(std::uint64_t),
                  false, transfer.setter});
  copy(stream, transfer.target, transfer.source, transfer.bytes);
  signal(stream, transfer.flag, SignalOp::set, transfer.value);
}

void CudaDeviceSide::put_to_all(Stream stream, const device::Team& team,
                                std::span<const detail::StreamBlock> blocks, std::uint64_t* flags,
                                std::uint64_t value) const {
  kernels::PutToAll put;
  put.flags = flags;
  put.value = value;
  std::size_t bytes = 0;
  for (const detail::StreamBlock& block : blocks) bytes += block.bytes;
  if (bytes <= kTransferBytes && blocks.size() <= kernels::PutToAll::kMaxBlocks) {
    for (const detail::StreamBlock& block : blocks) put.blocks[put.count++] = block;
  } else {
    for (Pe step = 1; step <= world_.n_pes; ++step) {
      const Pe pe = (world_.my_pe + step) % world_.n_pes;
      if ((team.members[pe / 64] >> (pe % 64) & 1) == 0) continue;
      for (const detail::StreamBlock& block : blocks) {
        std::byte* const target = bases_[static_cast<std::size_t>(pe)] +
                                  (static_cast<std::byte*>(block.place) - world_.heap);
        const bool skipped = block.others_only && pe == world_.my_pe;
        if (block.bytes != 0 && target != block.source && !skipped)
          copy(stream, target, block.source, block.bytes);
      }
    }
  }
  start("put_to_all", kernels::put_to_all, stream, world_, team, put);
}

/// Events would cost more than all else that a small operation does.
void CudaDeviceSide::order(Stream before, Stream after) const {
  device_->activate();
  if (!needs_event(before, after)) return;
  if (ordering_ == nullptr)
    check_runtime(cudaEventCreateWithFlags(&ordering_, cudaEventDisableTiming),
                  "creating an event");
  check_runtime(cudaEventRecord(ordering_, before), "recording an event");
  check_runtime(cudaStreamWaitEvent(after, ordering_, 0), "waiting for an event");
}

}  // namespace

std::shared_ptr<DeviceSide> make_cuda_device_side(const DeviceSideContext& context) {
  return std::make_shared<CudaDeviceSide>(context);
}

}  // namespace shoal::detail
