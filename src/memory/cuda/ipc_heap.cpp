// SPDX-License-Identifier: Apache-2.0
// The fallback by CUDA IPC, for GPUs without virtual-memory management or on request. Each heap is
// one allocation of the full size, which every process opens at an address of the driver's choice.
// No window, no growth.
#include <algorithm>

#include "base/check.hpp"
#include "memory/cuda/peers.hpp"
#include "memory/cuda_backend.hpp"

namespace shoal::memory::cuda {
namespace {

struct IpcAddition {
  std::uint64_t address = 0;  ///< of the heap in its own process
  std::uint64_t skipped = 0;  ///< bytes of the allocation before the heap
  CUipcMemHandle handle{};
};

class IpcHeap final : public WholeHeap {
 public:
  explicit IpcHeap(DeviceHeapContext context)
      : WholeHeap(std::move(context)), opened_(peers_.size()) {}
  ~IpcHeap() override {
    try {
      device_->activate();
    } catch (const Error&) {
      return;  // nothing can be released without a context; the memory is freed with the process
    }
    for (const CUdeviceptr opened : opened_)
      if (opened != 0) driver_.ipc_close(opened);
    roll_back();
  }

  std::vector<std::byte> add(std::size_t bytes) override;
  void connect(std::span<const std::vector<std::byte>> blobs, const FdExchange& exchange) override;
  void roll_back() noexcept override {
    if (allocation_ != 0) driver_.mem_free(allocation_);
    allocation_ = 0;
  }

 private:
  void open_peer(std::size_t pe, const IpcAddition& addition);

  std::vector<CUdeviceptr> opened_;  // by PE: the results of ipc_open
  CUdeviceptr allocation_ = 0;
};

std::vector<std::byte> IpcHeap::add(std::size_t) {
  device_->activate();
  check(driver_, driver_.mem_alloc(&allocation_, size_ + Segment::kAlignment),
        fmt::format(
            "SHOAL-N710: cannot allocate {} bytes on GPU {} for the symmetric heap of PE {}, which "
            "CUDA IPC needs as a whole",
            size_ + Segment::kAlignment, device_->device, context_.my_pe),
        "SHOAL_SYMMETRIC_SIZE, SHOAL_CUDA_HANDLE");
  IpcAddition addition;
  addition.skipped =
      (Segment::kAlignment - allocation_ % Segment::kAlignment) % Segment::kAlignment;
  addition.address = allocation_ + addition.skipped;
  if (std::any_of(peers_.begin(), peers_.end(),
                  [](const Peer& peer) { return !peer.same_process; })) {
    const CUresult result = driver_.ipc_get(&addition.handle, allocation_);
    if (result != CUDA_SUCCESS) roll_back();
    check(driver_, result,
          fmt::format("SHOAL-N712: cannot export the heap on GPU {} by CUDA IPC", device_->device),
          "SHOAL_CUDA_HANDLE");
  }
  return to_blob(addition);
}

void IpcHeap::connect(std::span<const std::vector<std::byte>> blobs, const FdExchange&) {
  device_->activate();
  const auto additions = from_blobs<IpcAddition>(blobs);
  for (std::size_t pe = 0; pe < additions.size(); ++pe)
    if (peers_[pe].obstacle.empty()) open_peer(pe, additions[pe]);
}

void IpcHeap::open_peer(std::size_t pe, const IpcAddition& addition) {
  Peer& peer = peers_[pe];
  if (!peer.same_process) {
    const CUresult result =
        driver_.ipc_open(&opened_[pe], addition.handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    if (result != CUDA_SUCCESS) {
      opened_[pe] = 0;
      peer.obstacle = "CUDA IPC cannot open its memory: " + describe(driver_, result);
      return;
    }
    bases_[pe] = reinterpret_cast<std::byte*>(opened_[pe] + addition.skipped);
    return;
  }
  if (const std::string reason =
          enable_peer_access(driver_, *device_, context_.devices[pe].ordinal);
      !reason.empty()) {
    peer.obstacle = reason;
    return;
  }
  bases_[pe] = reinterpret_cast<std::byte*>(addition.address);
}

}  // namespace

std::unique_ptr<DeviceHeap> make_ipc_heap(DeviceHeapContext context) {
  return std::make_unique<IpcHeap>(std::move(context));
}

}  // namespace shoal::memory::cuda
