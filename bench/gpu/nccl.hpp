// SPDX-License-Identifier: Apache-2.0
// nccl.hpp: NCCL's collectives, for comparison. The library is opened at run time; its interface is
// declared here from its documentation.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <string>

#include "gpu/bench.hpp"

namespace shoal::bench::gpu {

/// A communicator of all PEs, each on a GPU of its own.
class Nccl {
 public:
  /// Collective. nullptr, with the reason on PE 0's output, where libnccl.so.2 cannot be opened on
  /// a PE, is older than 2.19, or PEs share a GPU.
  static std::unique_ptr<Nccl> open(Peers& peers, int pes_on_device);
  ~Nccl();
  Nccl(const Nccl&) = delete;
  Nccl& operator=(const Nccl&) = delete;

  /// Such as "2.28.9".
  std::string version() const;
  /// Memory that NCCL may use as a symmetric window; nullptr where this version has none.
  /// Collective. Freed with the communicator.
  void* window(std::size_t bytes);

  void all_reduce_bf16(const void* source, void* target, std::size_t count, cudaStream_t stream);
  void all_gather(const void* source, void* target, std::size_t bytes, cudaStream_t stream);
  void reduce_scatter_bf16(const void* source, void* target, std::size_t count,
                           cudaStream_t stream);
  void broadcast(const void* source, void* target, std::size_t bytes, cudaStream_t stream);
  /// `bytes` bytes per pair of PEs, by grouped sends and receives.
  void all_to_all(const void* source, void* target, std::size_t bytes, cudaStream_t stream);

 private:
  struct Library;
  Nccl(std::unique_ptr<Library> library, Peers& peers);
  void check(int result, const char* what) const;

  std::unique_ptr<Library> library_;
  Peers& peers_;
  void* communicator_ = nullptr;
  std::vector<std::pair<void*, void*>> windows_;  ///< memory and handle
};

}  // namespace shoal::bench::gpu
