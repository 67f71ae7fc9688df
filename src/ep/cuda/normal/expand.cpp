// SPDX-License-Identifier: Apache-2.0
#include "base/check.hpp"
#include "ep/cuda/normal/device/kernels.cuh"
#include "shoal/ep/normal.hpp"

namespace shoal::ep::cuda {

NormalExpand expand_parameters(const ExpandOptions& options) {
  constexpr std::int64_t kMost = 1 << 30;
  /// Shared memory that a kernel has without asking, in experts.
  constexpr std::int64_t kMostExperts = (48 << 10) / sizeof(std::int32_t);
  const ConstTensorView &x = options.x, &scales = options.scales;
  const TensorView& out_scales = options.out_scales;
  const std::int64_t experts = options.expert_ends.shape[0];
  require(x.shape[0] < kMost && options.out.shape[0] < kMost && experts <= kMostExperts,
          Code::unsupported,
          "SHOAL-N555: expand: {} rows to {} rows of {} experts; on GPUs fewer than {} rows and at "
          "most {} experts",
          x.shape[0], options.out.shape[0], experts, kMost, kMostExperts);
  NormalExpand params{};
  params.x = x.as<std::byte>();
  params.out = options.out.as<std::byte>();
  params.row_vectors = static_cast<std::uint32_t>(x.shape[1] * size_of(x.dtype) / 16);
  params.rows = static_cast<std::int32_t>(x.shape[0]);
  params.out_rows = static_cast<std::int32_t>(options.out.shape[0]);
  params.top_k = static_cast<std::int32_t>(options.topk_idx.shape[1]);
  params.experts = static_cast<std::int32_t>(experts);
  params.topk_idx = options.topk_idx.as<std::int64_t>();
  params.row_count = options.rows.as<std::int32_t>();
  params.expert_counts = options.tokens_per_expert.as<std::int32_t>();
  params.expert_ends = options.expert_ends.as<std::int32_t>();
  params.topk_rows = options.topk_rows.as<std::int32_t>();
  params.block_ends = options.block_ends.as<std::int32_t>();
  params.weights = options.weights.as<float>();
  params.out_weights = options.out_weights.as<float>();
  if (scales.defined() && scales.shape[1] > 0) {
    params.scales = scales.as<std::uint32_t>();
    params.out_scales = out_scales.as<std::uint32_t>();
    params.scale_stride = scales.strides[0];
    params.out_places = detail::RowPlaces(out_scales);
    params.scale_count = static_cast<std::int32_t>(scales.shape[1]);
  }
  params.numbered = options.numbered ? 1 : 0;
  params.zero_padding = options.zero_padding ? 1 : 0;
  return params;
}

}  // namespace shoal::ep::cuda
