// SPDX-License-Identifier: Apache-2.0
// phases.hpp: what the phases of kernels (device/faults.cuh) are for records and messages.
#pragma once

#include <array>

#include "ep/cuda/device/faults.cuh"
#include "record/layout.hpp"

namespace shoal::ep::cuda {

struct PhaseText {
  shoal::detail::record::Operation operation;
  shoal::detail::record::Phase phase;
  const char* name;
  const char* awaited;  ///< what a wait is for, to be followed by "from PE n"
};

inline constexpr auto kPhaseTexts = [] {
  using Op = shoal::detail::record::Operation;
  using In = shoal::detail::record::Phase;
  return std::array<PhaseText, 13>{{
      {Op::dispatch, In::none, "route", "nothing"},
      {Op::dispatch, In::notify, "notify", "its counts"},
      {Op::dispatch, In::receive, "receive", "rows"},
      {Op::combine, In::notify, "notify", "its expert outputs"},
      {Op::combine, In::receive, "fetch", "its expert outputs"},
      {Op::combine, In::finish, "finish", "its acknowledgement of fetched rows"},
      {Op::low_latency_dispatch, In::send, "send", "its acknowledgement of read rows"},
      {Op::low_latency_dispatch, In::receive, "receive", "rows"},
      {Op::low_latency_combine, In::send, "send", "its weights"},
      {Op::low_latency_combine, In::send, "send", "its acknowledgement of read rows"},
      {Op::low_latency_combine, In::receive, "receive", "its expert outputs"},
      {Op::dispatch, In::rail, "rail", "tokens, or room for them,"},
      {Op::combine, In::rail, "rail", "sums, or room for them,"},
  }};
}();
static_assert(kPhaseTexts.size() == static_cast<std::size_t>(Phase::combine_rail) + 1);

constexpr const PhaseText& text_of(Phase phase) {
  return kPhaseTexts[static_cast<std::size_t>(phase)];
}

}  // namespace shoal::ep::cuda
