// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/heap_registration.hpp"

#include <algorithm>
#include <cstring>

#include "base/check.hpp"
#include "base/log.hpp"
#include "transport/heap_rma.hpp"

namespace shoal::transport::verbs {
namespace {

/// What a PE sends to its peers for each step.
struct StepAddress {
  std::uint64_t offset = 0, bytes = 0;
  std::uint64_t ports = 0;  ///< 0: not registered
  RemoteMemory memory[kMaxConnections] = {};
};
static_assert(sizeof(StepAddress) <= HeapRma::kBlobBytes);

/// The step with the byte at `offset`; nullptr without one.
template <typename Steps>
auto* step_at(Steps& steps, std::size_t offset) noexcept {
  const auto found = std::ranges::find_if(
      steps, [&](const auto& step) { return offset - step.offset < step.bytes; });
  return found == steps.end() ? nullptr : &*found;
}

}  // namespace

HeapRegistration::HeapRegistration(std::shared_ptr<memory::DeviceHeap> heap,
                                   const Settings& settings, Pe my_pe, Pe n_pes,
                                   std::vector<const Port*> ports)
    : heap_(std::move(heap)),
      setting_(settings.verbs_gpu_memory),
      my_pe_(my_pe),
      ports_(std::move(ports)),
      remote_(static_cast<std::size_t>(n_pes)) {}

std::vector<std::byte> HeapRegistration::add(std::size_t offset, std::size_t bytes) {
  std::byte* const start = heap_->base(my_pe_) + offset;
  Step step{offset, bytes, {}};
  try {
    step.regions = register_step(start, bytes);
    obstacle_.clear();
  } catch (const Error& error) {
    obstacle_ = error.reason();
    require(setting_ == "automatic" || setting_ == "off", Code::unsupported,
            "SHOAL_VERBS_GPU_MEMORY is {}, but {}; allowed: automatic, dmabuf, peermem, off",
            setting_, obstacle_);
    log::info("PE {}: transport verbs: data of the heap in GPU memory pass through host memory: {}",
              my_pe_, obstacle_);
  }
  StepAddress address{.offset = offset, .bytes = bytes, .ports = step.regions.size()};
  for (std::size_t port = 0; port < step.regions.size(); ++port)
    address.memory[port] = {reinterpret_cast<std::uintptr_t>(start),
                            step.regions[port].handle->rkey};
  steps_.push_back(std::move(step));
  std::vector<std::byte> blob(sizeof address);
  std::memcpy(blob.data(), &address, sizeof address);
  return blob;
}

/// By dma-buf, else by address, as far as the setting allows. Throws Error with the reasons.
std::vector<MemoryRegion> HeapRegistration::register_step(std::byte* start, std::size_t bytes) {
  require(setting_ != "off", Code::unsupported, "SHOAL_VERBS_GPU_MEMORY is off");
  if (heap_->on_host()) {
    method_ = "host memory";
    return register_by_address(start, bytes, "pinned host memory");
  }
  const memory::NicAccess access = heap_->device().nic_access();
  require(access.obstacle.empty(), Code::unsupported, "{}", access.obstacle);
  for (const Port* const port : ports_)
    require(!port->is_software(), Code::unsupported, "{} is a device in software", port->label());
  std::string reasons;
  if (setting_ != "peermem") {
    try {
      std::vector<MemoryRegion> regions = register_dma_buf(start, bytes);
      method_ = "dma-buf";
      return regions;
    } catch (const Error& error) {
      if (setting_ == "dmabuf") throw;
      reasons = fmt::format("{}; ", error.reason());
    }
  }
  method_ = "peer memory";
  return register_by_address(start, bytes, "GPU memory", reasons);
}

std::vector<MemoryRegion> HeapRegistration::register_by_address(std::byte* start, std::size_t bytes,
                                                                const char* what,
                                                                const std::string& reasons) const {
  std::vector<MemoryRegion> regions;
  for (const Port* const port : ports_) {
    MemoryRegion region = port->register_address(start, bytes);
    require(region.handle != nullptr, Code::unsupported,
            "{}{} bytes of {} cannot be registered with {} by their address: {}{}. Setting: "
            "SHOAL_VERBS_GPU_MEMORY",
            reasons, bytes, what, port->label(), error_text(errno),
            heap_->on_host() ? "" : " (kernel module nvidia-peermem)");
    regions.push_back(std::move(region));
  }
  return regions;
}

/// The regions keep the memory of the dma-buf; its descriptor is closed.
std::vector<MemoryRegion> HeapRegistration::register_dma_buf(std::byte* start,
                                                             std::size_t bytes) const {
  for (const Port* const port : ports_)
    require(port->library().reg_dmabuf_mr != nullptr, Code::unsupported,
            "{} has no ibv_reg_dmabuf_mr (since rdma-core 34)", port->library().file);
  const memory::FileDescriptor exported = heap_->device().export_dma_buf(start, bytes);
  std::vector<MemoryRegion> regions;
  for (const Port* const port : ports_)
    regions.push_back(port->register_dma_buf(exported.get(), start, bytes));
  return regions;
}

void HeapRegistration::connect(Pe pe, std::span<const std::byte> blob) {
  StepAddress address;
  if (blob.size() < sizeof address) return;  // a PE without this network
  std::memcpy(&address, blob.data(), sizeof address);
  if (address.bytes == 0) return;
  RemoteStep step{address.offset, address.bytes, {}};
  const std::size_t ports = std::min<std::size_t>(address.ports, kMaxConnections);
  step.memory.assign(address.memory, address.memory + ports);
  remote_[static_cast<std::size_t>(pe)].push_back(std::move(step));
}

void HeapRegistration::roll_back(std::size_t offset) noexcept {
  std::erase_if(steps_, [&](const Step& step) { return step.offset >= offset; });
  for (auto& of_pe : remote_)
    std::erase_if(of_pe, [&](const RemoteStep& step) { return step.offset >= offset; });
}

bool HeapRegistration::contains(const std::byte* local) const noexcept {
  const std::byte* const base = heap_->base(my_pe_);
  return local >= base && local < base + heap_->size();
}

const HeapRegistration::Step* HeapRegistration::find(const std::byte* local) const noexcept {
  return step_at(steps_, static_cast<std::size_t>(local - heap_->base(my_pe_)));
}

std::size_t HeapRegistration::piece(Pe pe, std::size_t offset, const std::byte* local,
                                    std::size_t bytes) const {
  const RemoteStep* const there = step_at(remote_[static_cast<std::size_t>(pe)], offset);
  if (there == nullptr || there->memory.empty()) return 0;
  bytes = std::min(bytes, there->offset + there->bytes - offset);
  if (!contains(local)) return bytes;
  const Step* const here = find(local);
  if (here == nullptr || here->regions.empty()) return 0;
  const auto at = static_cast<std::size_t>(local - heap_->base(my_pe_));
  return std::min(bytes, here->offset + here->bytes - at);
}

std::size_t HeapRegistration::first_step(Pe pe) const {
  return piece(pe, 0, base(), heap_->size());
}

std::string HeapRegistration::describe(Pe pe) const {
  const auto& there = remote_[static_cast<std::size_t>(pe)];
  if (!obstacle_.empty()) return fmt::format("through host memory: {}", obstacle_);
  if (there.empty() || there.back().memory.empty())
    return fmt::format("through host memory: PE {} has not registered its GPU memory", pe);
  return fmt::format("by RDMA ({})", method_);
}

std::uint32_t HeapRegistration::local_key(const std::byte* local, std::size_t port) const noexcept {
  return find(local)->regions[port].local_key();
}

RemoteMemory HeapRegistration::remote(Pe pe, std::size_t offset, std::size_t port) const noexcept {
  const RemoteStep& step = *step_at(remote_[static_cast<std::size_t>(pe)], offset);
  const RemoteMemory& memory = step.memory[port];
  return {memory.base + (offset - step.offset), memory.key};
}

}  // namespace shoal::transport::verbs
