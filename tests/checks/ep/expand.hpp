// SPDX-License-Identifier: Apache-2.0
// expand.hpp: compares Group::expand on any backend with a naive loop. Every difference throws.
#pragma once

#include "checks/ep/expert_major.hpp"

namespace shoal::test {

struct ExpandCase {
  std::int64_t rows = 37;
  std::int64_t unused = 0;    ///< further rows, of which row_count excludes
  std::int64_t columns = 64;  ///< of bfloat16
  std::int32_t alignment = 1;
  std::int64_t spare = 0;      ///< rows of the result behind the last block
  std::int64_t scales = 0;     ///< a row
  bool columns_first = false;  ///< of the scales of the result
  bool tiles = false;          ///< the scales of the result; with an alignment of 128
  bool weights = true;
  bool zero_padding = false;
  double elsewhere = 0.4;  ///< share of top-k slots without an expert here
  std::uint64_t seed = 1;
};

/// Replaces Group::expand.
using ExpandCall = std::function<void(const ep::ExpandOptions&)>;

/// A call that numbers the slots, and one that reuses their numbers for other rows. Rows that no
/// token fills keep what was in them without zero_padding.
void check_expand(ep::Group& group, const ExpandCase& c, const TensorMover& tensors,
                  const ExpandCall& expand = {});
/// check_expand with alignments, padding, unused rows, no rows, and all or no slots elsewhere.
void check_small_expands(ep::Group& group, const TensorMover& tensors,
                         const ExpandCall& expand = {});

/// A call with the numbers of a layout that has more copies: it writes nothing outside the rows of
/// its result. The host refuses it; GPUs leave such copies out.
void check_foreign_numbers(ep::Group& group, const TensorMover& tensors);

}  // namespace shoal::test
