// SPDX-License-Identifier: Apache-2.0
// expert_major_cases.hpp: calls of the expert-major layout that every backend is tested with.
#pragma once

#include <vector>

#include "checks/ep/expert_major.hpp"

namespace shoal::test {

struct ExpertMajorCase {
  EpCase c;
  ExpertMajorCall call;
};

std::vector<ExpertMajorCase> exact_size_cases(std::int32_t ranks);
/// The cases include some without weights.
std::vector<ExpertMajorCase> worst_case_and_copy_out_cases(std::int32_t ranks);
std::vector<ExpertMajorCase> bias_and_output_cases(std::int32_t ranks);
/// Rows in place of sums, of every dtype.
std::vector<ExpertMajorCase> unsummed_cases(std::int32_t ranks);
/// Float8 rows with scales by row and by column.
std::vector<ExpertMajorCase> scale_cases(std::int32_t ranks);
/// No tokens at all, idle ranks, one expert that gets everything.
std::vector<ExpertMajorCase> uneven_cases(std::int32_t ranks);

}  // namespace shoal::test
