// SPDX-License-Identifier: Apache-2.0
// experts.hpp: the experts of one PE on its GPU, as in shoal_moe_experts.hpp but in bfloat16 with
// float32 sums: two matrix products an expert and the activation between them.
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

/// GPU memory that lives on a stream: taken and freed in its order, so that no call waits for the
/// GPU or for other PEs on it. Contents undefined.
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
  /// Room for at least `bytes`; what was there is lost when there was less.
  void reserve(std::size_t bytes, cudaStream_t stream);

 private:
  std::shared_ptr<void> memory_;
  std::size_t bytes_ = 0;
};

class CudaExperts {
 public:
  /// Loads the weights of experts first_expert .. + shape.local_experts() - 1, rounded to bfloat16.
  CudaExperts(const std::shared_ptr<const CublasLt>& library, const Options& options,
              const Shape& shape, std::int32_t first_expert, cudaStream_t stream);

  /// counts: rows of each expert. `pack` fills Packed::x, `unpack` takes Packed::y from it; both
  /// only put kernels on the stream, as this does.
  using Move = std::function<void(const Packed&)>;
  void run(std::span<const std::int64_t> counts, const Move& pack, const Move& unpack);

 private:
  const std::uint16_t* gate_up(std::size_t expert) const;
  const std::uint16_t* down(std::size_t expert) const;
  /// Where the rows of each expert begin; returns how many rows there are with the gaps.
  std::int64_t lay_out(std::span<const std::int64_t> counts);

  std::int64_t hidden_, width_;  ///< width_: ffn with zeros to a multiple of 16
  cudaStream_t stream_;
  Products first_, second_;
  StreamMemory weights_, workspace_, first_row_memory_, x_, gate_up_, inner_, y_;
  std::vector<std::int32_t> first_row_;
};

}  // namespace shoal::moe
