// SPDX-License-Identifier: Apache-2.0
// nodes.hpp: groups of tensors in GPU memory on emulated nodes.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "checks/ep/gpu_low_latency.hpp"

namespace shoal::test {

inline EpCase nodes_case(std::int32_t ranks, std::int32_t nodes, std::uint64_t seed) {
  return {.ranks = ranks,
          .experts = ranks * 3,
          .top_k = 4,
          .hidden = 512,
          .max_tokens = 40,
          .seed = seed,
          .nodes = nodes};
}

/// Rounds of normal mode, compared with the references.
inline void run_normal_rounds(GpuGroup& owner, const EpCase& c) {
  for (int i = 0; i < 5; ++i) {
    GpuRound(owner, c, {}).run();
    GpuRound(owner, c, {.scales = 4, .place = OutputPlace::in_place, .biases = 2}).run();
  }
}

/// The same of low-latency mode.
inline void run_low_latency_rounds(GpuGroup& owner, const EpCase& c) {
  for (int i = 0; i < 5; ++i)
    for (const GpuLowLatencyCall& call :
         {GpuLowLatencyCall{}, GpuLowLatencyCall{.early_weights = true},
          GpuLowLatencyCall{.quantize = ep::Quantize::fp8, .out = true},
          GpuLowLatencyCall{.reduction = ep::Reduction::exact},
          GpuLowLatencyCall{.reduction = ep::Reduction::exact, .log_fmt = true},
          GpuLowLatencyCall{.log_fmt = true},
          GpuLowLatencyCall{.log_fmt = true, .early_weights = true},
          GpuLowLatencyCall{.log_fmt = true, .defer_receive = false},
          GpuLowLatencyCall{.combine_quantize = ep::Quantize::fp8, .early_weights = true},
          GpuLowLatencyCall{.reduction = ep::Reduction::exact,
                            .combine_quantize = ep::Quantize::fp8},
          GpuLowLatencyCall{.combine_quantize = ep::Quantize::mxfp8, .defer_receive = false}})
      GpuLowLatencyRound(owner, c, call).run();
}

/// Up to three rows per token, in the memory of a rank-major result.
inline void run_expert_major_rounds(GpuGroup& owner, const EpCase& c) {
  EpCase few = c;
  few.max_tokens = c.max_tokens / 4;
  check_expert_major(owner.group, few, {.alignment = 4, .cached = 1}, mover(owner));
}

}  // namespace shoal::test
