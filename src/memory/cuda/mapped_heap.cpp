// SPDX-License-Identifier: Apache-2.0
// The heap by virtual-memory management. Address space for the whole heap is reserved at the start;
// memory is mapped on demand, on all PEs alike. PEs of this process find each other's memory in the
// shared window. Memory of other processes arrives as a file descriptor or a fabric handle.
#include <algorithm>
#include <cstring>
#include <optional>

#include "base/check.hpp"
#include "memory/cuda/peers.hpp"
#include "memory/cuda/window.hpp"
#include "memory/cuda_backend.hpp"

namespace shoal::memory::cuda {
namespace {

/// Describes added memory to the other PEs. Sent as bytes.
struct MappedAddition {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  CUmemFabricHandle fabric{};
  std::uint64_t socket_name_length = 0;
  char socket_name[108] = {};
};

class MappedHeap final : public PeerHeap {
 public:
  explicit MappedHeap(DeviceHeapContext context);

  std::vector<std::byte> add(std::size_t bytes) override;
  void connect(std::span<const std::vector<std::byte>> blobs, const FdExchange& exchange) override;
  void commit() noexcept override;
  void roll_back() noexcept override;

  std::byte* base(Pe pe) const noexcept override {
    return obstacle(pe).empty() ? window_->base(pe) : nullptr;
  }

 private:
  void export_memory(CUmemGenericAllocationHandle memory, MappedAddition& addition);
  void import_fds(std::span<const MappedAddition> additions, const FdExchange& exchange);
  void import_fabric(Pe pe, const MappedAddition& addition);
  /// Maps memory of another process, or gives this PE's GPU access to memory of this process.
  void reach(Pe pe, const std::optional<CUmemGenericAllocationHandle>& memory);
  void fail_reach(Pe pe, const std::string& reason);

