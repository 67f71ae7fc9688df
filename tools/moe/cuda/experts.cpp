// SPDX-License-Identifier: Apache-2.0
#include "moe/cuda/experts.hpp"

#include <algorithm>
#include <limits>

#include "base/align.hpp"
#include "base/check.hpp"
#include "ep/numeric/float16.hpp"

namespace shoal::moe {

namespace {

using ep::numeric::Bf16;

// 16 rows of a multiple of 8 bfloat16 values take a multiple of Products::kAlignment bytes. So does
// a matrix of such a width with a multiple of 16 rows.
constexpr std::int64_t kRowMultiple = 16;
static_assert(kRowMultiple * 8 * sizeof(Bf16) % Products::kAlignment == 0);

/// Copies rows of `width` values to consecutive places from `target`, `stride` apart.
void store_rows(const std::vector<float>& rows, std::int64_t width, Bf16* target,
                std::int64_t stride) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto at = static_cast<std::int64_t>(i);
    target[at / width * stride + at % width] = ep::numeric::to_bf16(rows[i]);
  }
}

}  // namespace

StreamMemory::StreamMemory(std::size_t bytes, cudaStream_t stream) : bytes_(bytes) {
  void* memory = nullptr;
  check_cuda(cudaMallocAsync(&memory, std::max<std::size_t>(bytes, 16), stream),
             "GPU memory of the experts");
  memory_ = {memory, [stream](void* pointer) { (void)cudaFreeAsync(pointer, stream); }};
}

void StreamMemory::reserve(std::size_t bytes, cudaStream_t stream) {
  if (bytes <= bytes_ && memory_) return;
  *this = StreamMemory();
  *this = StreamMemory(bytes, stream);
}

CudaExperts::CudaExperts(const std::shared_ptr<const CublasLt>& library, const Options& options,
                         const Shape& shape, std::int32_t first_expert, cudaStream_t stream)
    : hidden_(shape.hidden),
      width_(static_cast<std::int64_t>(align_up(shape.ffn, kRowMultiple))),
      stream_(stream),
      first_(library, 2 * width_, hidden_),
      second_(library, hidden_, width_),
      weights_(
          static_cast<std::size_t>(shape.local_experts() * 3 * hidden_ * width_) * sizeof(Bf16),
          stream),
      workspace_(Products::kWorkspaceBytes, stream),
      first_row_memory_(static_cast<std::size_t>(shape.local_experts()) * sizeof(std::int32_t),
                        stream),
      first_row_(static_cast<std::size_t>(shape.local_experts())) {
  WeightSource source(options, shape);
  for (std::int32_t e = 0; e < shape.local_experts(); ++e) {
    const ExpertWeights expert = source.load(first_expert + e);
    // [hidden, gate | up], then [ffn, hidden]. The padding up to width_ is zero and adds nothing.
    std::vector<Bf16> packed(static_cast<std::size_t>(3 * hidden_ * width_), Bf16{0});
    store_rows(expert.gate, shape.ffn, packed.data(), 2 * width_);
    store_rows(expert.up, shape.ffn, packed.data() + width_, 2 * width_);
    store_rows(expert.down, hidden_, packed.data() + 2 * hidden_ * width_, hidden_);
    check_cuda(cudaMemcpyAsync(weights_.as<Bf16>() + e * 3 * hidden_ * width_, packed.data(),
                               packed.size() * sizeof(Bf16), cudaMemcpyHostToDevice, stream_),
               "copying an expert's weights to the GPU");
    check_cuda(cudaStreamSynchronize(stream_), "copying an expert's weights to the GPU");
  }
}

const std::uint16_t* CudaExperts::gate_up(std::size_t expert) const {
  return weights_.as<std::uint16_t>() + static_cast<std::int64_t>(expert) * 3 * hidden_ * width_;
}
const std::uint16_t* CudaExperts::down(std::size_t expert) const {
  return gate_up(expert) + 2 * hidden_ * width_;
}

std::int64_t CudaExperts::lay_out(std::span<const std::int64_t> counts) {
  std::int64_t rows = 0;
  for (std::size_t e = 0; e < counts.size(); ++e) {
    require(rows <= std::numeric_limits<std::int32_t>::max(), Code::unsupported,
            "{} rows for the experts of one PE", rows);
    first_row_[e] = static_cast<std::int32_t>(rows);
    rows += static_cast<std::int64_t>(align_up(counts[e], kRowMultiple));
  }
  check_cuda(
      cudaMemcpyAsync(first_row_memory_.as<std::int32_t>(), first_row_.data(),
                      first_row_.size() * sizeof(std::int32_t), cudaMemcpyHostToDevice, stream_),
      "copying the first rows of experts");
  return rows;
}

void CudaExperts::run(std::span<const std::int64_t> counts, const Move& pack, const Move& unpack) {
  const std::int64_t rows = lay_out(counts);
  x_.reserve(static_cast<std::size_t>(rows * hidden_) * sizeof(Bf16), stream_);
  gate_up_.reserve(static_cast<std::size_t>(rows * 2 * width_) * sizeof(float), stream_);
  inner_.reserve(static_cast<std::size_t>(rows * width_) * sizeof(Bf16), stream_);
  y_.reserve(static_cast<std::size_t>(rows * hidden_) * sizeof(float), stream_);
  const Packed packed{x_.as<std::uint16_t>(), y_.as<float>(), first_row_memory_.as<std::int32_t>()};
  pack(packed);
  for (std::size_t e = 0; e < counts.size(); ++e)
    if (counts[e] > 0)
      first_.run(packed.x + first_row_[e] * hidden_, gate_up(e),
                 gate_up_.as<float>() + first_row_[e] * 2 * width_, counts[e],
                 workspace_.as<void>(), stream_);
  activate(stream_, gate_up_.as<float>(), inner_.as<std::uint16_t>(), rows, width_);
  for (std::size_t e = 0; e < counts.size(); ++e)
    if (counts[e] > 0)
      second_.run(inner_.as<std::uint16_t>() + first_row_[e] * width_, down(e),
                  y_.as<float>() + first_row_[e] * hidden_, counts[e], workspace_.as<void>(),
                  stream_);
  unpack(packed);
}

}  // namespace shoal::moe
