// SPDX-License-Identifier: Apache-2.0
// array.hpp: memory of kernels on a fake GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/align.hpp"

namespace shoal::test::fake_gpu {

/// Memory, aligned as that of a GPU. Each byte is `fill` at first.
template <typename T>
class Array {
 public:
  explicit Array(std::size_t count = 0, int fill = 0)
      : bytes_((count + 1) * sizeof(T) + kPageBytes) {
    std::memset(bytes_.data(), fill, bytes_.size());
  }
  /// Memory of others.
  explicit Array(T* memory) : memory_(memory) {}
  T* data() {
    if (memory_ != nullptr) return memory_;
    return reinterpret_cast<T*>(
        align_up(reinterpret_cast<std::uintptr_t>(bytes_.data()), kPageBytes));
  }
  T& operator[](std::size_t i) { return data()[i]; }

 private:
  std::vector<std::byte> bytes_;
  T* memory_ = nullptr;
};

}  // namespace shoal::test::fake_gpu
