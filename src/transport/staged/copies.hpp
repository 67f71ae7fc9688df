// SPDX-License-Identifier: Apache-2.0
// copies.hpp: copies between chunks in host memory and a caller's buffer, on the host or a GPU.
#pragma once

#include <cstddef>

#include "memory/cuda/copies.hpp"
#include "memory/device.hpp"

namespace shoal::transport::staged {

using memory::cuda::Elements;

class Copies {
 public:
  explicit Copies(const memory::Device& device)
      : driver_(memory::cuda::driver()), device_(device) {}

  // Both are complete when they return. Throw Error{system} and Error{timeout}.
  void to_chunk(std::byte* chunk, const Elements& source) const;
  void from_chunk(const Elements& target, const std::byte* chunk) const;

  bool on_gpu(const void* pointer) const;

  /// Pins the memory, so that copies with the GPU need no intermediate buffer. Where that fails,
  /// copies are slower.
  void pin(void* memory, std::size_t bytes);
  void unpin() noexcept;

 private:
  void rows(const Elements& target, const Elements& source) const;

  const memory::cuda::Driver& driver_;
  const memory::Device& device_;
  void* pinned_ = nullptr;
};

}  // namespace shoal::transport::staged
