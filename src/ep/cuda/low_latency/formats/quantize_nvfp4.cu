// SPDX-License-Identifier: Apache-2.0
// quantize_nvfp4.cu: received bfloat16 rows as NVFP4, for deep_ep. Follows a dispatch on the
// stream.
//
// Moves, for each row that holds a token: 2 bytes a channel in, 0.5625 out. A warp takes a row, a
// lane 16 channels at a time, kBatch times ahead. Rows without a token are not touched.
#include <algorithm>

#include "ep/cuda/device/group.cuh"
#include "ep/cuda/low_latency/formats/quantize_nvfp4.hpp"
#include "ep/numeric/nvfp4.hpp"

namespace shoal::ep::cuda {
namespace {

constexpr std::int32_t kThreads = 256, kWarps = kThreads / 32, kBatch = 4;
constexpr std::int32_t kTileRows = 128, kTileGroups = 4, kTileLanes = 32;
constexpr std::int32_t kBlocks = 1024;  ///< enough for any GPU

/// Sixteen channels.
struct Group {
  uint4 low, high;
};

__device__ float largest_magnitude(const Group& group) {
  constexpr std::uint32_t kMagnitudes = 0x7fff'7fffU;
  std::uint32_t most = 0;  // NaNs are larger than all numbers
  for (const std::uint32_t pair : {group.low.x, group.low.y, group.low.z, group.low.w, group.high.x,
                                   group.high.y, group.high.z, group.high.w})
    most = __vmaxu2(most, pair & kMagnitudes);
  return __uint_as_float(max(most & 0xffffU, most >> 16) << 16);
}

/// Codes of two channels.
__device__ std::uint32_t encode_pair(std::uint32_t pair, float factor) {
  const float low = __uint_as_float((pair & 0x7fffU) << 16),
              high = __uint_as_float(pair & 0x7fff'0000U);
  return numeric::encode_e2m1(numeric::mul(low, factor)) | (pair >> 12 & 0x8U) |
         numeric::encode_e2m1(numeric::mul(high, factor)) << 4 | (pair >> 24 & 0x80U);
}
/// Codes of eight channels.
__device__ std::uint32_t encode(const uint4& vector, float factor) {
  return encode_pair(vector.x, factor) | encode_pair(vector.y, factor) << 8 |
         encode_pair(vector.z, factor) << 16 | encode_pair(vector.w, factor) << 24;
}

class Quantizer {
 public:
  __device__ explicit Quantizer(const QuantizeNvfp4& call)
      : call_(call),
        groups_(call.hidden / static_cast<std::int32_t>(numeric::kNvfp4Group)),
        global_(call.global_scale == nullptr ? 1.0F : *call.global_scale) {}

  /// One warp calls.
  __device__ void quantize(std::int32_t expert, std::int32_t row) const {
    const std::int64_t at = static_cast<std::int64_t>(expert) * call_.rows + row;
    const auto* const from = reinterpret_cast<const uint4*>(call_.x) + at * groups_ * 2;
    auto* const to = reinterpret_cast<uint2*>(call_.values) + at * groups_;
    std::uint8_t* const scales = scales_of(expert, row);
    for (std::int32_t first = static_cast<std::int32_t>(lane_id()); first < groups_;
         first += 32 * kBatch) {
      Group batch[kBatch];
#pragma unroll
      for (std::int32_t i = 0; i < kBatch; ++i)
        if (const std::int32_t group = first + 32 * i; group < groups_)
          batch[i] = {__ldcs(from + 2 * group), __ldcs(from + 2 * group + 1)};
#pragma unroll
      for (std::int32_t i = 0; i < kBatch; ++i) {
        const std::int32_t group = first + 32 * i;
        if (group >= groups_) continue;
        const numeric::Nvfp4Scale scale =
            numeric::nvfp4_scale(largest_magnitude(batch[i]), global_);
        to[group] = {encode(batch[i].low, scale.factor), encode(batch[i].high, scale.factor)};
        scales[group / kTileGroups * kTileRows * kTileGroups + group % kTileGroups] = scale.code;
      }
    }
  }

 private:
  __device__ std::uint8_t* scales_of(std::int32_t expert, std::int32_t row) const {
    const std::int64_t row_tiles = (call_.rows + kTileRows - 1) / kTileRows;
    const std::int64_t tile = expert * row_tiles + row / kTileRows;
    const std::int32_t in_tile = row % kTileRows;
    return call_.scales + tile * (groups_ / kTileGroups) * kTileRows * kTileGroups +
           (in_tile % kTileLanes * (kTileRows / kTileLanes) + in_tile / kTileLanes) * kTileGroups;
  }

  const QuantizeNvfp4& call_;
  const std::int32_t groups_;
  const float global_;
};

__global__ void __launch_bounds__(kThreads)
    quantize_nvfp4_kernel(const __grid_constant__ QuantizeNvfp4 call) {
  const Quantizer quantizer(call);
  const auto expert = static_cast<std::int32_t>(blockIdx.x);
  const std::int32_t rows = min(call.counts[expert], call.rows);
  for (std::int32_t row = static_cast<std::int32_t>(blockIdx.y) * kWarps +
                          static_cast<std::int32_t>(threadIdx.x / 32);
       row < rows; row += static_cast<std::int32_t>(gridDim.y) * kWarps)
    quantizer.quantize(expert, row);
}

}  // namespace

cudaError_t launch_quantize_nvfp4(const QuantizeNvfp4& call, cudaStream_t stream) {
  if (call.experts == 0 || call.rows == 0) return cudaSuccess;
  const std::int32_t parts =
      std::clamp(kBlocks / call.experts, 1, (call.rows + kWarps - 1) / kWarps);
  const dim3 blocks(static_cast<unsigned>(call.experts), static_cast<unsigned>(parts));
  quantize_nvfp4_kernel<<<blocks, kThreads, 0, stream>>>(call);
  return cudaGetLastError();
}

}  // namespace shoal::ep::cuda
