// ep_checks.hpp: one operation of a Group on a case, checked against the references of ep_case.hpp. Throws on a
// difference.
#pragma once

#include "support/ep_case.hpp"

namespace shoal::test {

ep::GroupOptions options_for(const EpCase& c);

/// Keeps what one PE puts into a dispatch alive.
struct Inputs {
  explicit Inputs(const EpCase& c, std::int32_t rank);
  Tensor x, topk_idx, weights;
};

/// route, dispatch (with weights), experts, combine; everything compared with the reference bit by bit.
void check_normal(ep::Group& group, const EpCase& c, const ep::DispatchOptions& extra = {});

/// Low-latency dispatch of bfloat16 rows, experts, combine; compared bit by bit.
void check_low_latency(ep::Group& group, const EpCase& c, ep::Reduction reduction, bool zero_copy);

/// The same with float8 on the way: rows and scales against numeric/, the combined result against the model of the
/// quantisation.
void check_low_latency_fp8(ep::Group& group, const EpCase& c, ep::Quantize quantize);

/// In place of x, the answers of this member's experts to what it received in normal mode.
Tensor answers_to(const EpCase& c, std::int32_t rank, const ep::Dispatched& received);

}  // namespace shoal::test
