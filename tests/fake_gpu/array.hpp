// SPDX-License-Identifier: Apache-2.0
// array.hpp: memory of kernels on a fake GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

#include "base/align.hpp"

namespace shoal::test::fake_gpu {

/// Memory, aligned as that of a GPU. Each byte is `fill` at first.
///
/// Zeros come from the kernel when a page is first touched: much of the memory of most tests never
/// is.
template <typename T>
class Array {
 public:
  explicit Array(std::size_t count = 0, int fill = 0) {
    const std::size_t bytes = (count + 1) * sizeof(T) + kPageBytes;
    bytes_.reset(static_cast<std::byte*>(std::calloc(bytes, 1)));
    if (!bytes_) throw std::bad_alloc();
    if (fill != 0) std::memset(bytes_.get(), fill, bytes);
  }
  /// Memory of others.
  explicit Array(T* memory) : memory_(memory) {}
  T* data() {
    if (memory_ != nullptr) return memory_;
    return reinterpret_cast<T*>(
        align_up(reinterpret_cast<std::uintptr_t>(bytes_.get()), kPageBytes));
  }
  T& operator[](std::size_t i) { return data()[i]; }

 private:
  struct Free {
    void operator()(std::byte* bytes) const { std::free(bytes); }
  };
  std::unique_ptr<std::byte[], Free> bytes_;
  T* memory_ = nullptr;
};

}  // namespace shoal::test::fake_gpu
