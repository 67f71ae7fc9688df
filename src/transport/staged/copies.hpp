// SPDX-License-Identifier: Apache-2.0
// copies.hpp: between chunks in host memory and wherever a caller's buffer lies.
#pragma once

#include <cstddef>

#include "memory/cuda/driver.hpp"
#include "memory/device.hpp"

namespace shoal::transport::staged {

/// `count` elements of `element` bytes, apart by this pitch.
struct Elements {
  std::byte* start;
  std::size_t element, count, pitch;
};

class Copies {
 public:
  explicit Copies(const memory::Device& device)
      : driver_(memory::cuda::driver()), device_(device) {}

  // Complete when they return. Throw Error{system, timeout}.
  void to_chunk(std::byte* chunk, const Elements& source) const;
  void from_chunk(const Elements& target, const std::byte* chunk) const;

  /// Pins the memory, so that copies need no second one. Failing is no error: slower copies.
  void pin(void* memory, std::size_t bytes);
  void unpin() noexcept;

 private:
  bool on_gpu(const void* pointer) const;
  void rows(const Elements& target, const Elements& source) const;

  const memory::cuda::Driver& driver_;
  const memory::Device& device_;
  void* pinned_ = nullptr;
};

}  // namespace shoal::transport::staged
