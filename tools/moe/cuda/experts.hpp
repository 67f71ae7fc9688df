// SPDX-License-Identifier: Apache-2.0
// experts.hpp: the experts of one PE on its GPU. Like moe/experts.hpp, but in bfloat16 with float32
// sums: two matrix products per expert, and the activation between them.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "moe/cuda/blas.hpp"
#include "moe/cuda/kernels.hpp"
#include "moe/experts.hpp"

namespace shoal::moe {

/// GPU memory of a stream, allocated and freed in stream order, so no call waits for the GPU or for
/// other PEs on it. Its contents are undefined.
class StreamMemory {
 public:
  StreamMemory() = default;
  StreamMemory(std::size_t bytes, cudaStream_t stream);
  template <typename T>
  T* as() const {
    return static_cast<T*>(memory_.get());
  }
  std::size_t bytes() const { return bytes_; }
  const std::shared_ptr<void>& owner() const { return memory_; }
  /// Provides at least `bytes`. The contents are lost if the memory grows.
  void reserve(std::size_t bytes, cudaStream_t stream);

 private:
  std::shared_ptr<void> memory_;
  std::size_t bytes_ = 0;
};

class CudaExperts {
 public:
  /// Loads the weights of experts [first_expert, first_expert + shape.local_experts()), rounded to
  /// bfloat16.
  CudaExperts(const std::shared_ptr<const CublasLt>& library, const Options& options,
              const Shape& shape, std::int32_t first_expert, cudaStream_t stream);

  /// Queues the products for `counts[e]` rows of each expert. `pack` fills Packed::x, `unpack`
  /// reads Packed::y; both only queue kernels on the stream.
  using Move = std::function<void(const Packed&)>;
  void run(std::span<const std::int64_t> counts, const Move& pack, const Move& unpack);

 private:
  const std::uint16_t* gate_up(std::size_t expert) const;
  const std::uint16_t* down(std::size_t expert) const;
  /// Sets first_row_; returns the number of rows including the gaps.
  std::int64_t lay_out(std::span<const std::int64_t> counts);

  /// width_ is ffn rounded up to a multiple of 16; the padding is zero.
  std::int64_t hidden_, width_;
  cudaStream_t stream_;
  Products first_, second_;
  StreamMemory weights_, workspace_, first_row_memory_, x_, gate_up_, inner_, y_;
  std::vector<std::int32_t> first_row_;
};

}  // namespace shoal::moe
