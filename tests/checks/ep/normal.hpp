// SPDX-License-Identifier: Apache-2.0
// normal.hpp: one operation of a Group on a case, checked against the references of case.hpp.
// Throws on a difference.
#pragma once

#include "checks/ep/case.hpp"
#include "checks/ep/encoded_rows.hpp"
#include "shoal/settings.hpp"

namespace shoal::test {

/// For worlds of small cases: 256 MiB of heap per PE, and waits that fail after 20 s.
Settings ep_settings();

ep::GroupOptions options_for(const EpCase& c);

/// Owns the inputs of one rank's dispatch.
struct Inputs {
  explicit Inputs(const EpCase& c, std::int32_t rank);
  Tensor x, topk_idx, weights;
};

/// route, dispatch (with weights), experts, combine; everything compared with the reference bit by
/// bit. `quantize`: of the combine.
void check_normal(ep::Group& group, const EpCase& c, const ep::DispatchOptions& extra = {},
                  ep::Quantize quantize = ep::Quantize::none);

/// Low-latency dispatch of bfloat16 rows, experts, combine; rows, their layout and the result
/// compared bit by bit. early_weights: dispatch gets the weights too.
void check_low_latency(ep::Group& group, const EpCase& c, ep::Reduction reduction, bool zero_copy,
                       bool early_weights = false);

/// Checks LowLatencyCombineOptions::unsummed with rows in each encoding that they can have, with
/// and without weights.
void check_low_latency_unsummed(ep::Group& group, const EpCase& c);

/// The same with quantized rows. Compares rows and scales with numeric/, the combined result with
/// experts that dequantize by the received scales.
void check_low_latency_quantized(ep::Group& group, const EpCase& c, ep::Quantize quantize,
                                 ep::Reduction reduction = ep::Reduction::per_rank,
                                 ep::ScaleLayout layout = ep::ScaleLayout::automatic);
/// The same in every quantization and layout of scales that the rows can have.
void check_low_latency_formats(ep::Group& group, const EpCase& c);
/// The quantizations that rows of `hidden` channels can have.
std::vector<ep::Quantize> quantizations_for(std::int64_t hidden);

/// counts, source_token, layout and, of bfloat16 dispatches, x.
void check_low_latency_received(const EpCase& c, std::int32_t rank,
                                const ep::LowLatencyReceived& got,
                                const std::vector<int>& masked = {});

/// x and scales of a quantized dispatch, against numeric/.
void check_low_latency_scales(const EpCase& c, std::int32_t rank, const ep::LowLatencyReceived& got,
                              ep::Quantize quantize);

/// The global scale of these checks, where rows are NVFP4.
inline constexpr float kGlobalScale = ep::kGlobalScale;

/// Writes the expert output of rank `rank` to `y`; quantized rows are dequantized first.
void write_low_latency_expert_output(const EpCase& c, std::int32_t rank,
                                     const ep::LowLatencyReceived& got, const TensorView& y,
                                     ep::Quantize quantize = ep::Quantize::none);

/// The effect of a quantization on the rows of a dispatch, by numeric/.
Travel quantized_travel(ep::Quantize quantize);
/// The effect of an encoding on combine rows, by numeric/.
Travel combine_travel(ep::detail::CombineEncoding encoding);
/// An encoding on the way back: with `sums` of the sum of each rank, otherwise of expert outputs.
Travels combine_travels(ep::detail::CombineEncoding encoding, bool sums);
/// The encoding of combine rows with these options.
ep::detail::CombineEncoding combine_encoding(bool log_fmt, ep::Quantize quantize);

/// The expert output of rank `rank` for the rows that it received in normal mode.
Tensor expert_output_of(const EpCase& c, std::int32_t rank, const ep::Dispatched& received);

}  // namespace shoal::test
