// SPDX-License-Identifier: Apache-2.0
// normal.hpp: one operation of a Group on a case, checked against the references of case.hpp.
// Throws on a difference.
#pragma once

#include "checks/ep/case.hpp"
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
/// bit.
void check_normal(ep::Group& group, const EpCase& c, const ep::DispatchOptions& extra = {});

/// Low-latency dispatch of bfloat16 rows, experts, combine; rows, their layout and the result
/// compared bit by bit. early_weights: dispatch gets the weights too.
void check_low_latency(ep::Group& group, const EpCase& c, ep::Reduction reduction, bool zero_copy,
                       bool early_weights = false);

/// The same with float8 rows. Compares rows and scales with numeric/, and the combined result with
/// experts that dequantize by the received scales.
void check_low_latency_fp8(ep::Group& group, const EpCase& c, ep::Quantize quantize,
                           ep::Reduction reduction = ep::Reduction::per_rank);

/// counts, source_token, layout and, of bfloat16 dispatches, x.
void check_low_latency_received(const EpCase& c, std::int32_t rank,
                                const ep::LowLatencyReceived& got,
                                const std::vector<int>& masked = {});

/// x and scales of a float8 dispatch, against numeric/.
void check_low_latency_scales(const EpCase& c, std::int32_t rank, const ep::LowLatencyReceived& got,
                              ep::Quantize quantize);

/// Writes the expert output of rank `rank` to `y`; float8 rows are dequantized with their scales.
void write_low_latency_expert_output(const EpCase& c, std::int32_t rank,
                                     const ep::LowLatencyReceived& got, const TensorView& y);

/// The effect of float8 on the rows of a dispatch, by numeric/.
Travel float8_travel(ep::Quantize quantize);
/// The effect of LogFMT on combine rows, by numeric/.
Travel log_fmt_travel();
/// LogFMT-10 on the way back: with `sums` of the sum of each rank, otherwise of expert outputs.
Travels log_fmt_travels(bool sums);

/// The expert output of rank `rank` for the rows that it received in normal mode.
Tensor expert_output_of(const EpCase& c, std::int32_t rank, const ep::Dispatched& received);

}  // namespace shoal::test
