// SPDX-License-Identifier: Apache-2.0
#include "fabric/fabric.hpp"

#include <algorithm>
#include <climits>

#include "base/check.hpp"
#include "base/wait_point.hpp"
#include "transport/device_queues.hpp"
#include "transport/heap_rma.hpp"

namespace shoal::detail {
namespace {

/// Access of a network to heaps in GPU memory, or nullptr.
transport::HeapRma* heaps_of(const std::unique_ptr<transport::Transport>& network) {
  return network ? network->gpu_access().heaps : nullptr;
}

}  // namespace

HeapRoute Fabric::gpu_heap_route(Pe pe, transport::Capabilities needed) const {
  const auto i = static_cast<std::size_t>(pe);
  require((gpu_map_.capabilities[i] & needed) == needed, Code::unsupported,
          "SHOAL-N167: PE {} cannot do {} on the heap of PE {} in GPU memory: {}", placement_.my_pe,
          [&] { return transport::describe(needed); }, pe,
          [&] { return why_not(gpu_map_, placement_.my_pe, placement_.my_pe, pe); });
  memory_.device()->activate();
  return {*gpu_transports_[gpu_map_.transport_of[i]], 0};
}

std::string Fabric::why_out_of_reach(Pe pe) const {
  if (!memory_.heap_on_gpu())
    return "SHOAL-N169: they are on different nodes (SHOAL_NODE_SIZE or the hosts say so)";
  return why_not(gpu_map_, placement_.my_pe, placement_.my_pe, pe);
}

std::byte* Fabric::host_base(Pe pe) const noexcept {
  return pe == placement_.my_pe ? memory_.segment()->base() : route(pe).base(pe);
}

void Fabric::get_nbi(void* target, RemoteAddress source, std::size_t bytes) {
  const HeapRoute route = heap_route(source.pe, transport::capability::get);
  route.transport.get_nbi(target, source.pe, route.start + source.offset, bytes);
}

void Fabric::put(RemoteAddress target, const void* source, std::size_t bytes) {
  const HeapRoute route = heap_route(target.pe, transport::capability::put);
  route.transport.put(target.pe, route.start + target.offset, source, bytes);
}

void Fabric::fence() const {
  for (Pe pe = 0; pe < placement_.n_pes; ++pe) {
    route(pe).fence(pe);
    for (const auto& transport : gpu_transports_) transport->fence(pe);
  }
}

bool Fabric::uses_network() const noexcept {
  return transports_.size() > transport::factories().size();
}

bool Fabric::progress() noexcept {
  bool any = false;
  for (const auto& network : networks())
    if (network) any |= network->progress();
  return any;
}

int Fabric::polls_per_yield() const noexcept {
  std::optional<int> polls;
  for (const auto& network : networks())
    if (network) polls = std::min(polls.value_or(INT_MAX), network->polls_per_yield());
  return polls.value_or(1);
}

std::vector<WaitPoint*> Fabric::wait_points() const {
  std::vector<WaitPoint*> points;
  for (Pe pe = 0; pe < placement_.n_pes; ++pe) {
    std::byte* const base = route(pe).base(pe);
    points.push_back(base == nullptr
                         ? nullptr
                         : reinterpret_cast<WaitPoint*>(base + memory_.layout().wait_point()));
  }
  return points;
}

std::string Fabric::heap_note(Pe pe) const {
  std::string note = gpu_transports_[gpu_map_.transport_of[static_cast<std::size_t>(pe)]]->note(pe);
  if (const auto* const queues = device_queues(pe); queues != nullptr)
    note += (note.empty() ? "" : "; ") + queues->describe(pe);
  return note;
}

const transport::DeviceQueues* Fabric::device_queues(Pe pe) const noexcept {
  if (!memory_.heap_on_gpu() || pe == placement_.my_pe || peer_base(pe) != nullptr) return nullptr;
  return route(pe).gpu_access().queues;
}

std::vector<std::byte> Fabric::add_heap(std::size_t offset, std::size_t bytes) {
  constexpr std::size_t kBytes = transport::HeapRma::kBlobBytes;
  std::vector<std::byte> all;
  for (const auto& network : networks()) {
    all.resize(all.size() + kBytes);  // zeros: it does not access GPU memory
    if (transport::HeapRma* const rma = heaps_of(network); rma != nullptr)
      std::ranges::copy(rma->add(offset, bytes), all.end() - kBytes);
  }
  return all;
}

void Fabric::connect_heap(const Blobs& all) {
  constexpr std::size_t kBytes = transport::HeapRma::kBlobBytes;
  for (std::size_t n = 0; n < networks().size(); ++n) {
    transport::HeapRma* const rma = heaps_of(networks()[n]);
    if (rma == nullptr) continue;
    Blobs blobs;
    for (const auto& of_pe : all) {
      const auto start = of_pe.begin() + static_cast<std::ptrdiff_t>(n * kBytes);
      blobs.emplace_back(start, start + kBytes);
    }
    rma->connect(blobs);
  }
}

void Fabric::roll_back_heap(std::size_t offset) noexcept {
  for (const auto& network : networks())
    if (transport::HeapRma* const rma = heaps_of(network); rma != nullptr) rma->roll_back(offset);
}

void Fabric::release() noexcept {
  peer_bases_.clear();
  gpu_transports_.clear();
  transports_.clear();
  kept_.clear();
}

}  // namespace shoal::detail
