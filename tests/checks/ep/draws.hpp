// SPDX-License-Identifier: Apache-2.0
// draws.hpp: random shapes and calls of groups on GPUs. They are separate from the tests that run
// them, so that a test without a GPU checks what all seeds cover
// (tests/property/ep_draws_test.cpp).
//
// The product of the sizes is bounded, so that a seed takes at most two seconds. Most seeds keep
// one size at its maximum and draw the others from what the bound leaves. Otherwise no seed would
// reach the maximum of tokens or row length.
#pragma once

#include <cstdint>
#include <vector>

#include "checks/ep/gpu_low_latency.hpp"

namespace shoal::test {

// Maxima of the shapes. Each kind has a seed that reaches each maximum; low-latency tokens go up to
// kMostSlots.
inline constexpr std::int32_t kMostRanks = 8, kMostExperts = 1024;
inline constexpr std::int64_t kMostTokens = 8192, kMostSlots = 512;
inline constexpr std::int64_t kShortestRow = 256, kLongestRow = 16384;  ///< channels

/// Normal mode against the references: tests/gpu/ep/property_test.cpp.
struct NormalDraw {
  EpCase c;
  ep::GroupOptions options;
  std::vector<GpuCall> calls;
};
/// Seeds are 1 to kNormalSeeds; other kinds likewise.
inline constexpr std::uint64_t kNormalSeeds = 40;
NormalDraw draw_normal(std::uint64_t seed);

/// Low-latency mode against the references: tests/gpu/ep/low_latency_property_test.cpp.
struct LowLatencyDraw {
  struct Step {
    GpuLowLatencyCall first, second;
    bool both_open;
  };
  EpCase c;
  std::vector<Step> steps;
};
inline constexpr std::uint64_t kLowLatencySeeds = 24;
LowLatencyDraw draw_low_latency(std::uint64_t seed);

// Comparison of both backends: tests/gpu/ep/host_comparison_test.cpp. Rows have at least 8
// channels.

inline constexpr std::int64_t kMostScales = 32;      ///< of a row
inline constexpr std::int32_t kMostAlignment = 32;   ///< of an expert's block
inline constexpr std::uint64_t kComparedSeeds = 24;  ///< of each mode

/// Options of a round of normal mode that its case does not hold. Groups are created for float32.
struct NormalForm {
  DataType dtype = DataType::bfloat16, output_dtype = DataType::bfloat16;
  std::int64_t columns = 0;  ///< of opaque rows; 0: EpCase::hidden
  std::int64_t scales = 0;   ///< a row; 0: none
  DataType scale_dtype = DataType::float32;
  bool scale_columns = false;  ///< the scales are stored by column
  bool expert_major = false;
  std::int32_t alignment = 1;
  bool worst_case = false;  ///< as many rows as the case can have
  bool copy_out = false;
  bool int32_topk = false;
  bool weights = true;
  int biases = 1;
  bool in_place = false;  ///< expert output in Dispatched::x; of the same size as its rows
  bool cached = false;    ///< a second dispatch with the handle of the first
  ep::Quantize combine_quantize = ep::Quantize::none;  ///< CombineOptions.quantize
};
struct NormalComparison {
  EpCase c;
  std::int32_t most_alignment = 1;  ///< of the forms
  std::vector<NormalForm> forms;
};
NormalComparison draw_normal_comparison(std::uint64_t seed);

struct LowLatencyForm {
  ep::Quantize quantize = ep::Quantize::none;
  ep::ScaleLayout scale_layout = ep::ScaleLayout::automatic;
  ep::Reduction reduction = ep::Reduction::per_rank;
  bool log_fmt = false, early_weights = false, int32_topk = false;
  bool defer_receive = true;                           ///< of the combine
  ep::Quantize combine_quantize = ep::Quantize::none;  ///< LowLatencyCombineOptions.quantize
};
struct LowLatencyComparison {
  EpCase c;
  std::vector<LowLatencyForm> forms;
};
LowLatencyComparison draw_low_latency_comparison(std::uint64_t seed);

}  // namespace shoal::test
