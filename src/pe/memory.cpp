// SPDX-License-Identifier: Apache-2.0
#include "pe/memory.hpp"

#include <algorithm>

#include "base/align.hpp"
#include "base/check.hpp"
#include "pe/agreement.hpp"
#include "transport/heap_transport.hpp"

namespace shoal::detail {

std::int32_t Placement::pes_on_host() const noexcept {
  return static_cast<std::int32_t>(std::count(host_of.begin(), host_of.end(), host_of[me()]));
}

void Memory::plan(const Placement& placement, const Settings& settings) {
  my_pe_ = placement.my_pe;
  layout_ = ControlLayout(placement.n_pes, settings.max_teams);
}

memory::DeviceDescription Memory::open_device(const Placement& placement,
                                              const Settings& settings) {
  memory::DeviceRequest request;
  request.ordinal = settings.device;
  request.index = placement.index_on_host[placement.me()];
  request.probe_fabric =
      settings.cuda_handle == "fabric" ||
      (settings.cuda_handle == "automatic" && placement.pes_on_host() != placement.n_pes);
  request.timeout = settings.timeout;
  device_ = memory::open_device(request);
  return device_->description();
}

std::vector<std::byte> Memory::create_heap(const Placement& placement, const Settings& settings) {
  if (!device_) {
    const std::size_t bytes = heap_bytes(settings);
    transport_staging_ = layout_.bytes() + bytes;
    segment_ = memory::Segment::create(transport_staging_);
    heap_ = memory::Allocator(heap_size());
    return {};
  }
  const std::size_t staging = align_up(settings.staging_size, kPageBytes);
  transport_staging_ = layout_.bytes() + staging;
  segment_ = memory::Segment::create(
      transport_staging_ +
      align_up(transport::heap_staging(placement.n_pes, settings), kPageBytes));
  memory::DeviceHeapContext context;
  context.device = device_;
  context.my_pe = placement.my_pe;
  context.devices = devices_;
  context.host_of = placement.host_of;
  context.handle = memory::choose_handle(settings.cuda_handle, devices_, placement.host_of);
  context.bytes = memory::device_heap_bytes(settings.symmetric_size, devices_);
  context.world = placement.token;
  device_heap_ = memory::make_device_heap(std::move(context));
  std::vector<std::byte> created = device_heap_->add(device_heap_->step(1));
  heap_ = memory::Allocator(heap_size());
  staging_ = memory::Allocator(staging);
  return created;
}

void Memory::connect_heap(std::span<const std::vector<std::byte>> created,
                          const memory::FdExchange& exchange) {
  device_heap_->connect(created, exchange);
  device_heap_->commit();
}

void Memory::release() noexcept {
  map_ = {};
  shared_ranges_.clear();
  shared_buffers_.reset();
  device_heap_.reset();
  device_.reset();
  segment_.reset();
}

SharedBufferTable& Memory::shared_buffers() {
  if (!shared_buffers_) {
    auto table = std::make_unique<SharedBufferTable>();
    table->mappings = memory::make_shared_buffers(device_);
    const bool several_processes =
        std::any_of(devices_.begin(), devices_.end(), [&](const memory::DeviceDescription& one) {
          return !(one.process == device_of(my_pe_).process);
        });
    if (several_processes) table->socket.emplace();
    shared_buffers_ = std::move(table);
  }
  return *shared_buffers_;
}

}  // namespace shoal::detail