  std::shared_ptr<Window> window_;
  std::optional<FdSocket> socket_;  // open if any PE passes descriptors
  // The value of mapped_ after commit; 0: no memory is being added.
  std::size_t pending_ = 0;
  FileDescriptor exported_;
  bool started_ = false;
};

MappedHeap::MappedHeap(DeviceHeapContext context) : PeerHeap(std::move(context)) {
  const auto n_pes = static_cast<Pe>(context_.devices.size());
  std::size_t alignment = Segment::kAlignment;
  for (const DeviceDescription& one : context_.devices)
    alignment = std::max<std::size_t>(alignment, one.granularity);
  window_ = Window::open(context_.world, n_pes, size_, alignment);
  for (const Peer& peer : peers_)
    if (peer.exchanges_fds && !socket_) socket_.emplace();
}

std::vector<std::byte> MappedHeap::add(std::size_t bytes) {
  MappedAddition addition;
  addition.offset = mapped_;
  addition.bytes = bytes - mapped_;
  // Without a peer in another process nothing is exported, so no request for exportable memory can
  // fail.
  const bool exports = std::any_of(peers_.begin(), peers_.end(), [](const Peer& peer) {
    return !peer.same_process && peer.obstacle.empty();
  });
  const auto kind = !exports ? CU_MEM_HANDLE_TYPE_NONE
                    : context_.handle == HandleKind::fabric
                        ? CU_MEM_HANDLE_TYPE_FABRIC
                        : CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  const CUmemAllocationProp properties =
      heap_properties(device_->device, kind, device_->nic_access().obstacle.empty());
  CUmemGenericAllocationHandle memory{};
  check(driver_, driver_.mem_create(&memory, addition.bytes, &properties, 0),
        fmt::format(
            "SHOAL-N710: cannot allocate {} more bytes on GPU {} for the symmetric heap of PE {}, "
            "which has {} of at most {} bytes",
            addition.bytes, device_->device, context_.my_pe, mapped_, size_),
        "SHOAL_SYMMETRIC_SIZE");
  try {
    if (exports) export_memory(memory, addition);
  } catch (...) {
    driver_.mem_release(memory);
    throw;
  }
  window_->map(context_.my_pe, addition.offset, addition.bytes, memory);
  pending_ = bytes;
  try {
    check(driver_, window_->grant(context_.my_pe, addition.offset, device_->device),
          fmt::format("SHOAL-N713: cannot grant GPU {} access to {} bytes of its symmetric heap",
                      device_->device, addition.bytes),
          "SHOAL_SYMMETRIC_SIZE");
  } catch (...) {
    roll_back();
    throw;
  }
  return to_blob(addition);
}

void MappedHeap::export_memory(CUmemGenericAllocationHandle memory, MappedAddition& addition) {
  const auto what = [&] {
    return fmt::format("SHOAL-N712: cannot export {} bytes of GPU {} as a handle of kind {}",
                       addition.bytes, device_->device, name_of(context_.handle));
  };
  if (context_.handle == HandleKind::fabric) {
    check(driver_, driver_.mem_export(&addition.fabric, memory, CU_MEM_HANDLE_TYPE_FABRIC, 0),
          what(), "SHOAL_CUDA_HANDLE");
    return;
  }
  int fd = -1;
  check(driver_, driver_.mem_export(&fd, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
        what(), "SHOAL_CUDA_HANDLE");
  exported_ = FileDescriptor(fd);
  const std::string& name = socket_->name();
  require(name.size() <= sizeof addition.socket_name, Code::system,
          "SHOAL-N714: the kernel chose a socket name of {} bytes; allowed: up to {}", name.size(),
          sizeof addition.socket_name);
  addition.socket_name_length = name.size();
  std::memcpy(addition.socket_name, name.data(), name.size());
}

void MappedHeap::connect(std::span<const std::vector<std::byte>> blobs,
                         const FdExchange& exchange) {
  const auto additions = from_blobs<MappedAddition>(blobs);
  const auto me = static_cast<std::size_t>(context_.my_pe);
  for (std::size_t pe = 0; pe < blobs.size(); ++pe)
    require(
        additions[pe].offset == additions[me].offset && additions[pe].bytes == additions[me].bytes,
        Code::mismatch,
        "SHOAL-N715: PE {} adds {} bytes at heap offset {}, PE {} adds {} bytes at heap offset {}",
        pe, additions[pe].bytes, additions[pe].offset, me, additions[me].bytes,
        additions[me].offset);
  if (socket_) import_fds(additions, exchange);
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    const auto pe = static_cast<Pe>(i);
    if (i == me || !peers_[i].obstacle.empty()) continue;
    if (peers_[i].same_process) reach(pe, std::nullopt);
    if (!peers_[i].same_process && context_.handle == HandleKind::fabric)
      import_fabric(pe, additions[i]);
  }
}

void MappedHeap::import_fds(std::span<const MappedAddition> additions, const FdExchange& exchange) {
  std::vector<FdPeer> passing;
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    if (!peers_[i].exchanges_fds) continue;
    const std::size_t length =
        std::min<std::size_t>(additions[i].socket_name_length, sizeof additions[i].socket_name);
    passing.push_back({static_cast<Pe>(i), std::string(additions[i].socket_name, length)});
  }
  const auto received = exchange_fds(*socket_, exported_.get(), passing, exchange);
  exported_ = FileDescriptor();
  for (const ReceivedFd& from : received) {
    if (!obstacle(from.pe).empty()) continue;
    CUmemGenericAllocationHandle memory{};
    const auto descriptor = static_cast<std::intptr_t>(from.fd.get());
    const CUresult result =
        driver_.mem_import(&memory, reinterpret_cast<void*>(descriptor),  // NOLINT
                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (result != CUDA_SUCCESS) {
      fail_reach(from.pe, "its memory cannot be imported: " + describe(driver_, result));
    } else {
      reach(from.pe, memory);
    }
  }
}

void MappedHeap::import_fabric(Pe pe, const MappedAddition& addition) {
  CUmemGenericAllocationHandle memory{};
  CUmemFabricHandle handle = addition.fabric;
  const CUresult result = driver_.mem_import(&memory, &handle, CU_MEM_HANDLE_TYPE_FABRIC);
  if (result != CUDA_SUCCESS)
    return fail_reach(
        pe, "its memory cannot be imported as a fabric handle: " + describe(driver_, result));
  reach(pe, memory);
}

void MappedHeap::reach(Pe pe, const std::optional<CUmemGenericAllocationHandle>& memory) {
  try {
    if (memory) window_->map(pe, mapped_, pending_ - mapped_, *memory);
  } catch (const Error& error) {
    return fail_reach(pe, error.what());
  }
  if (const CUresult result = window_->grant(pe, mapped_, device_->device); result != CUDA_SUCCESS)
    fail_reach(pe, fmt::format("GPU {} cannot access its memory: {}", device_->device,
                               describe(driver_, result)));
}

void MappedHeap::fail_reach(Pe pe, const std::string& reason) {
  // At the start an unreachable pair is reported. A heap that was reachable must stay reachable.
  require(!started_, Code::system,
          "SHOAL-N711: the symmetric heap cannot grow to {} bytes: PE {}: {}", pending_, pe,
          reason);
  peers_[static_cast<std::size_t>(pe)].obstacle = reason;
}

void MappedHeap::commit() noexcept {
  mapped_ = pending_;
  pending_ = 0;
  started_ = true;
}

void MappedHeap::roll_back() noexcept {
  if (pending_ == 0) return;
  for (std::size_t pe = 0; pe < peers_.size(); ++pe)
    if (!peers_[pe].same_process || static_cast<Pe>(pe) == context_.my_pe)
      window_->unmap(static_cast<Pe>(pe), mapped_);
  exported_ = FileDescriptor();
  pending_ = 0;
}

}  // namespace

std::unique_ptr<DeviceHeap> make_mapped_heap(DeviceHeapContext context) {
  return std::make_unique<MappedHeap>(std::move(context));
}

}  // namespace shoal::memory::cuda
