// SPDX-License-Identifier: Apache-2.0
// row_ops.hpp: operations of the host backend on one token row: copy, sum, quantize. They use SIMD
// through Highway and select the best instruction set at run time. Every function gives the same
// bits as the element functions of numeric/ (the tests compare).
//
// Rows are contiguous and at least 16-byte aligned; `channels` is the number of elements. No
// function allocates or throws.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "shoal/ep/formats.hpp"
#include "shoal/tensor.hpp"

namespace shoal::ep::host {

/// Store path of rows. Streamed stores bypass the caches, which pays when an operation writes much
/// more than the last-level cache holds. Streamed rows become visible to other threads only after
/// flush_streamed_rows: call it before the signal that publishes them.
enum class Store { cached, streamed };

void copy_row(void* target, const void* source, std::size_t bytes, Store store);
void flush_streamed_rows();

/// Copies one row to several targets; the source is read from memory once.
void scatter_row(std::span<void* const> targets, const void* source, std::size_t bytes,
                 Store store);

/// target = round(bias0 + bias1 + rows[0] + rows[1] + ...), accumulated in float32 in this order,
/// rounded once. dtype: bfloat16, float16 or float32, the same for all operands; biases may be
/// nullptr. No rows and no bias: zeros. Sums start at +0, so that a sum of negative zeros is +0.
/// If several operands are NaN, it is unspecified which of them results.
void sum_rows(DataType dtype, void* target, std::span<const void* const> rows, const void* bias0,
              const void* bias1, std::size_t channels, Store store);

/// target = round(sum of weights[i] * rows[i]), bfloat16, accumulated in float32 in ascending i;
/// each step is one multiply and one add, each rounded (no fma), so that every backend gives the
/// same bits. level_ends, where not empty, lists the ends of consecutive groups of rows: the sum of
/// each group is rounded to bfloat16 before the groups are added up in float32 in their order (a
/// level that pre-sums).
void weighted_sum_rows(std::uint16_t* target, std::span<const std::uint16_t* const> rows,
                       std::span<const float> weights, std::span<const std::int32_t> level_ends,
                       std::size_t channels, Store store);

enum class ScaleForm { plain, power_of_two };

/// bfloat16 row to float8_e4m3 with one float32 inverse (dequantization) scale per 128 channels;
/// the last group may be shorter.
void quantize_row(std::uint8_t* target, float* inverse_scales, const std::uint16_t* source,
                  std::size_t channels, ScaleForm form);
/// bfloat16 row to MXFP8: a scale per 32 channels; the last group may be shorter.
void quantize_mxfp8_row(std::uint8_t* target, std::uint8_t* scales, const std::uint16_t* source,
                        std::size_t channels);
/// bfloat16 row of whole groups of 16 channels to NVFP4: two channels a byte, a scale per group.
void quantize_nvfp4_row(std::uint8_t* target, std::uint8_t* scales, const std::uint16_t* source,
                        std::size_t channels, float global);
/// bfloat16 row to the codes and scales of a format other than none, on the way: fp8_ue8m0 has
/// float32 scales there.
void encode_row(Quantize quantize, float global, std::uint8_t* codes, std::byte* scales,
                const std::uint16_t* source, std::size_t channels);
/// The inverse of quantize_row: float8_e4m3 and scales to bfloat16, rounded once.
void dequantize_row(std::uint16_t* target, const std::uint8_t* source, const float* inverse_scales,
                    std::size_t channels);

/// Name of the instruction set in use, for reports ("AVX3", "SSE4", ...).
const char* instruction_set();

/// For tests: selects the instruction set at index `preference` among those of this machine, best
/// first. Returns false and changes nothing if there are fewer. Must not be called while other
/// threads are in a row operation.
bool use_instruction_set(int preference);

}  // namespace shoal::ep::host
