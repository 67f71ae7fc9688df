// SPDX-License-Identifier: Apache-2.0
// peers.hpp: which PEs' heaps can be mapped here, what works on them, and what heaps of all kinds
// have in common.
#pragma once

#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "memory/cuda/driver.hpp"
#include "memory/device_heap.hpp"

namespace shoal::memory::cuda {

/// One PE's heap as this PE sees it.
struct Peer {
  bool same_process = false;
  /// Both are on one host, in different processes, and file descriptors can pass between them.
  bool exchanges_fds = false;
  bool atomics = true;   ///< of this PE's GPU on that memory work
  std::string obstacle;  ///< why it is out of reach; empty if it is reachable
};

/// Collects the facts that are known before anything is mapped: processes, hosts, and the driver's
/// report about each pair of GPUs. It cannot report on a GPU that is hidden from this process; then
/// mapping decides, and atomics are assumed to work.
std::vector<Peer> survey_peers(const Driver& driver, const DeviceHeapContext& context);

/// The CUDA device number in this process of the GPU with this uuid; nullopt if it is hidden.
std::optional<int> visible_device(const Driver& driver, const std::array<std::byte, 16>& uuid);

/// Lets kernels and copies in the context of `device` use memory of the ordinary allocators on GPU
/// `other` of this process. Returns the reason of a failure; empty on success.
std::string enable_peer_access(const Driver& driver, const Device& device, int other);

/// The primary context of a GPU, retained once and never released, because a later world can use
/// kernels that the CUDA runtime has loaded into it.
CUcontext primary_context(const Driver& driver, CUdevice device);

class PeerHeap : public DeviceHeap {
 public:
  const std::string& obstacle(Pe pe) const noexcept override {
    return peers_[static_cast<std::size_t>(pe)].obstacle;
  }
  bool atomics(Pe pe) const noexcept override {
    return peers_[static_cast<std::size_t>(pe)].atomics;
  }

 protected:
  explicit PeerHeap(DeviceHeapContext context)
      : DeviceHeap(context.device, context.bytes, device_heap_unit(context.devices)),
        driver_(driver()),
        context_(std::move(context)),
        peers_(survey_peers(driver_, context_)) {}

  /// Describes added memory to the other PEs.
  template <typename Addition>
  static std::vector<std::byte> to_blob(const Addition& addition) {
    static_assert(sizeof addition <= kBlobBytes);
    std::vector<std::byte> blob(sizeof addition);
    std::memcpy(blob.data(), &addition, sizeof addition);
    return blob;
  }
  /// The descriptions of all PEs. Throws Error{mismatch}.
  template <typename Addition>
  static std::vector<Addition> from_blobs(std::span<const std::vector<std::byte>> blobs) {
    std::vector<Addition> additions(blobs.size());
    for (std::size_t pe = 0; pe < blobs.size(); ++pe) {
      require(
          blobs[pe].size() == sizeof(Addition), Code::mismatch,
          "SHOAL-N717: PE {} describes its GPU memory in {} bytes, expected {}: the versions of "
          "Shoal differ",
          pe, blobs[pe].size(), sizeof(Addition));
      std::memcpy(&additions[pe], blobs[pe].data(), sizeof(Addition));
    }
    return additions;
  }

  const Driver& driver_;
  DeviceHeapContext context_;
  std::vector<Peer> peers_;  // by PE
};

/// A heap that is one allocation of the full size.
class WholeHeap : public PeerHeap {
 public:
  void commit() noexcept override { mapped_ = size_; }
  std::byte* base(Pe pe) const noexcept override { return bases_[static_cast<std::size_t>(pe)]; }

 protected:
  explicit WholeHeap(DeviceHeapContext context)
      : PeerHeap(std::move(context)), bases_(peers_.size()) {}

  std::vector<std::byte*> bases_;  // by PE
};

}  // namespace shoal::memory::cuda
