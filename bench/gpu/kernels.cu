// SPDX-License-Identifier: Apache-2.0
// The kernels of kernels.hpp. They are not timed, so they are plain loops with a block for each
// row.
#include <cuda_runtime.h>

#include "ep/numeric/numeric.hpp"
#include "gpu/kernels.hpp"
#include "shoal/device/ptx.cuh"
#include "shoal/error.hpp"

namespace shoal::bench::gpu {

namespace numeric = ep::numeric;

namespace {

constexpr int kThreads = 256;

__device__ float widen(std::uint16_t value) {
  return numeric::to_float(numeric::Bf16{value});
}

/// One warp a group of 128 channels.
__global__ void quantize_kernel(const std::uint16_t* x, std::uint8_t* quantized, float* scales,
                                std::int64_t hidden, std::int64_t groups) {
  const std::int64_t token = blockIdx.x;
  const int lane = threadIdx.x % 32;
  for (std::int64_t group = threadIdx.x / 32; group < groups; group += blockDim.x / 32) {
    const std::int64_t first = group * 128, last = min(first + 128, hidden);
    float largest = 0;
    for (std::int64_t i = first + lane; i < last; i += 32)
      largest = fmaxf(largest, fabsf(widen(x[token * hidden + i])));
    for (int step = 16; step > 0; step /= 2)
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, step));
    const numeric::Scale scale = numeric::scale_of(largest, numeric::ScaleRounding::none);
    for (std::int64_t i = first + lane; i < last; i += 32)
      quantized[token * hidden + i] =
          numeric::encode_e4m3(numeric::mul(widen(x[token * hidden + i]), scale.quantize));
    if (lane == 0) scales[token * groups + group] = scale.dequantize;
  }
}

/// Rows as float: bfloat16; float8 with float32 scales, or with words of UE8M0 for 32 channels
/// each; four bits with words of e4m3 for 16 channels each.
struct Rows {
  const std::uint16_t* bf16 = nullptr;
  const std::uint8_t *fp8 = nullptr, *fp4 = nullptr;
  const float* scales = nullptr;
  const std::uint8_t* scale_bytes = nullptr;
  std::int64_t scale_stride = 1;  ///< from one scale, or word of scales, of a row to the next

  /// `row`, `first_scale`: of the row, in elements of their arrays.
  __device__ float at(std::int64_t row, std::int64_t first_scale, std::int64_t channel) const {
    if (bf16 != nullptr) return widen(bf16[row + channel]);
    if (scales != nullptr)
      return numeric::decode_e4m3(fp8[row + channel]) *
             scales[first_scale + channel / 128 * scale_stride];
    const std::int64_t group = channel / (fp4 != nullptr ? 16 : 32);
    const std::uint8_t scale =
        scale_bytes[(first_scale + group / 4 * scale_stride) * 4 + group % 4];
    if (fp8 != nullptr)
      return numeric::decode_e4m3(fp8[row + channel]) * numeric::decode_ue8m0(scale);
    const std::uint32_t code = fp4[row + channel / 2] >> channel % 2 * 4 & 0xfU;
    return numeric::decode_e2m1(code) * numeric::decode_e4m3(scale);
  }
};

Rows rows_of(const TensorView& x, const TensorView& scales) {
  Rows rows;
  if (x.dtype == DataType::bfloat16) {
    rows.bf16 = x.as<std::uint16_t>();
    return rows;
  }
  const bool words = scales.dtype == DataType::int32;
  if (scales.rank == 0 || (!words && scales.dtype != DataType::float32))
    throw Error(Code::invalid_argument,
                "the benchmark's experts take bfloat16, or rows with float32 scales or words of "
                "scales; got " +
                    x.describe() + " and " + scales.describe());
  (x.dtype == DataType::uint8 ? rows.fp4 : rows.fp8) = x.as<std::uint8_t>();
  if (words)
    rows.scale_bytes = scales.as<std::uint8_t>();
  else
    rows.scales = scales.as<float>();
  rows.scale_stride = scales.strides[static_cast<std::size_t>(scales.rank - 1)];
  return rows;
}

struct NormalLayout {
  std::int64_t hidden, top_k, x_stride, scale_row, topk_stride, weight_stride, output_stride;
};

__global__ void normal_kernel(Rows x, const std::int64_t* topk_idx, const float* weights,
                              const int* row_count, const float* factors, std::uint16_t* outputs,
                              NormalLayout layout) {
  for (std::int64_t row = blockIdx.x; row < *row_count; row += gridDim.x) {
    float factor = 0;
    for (std::int64_t k = 0; k < layout.top_k; ++k) {
      const std::int64_t expert = topk_idx[row * layout.topk_stride + k];
      if (expert >= 0) factor += weights[row * layout.weight_stride + k] * factors[expert];
    }
    for (std::int64_t i = threadIdx.x; i < layout.hidden; i += blockDim.x)
      outputs[row * layout.output_stride + i] =
          numeric::to_bf16(x.at(row * layout.x_stride, row * layout.scale_row, i) * factor).bits;
  }
}

