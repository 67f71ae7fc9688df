// SPDX-License-Identifier: Apache-2.0
// share.hpp: checks of share_buffer for worlds with their heap in GPU memory, on a real driver or a
// fake one. Every PE calls. Only in builds with CUDA.
#pragma once
#ifdef SHOAL_WITH_CUDA

#include <cstddef>
#include <vector>

#include "shoal/world.hpp"

namespace shoal::test {

/// GPU memory of a PE that Shoal did not allocate.
class ForeignMemory {
 public:
  enum class Kind { malloc, mapped, mapped_in_two_pieces, mapped_without_handle };
  ForeignMemory(const World& world, std::size_t bytes, Kind kind);
  ~ForeignMemory();
  ForeignMemory(const ForeignMemory&) = delete;
  ForeignMemory& operator=(const ForeignMemory&) = delete;

  std::byte* data() const noexcept { return base_; }

 private:
  const World& world_;
  Kind kind_;
  std::byte* base_ = nullptr;
  std::size_t bytes_;
  std::size_t piece_ = 0;
};

/// Copies between host and any GPU address that this PE reaches.
void copy_bytes(const World& world, void* target, const void* source, std::size_t bytes);

/// Every PE reads and writes the buffers of all other PEs, of each kind. Also shares again, and
/// shares parts, the heap, nothing, and different sizes.
void check_sharing(World& world);

}  // namespace shoal::test

#endif
