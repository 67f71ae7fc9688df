// SPDX-License-Identifier: Apache-2.0
// The heap in pinned host memory, for NICs that do not reach GPU memory, such as the emulated one:
// GPU, NIC and host use the same addresses. Each heap is one allocation of the full size, which
// other processes and other GPUs do not reach.
#include "base/align.hpp"
#include "base/check.hpp"
#include "memory/cuda/peers.hpp"
#include "memory/cuda_backend.hpp"

namespace shoal::memory::cuda {
namespace {

class PinnedHeap final : public WholeHeap {
 public:
  explicit PinnedHeap(DeviceHeapContext context) : WholeHeap(std::move(context)) {
    const DeviceDescription& mine = context_.devices[static_cast<std::size_t>(context_.my_pe)];
    for (std::size_t pe = 0; pe < peers_.size(); ++pe) {
      peers_[pe].exchanges_fds = false;
      // Atomics of two GPUs may not be atomic towards each other in memory of the host.
      if (!peers_[pe].same_process || context_.devices[pe].uuid != mine.uuid)
        peers_[pe].obstacle =
            "SHOAL-N718: in another process or on another GPU, which SHOAL_CUDA_HANDLE=pinned does "
            "not reach";
    }
  }
  ~PinnedHeap() override {
    try {
      device_->activate();
    } catch (const Error&) {
      return;  // the memory is freed with the process
    }
    roll_back();
  }

  std::vector<std::byte> add(std::size_t) override {
    device_->activate();
    check(driver_,
          driver_.host_alloc(&allocation_, size_ + Segment::kAlignment,
                             CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP),
          fmt::format(
              "SHOAL-N719: cannot pin {} bytes of host memory for the symmetric heap of PE {}",
              size_ + Segment::kAlignment, context_.my_pe),
          "SHOAL_SYMMETRIC_SIZE, SHOAL_CUDA_HANDLE");
    const auto start = align_up(reinterpret_cast<std::uintptr_t>(allocation_), Segment::kAlignment);
    return to_blob(start);
  }
  void connect(std::span<const std::vector<std::byte>> blobs, const FdExchange&) override {
    const auto starts = from_blobs<std::uintptr_t>(blobs);
    for (std::size_t pe = 0; pe < starts.size(); ++pe)
      if (peers_[pe].obstacle.empty()) bases_[pe] = reinterpret_cast<std::byte*>(starts[pe]);
  }
  void roll_back() noexcept override {
    if (allocation_ != nullptr) driver_.host_free(allocation_);
    allocation_ = nullptr;
  }
  bool on_host() const noexcept override { return true; }

 private:
  void* allocation_ = nullptr;
};

}  // namespace

std::unique_ptr<DeviceHeap> make_pinned_heap(DeviceHeapContext context) {
  return std::make_unique<PinnedHeap>(std::move(context));
}

}  // namespace shoal::memory::cuda