struct LowLatencyLayout {
  std::int64_t hidden, x_expert, x_row, scale_expert, scale_row, output_expert, output_row;
};

__global__ void low_latency_kernel(Rows x, const int* counts, const float* factors,
                                   std::uint16_t* outputs, LowLatencyLayout layout) {
  const std::int64_t expert = blockIdx.y;
  for (std::int64_t row = blockIdx.x; row < counts[expert]; row += gridDim.x)
    for (std::int64_t i = threadIdx.x; i < layout.hidden; i += blockDim.x) {
      const float value = x.at(expert * layout.x_expert + row * layout.x_row,
                               expert * layout.scale_expert + row * layout.scale_row, i);
      outputs[expert * layout.output_expert + row * layout.output_row + i] =
          numeric::to_bf16(value * factors[expert]).bits;
    }
}

__global__ void compare_kernel(const std::uint16_t* x, const std::uint16_t* out,
                               const float* factor, const float* size, std::int64_t hidden,
                               float of_terms, float of_result, std::int64_t block,
                               unsigned long long* first_bad) {
  const std::int64_t token = blockIdx.x;
  for (std::int64_t i = threadIdx.x; i < hidden; i += blockDim.x) {
    const std::int64_t at = token * hidden + i;
    const float value = widen(x[at]);
    float largest = 0;
    for (std::int64_t j = i / block * block; j < i / block * block + block; ++j)
      largest = fmaxf(largest, fabsf(widen(x[token * hidden + j])));
    // Negated, so that a NaN is found.
    if (!(fabsf(widen(out[at]) - value * factor[token]) <=
          of_terms * size[token] * largest + of_result * fabsf(factor[token] * value)))
      atomicMin(first_bad, static_cast<unsigned long long>(at));
  }
}

__global__ void pause_kernel(std::int64_t nanoseconds) {
  const std::uint64_t start = ptx::globaltimer();
  do {
    __nanosleep(200);
  } while (ptx::globaltimer() - start < static_cast<std::uint64_t>(nanoseconds));
}

unsigned blocks(std::int64_t count) {
  return static_cast<unsigned>(count);
}

}  // namespace

void quantize(cudaStream_t stream, const TensorView& x, const TensorView& quantized,
              const TensorView& scales) {
  quantize_kernel<<<blocks(x.shape[0]), kThreads, 0, stream>>>(
      x.as<std::uint16_t>(), quantized.as<std::uint8_t>(), scales.as<float>(), x.shape[1],
      scales.shape[1]);
  check(cudaGetLastError(), "quantising the inputs");
}

void run_experts(cudaStream_t stream, const NormalExperts& a) {
  const NormalLayout layout{a.outputs.shape[1],    a.topk_idx.shape[1],
                            a.x.strides[0],        a.scales.defined() ? a.scales.strides[0] : 0,
                            a.topk_idx.strides[0], a.weights.strides[0],
                            a.outputs.strides[0]};
  normal_kernel<<<1024, kThreads, 0, stream>>>(
      rows_of(a.x, a.scales), a.topk_idx.as<std::int64_t>(), a.weights.as<float>(),
      a.row_count.as<int>(), a.factors.as<float>(), a.outputs.as<std::uint16_t>(), layout);
  check(cudaGetLastError(), "the experts of normal mode");
}

void run_experts(cudaStream_t stream, const LowLatencyExperts& a) {
  const bool scaled = a.scales.defined();
  const LowLatencyLayout layout{a.outputs.shape[2],
                                a.x.strides[0],
                                a.x.strides[1],
                                scaled ? a.scales.strides[0] : 0,
                                scaled ? a.scales.strides[1] : 0,
                                a.outputs.strides[0],
                                a.outputs.strides[1]};
  low_latency_kernel<<<dim3(32, blocks(a.counts.shape[0])), kThreads, 0, stream>>>(
      rows_of(a.x, a.scales), a.counts.as<int>(), a.factors.as<float>(),
      a.outputs.as<std::uint16_t>(), layout);
  check(cudaGetLastError(), "the experts of low-latency mode");
}

void compare(cudaStream_t stream, const TensorView& x, const TensorView& out,
             const TensorView& factor, const TensorView& size,
             const ep::detail::CombineError& error, std::int64_t block, std::uint64_t* first_bad) {
  static_assert(sizeof(unsigned long long) == sizeof(std::uint64_t));
  compare_kernel<<<blocks(x.shape[0]), kThreads, 0, stream>>>(
      x.as<std::uint16_t>(), out.as<std::uint16_t>(), factor.as<float>(), size.as<float>(),
      x.shape[1], static_cast<float>(error.of_terms), static_cast<float>(error.of_result), block,
      reinterpret_cast<unsigned long long*>(first_bad));
  check(cudaGetLastError(), "comparing results");
}

void pause(cudaStream_t stream, std::int64_t nanoseconds) {
  pause_kernel<<<1, 1, 0, stream>>>(nanoseconds);
  check(cudaGetLastError(), "pausing");
}

}  // namespace shoal::bench::gpu
