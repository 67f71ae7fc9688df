// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/kernel_routes.hpp"

#include <atomic>
#include <chrono>
#include <cstring>
#include <set>
#include <thread>

#include "base/check.hpp"
#include "device/queue_failures.hpp"

namespace shoal::detail {
namespace {

namespace gda = device::gda;
using transport::DeviceQueues;

/// Requests that kernels have just posted may take this long, with some repeated packets.
constexpr auto kInFlight = std::chrono::milliseconds(500);

/// The block in GPU memory: Routes, then a Route per PE, all queues, and their shared words.
struct Block {
  Block(std::size_t n_pes, std::size_t n_queues)
      : shared_at(0),
        routes_at(n_queues * sizeof(gda::Shared)),
        by_pe_at(routes_at + sizeof(gda::Routes)),
        queues_at(by_pe_at + n_pes * sizeof(gda::Route)),
        bytes(queues_at + n_queues * sizeof(gda::Queue)) {}
  std::size_t shared_at, routes_at, by_pe_at, queues_at, bytes;
};

gda::Queue queue_of(const DeviceQueues::Route& route, std::size_t i, Pe pe, gda::Shared* shared) {
  gda::Queue queue;
  queue.sends = route.queues[i].sends;
  queue.completions = route.queues[i].completions;
  queue.shared = shared;
  queue.ordering = gda::Ordering::adaptive;  // right for every NIC
  queue.largest_message = route.largest_message;
  queue.sink = route.sink;
  queue.peer = static_cast<std::uint32_t>(pe);
  return queue;
}

}  // namespace

KernelRoutes::KernelRoutes(const memory::Device& device,
                           const std::vector<const DeviceQueues*>& queues, const std::byte* heap,
                           std::uint64_t timeout_ns)
    : device_(device), driver_(memory::cuda::driver()) {
  std::vector<DeviceQueues::Route> routes(queues.size());
  std::set<const DeviceQueues*> used;
  for (std::size_t pe = 0; pe < queues.size(); ++pe) {
    if (queues[pe] == nullptr) continue;
    routes[pe] = queues[pe]->route(static_cast<Pe>(pe));
    if (!routes[pe].queues.empty()) used.insert(queues[pe]);
  }
  if (used.empty()) return;
  device_.activate();
  try {
    for (const DeviceQueues* const network : used)
      for (const DeviceQueues::Range& range : network->memory()) map(range);
    describe(routes, heap, timeout_ns);
  } catch (...) {
    release();
    throw;
  }
}

KernelRoutes::~KernelRoutes() {
  if (abort_ != nullptr) std::atomic_ref(*abort_).store(1, std::memory_order_relaxed);
  if (driver_.set_current(device_.context) == CUDA_SUCCESS) release();
}

bool KernelRoutes::reaches(Pe pe, std::size_t offset, std::size_t bytes) const noexcept {
  if (routes_ == nullptr) return false;
  const std::size_t reached = reached_[static_cast<std::size_t>(pe)];
  return reached != 0 && offset <= reached && bytes <= reached - offset;
}

std::optional<Error> KernelRoutes::failure(Pe pe, CUstream_st* stream) const {
  if (queues_.empty()) return std::nullopt;
  device_.activate();
  std::vector<gda::Shared> shared(queues_.size());
  memory::cuda::check(driver_,
                      driver_.copy(memory::cuda::address(shared.data()), memory_,
                                   shared.size() * sizeof shared[0], stream),
                      "SHOAL-N460: cannot copy the state of the queues of kernels from the GPU");
  device_.synchronize(stream, "a copy of the state of the queues of kernels");
  const auto deadline = std::chrono::steady_clock::now() + kInFlight;
  for (;;) {
    std::vector<QueueState> states;
    for (std::size_t i = 0; i < queues_.size(); ++i)
      states.push_back(look_at(queues_[i], shared[i]));
    std::optional<Error> found = failure_of(states, pe);
    if (!found || found->code() != Code::timeout || std::chrono::steady_clock::now() >= deadline)
      return found;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void KernelRoutes::map(const DeviceQueues::Range& range) {
  unsigned flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
  if (range.registers) flags |= CU_MEMHOSTREGISTER_IOMEMORY;
  const char* const what = range.registers ? "doorbell page" : "memory";
  memory::cuda::check(
      driver_, driver_.host_register(range.start, range.bytes, flags),
      fmt::format("SHOAL-N465: GPU {} cannot map the {} of a NIC's queue of {} bytes",
                  device_.device, what, range.bytes),
      "SHOAL_GDA");
  mapped_.push_back(range.start);
  CUdeviceptr seen{};
  const CUresult result = driver_.pointer_attribute(&seen, CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
                                                    memory::cuda::address(range.start));
  require(
      result == CUDA_SUCCESS && seen == memory::cuda::address(range.start), Code::unsupported,
      "SHOAL-N465: GPU {} does not use the host's address for the {} of a NIC's queue. Setting: "
      "SHOAL_GDA",
      device_.device, what);
}

void KernelRoutes::describe(const std::vector<DeviceQueues::Route>& routes, const std::byte* heap,
                            std::uint64_t timeout_ns) {
  std::size_t n_queues = 0;
  for (const DeviceQueues::Route& route : routes) n_queues += route.queues.size();
  const Block block(routes.size(), n_queues);
  void* word = nullptr;
  memory::cuda::check(driver_, driver_.host_alloc(&word, sizeof *abort_, CU_MEMHOSTALLOC_PORTABLE),
                      "SHOAL-N461: cannot pin host memory for the queues of kernels");
  abort_ = new (word) std::uint32_t{0};
  memory::cuda::check(
      driver_, driver_.mem_alloc(&memory_, block.bytes),
      fmt::format("SHOAL-N473: cannot allocate {} bytes on GPU {} for {} queues of kernels",
                  block.bytes, device_.device, n_queues),
      "SHOAL_GDA_QUEUE_PAIRS");
  const auto at = [this](std::size_t offset) {
    return reinterpret_cast<std::byte*>(memory_) + offset;
  };
  std::vector<std::byte> image(block.bytes);
  const auto put = [&](std::size_t offset, const auto& value) {
    std::memcpy(image.data() + offset, &value, sizeof value);
  };
  put(block.routes_at, gda::Routes{.by_pe = reinterpret_cast<gda::Route*>(at(block.by_pe_at)),
                                   .n_pes = routes.size(),
                                   .heap = heap,
                                   .timeout_ns = timeout_ns,
                                   .abort = abort_});
  std::size_t next = 0;
  for (std::size_t pe = 0; pe < routes.size(); ++pe) {
    const DeviceQueues::Route& from = routes[pe];
    const std::size_t first = block.queues_at + next * sizeof(gda::Queue);
    put(block.by_pe_at + pe * sizeof(gda::Route),
        gda::Route{.queues = reinterpret_cast<gda::Queue*>(at(first)),
                   .n_queues = static_cast<std::uint32_t>(from.queues.size()),
                   .local_key = from.local_key,
                   .heap = from.heap,
                   .bytes = from.heap_bytes});
    for (std::size_t i = 0; i < from.queues.size(); ++i, ++next) {
      auto* const shared =
          reinterpret_cast<gda::Shared*>(at(block.shared_at + next * sizeof(gda::Shared)));
      queues_.push_back(queue_of(from, i, static_cast<Pe>(pe), shared));
      put(block.queues_at + next * sizeof(gda::Queue), queues_.back());
    }
  }
  memory::cuda::check(
      driver_,
      driver_.copy(memory_, memory::cuda::address(image.data()), image.size(), device_.stream),
      "SHOAL-N460: cannot copy the description of the queues of kernels to the GPU");
  device_.synchronize("the set-up of the queues of kernels");
  routes_ = reinterpret_cast<const gda::Routes*>(at(block.routes_at));
  for (const DeviceQueues::Route& route : routes)
    reached_.push_back(route.queues.empty() ? 0 : route.heap_bytes);
}

void KernelRoutes::release() noexcept {
  for (std::byte* const start : mapped_) driver_.host_unregister(start);
  mapped_.clear();
  if (memory_ != 0) driver_.mem_free(memory_);
  if (abort_ != nullptr) driver_.host_free(abort_);
  memory_ = 0;
  abort_ = nullptr;
  routes_ = nullptr;
}

}  // namespace shoal::detail
