// SPDX-License-Identifier: Apache-2.0
#include "ep/cuda/layout/rail_layout.hpp"

#include <algorithm>

#include "ep/plan/cursor.hpp"

namespace shoal::ep::detail {

RailLayout::RailLayout(const Shape& shape, std::size_t notice, std::size_t from, std::size_t chunk,
                       std::uint32_t wanted_depth)
    : start(from), notice_bytes(notice) {
  const auto product = [](auto... factors) { return checked_mul(Cursor::kOption, factors...); };
  const auto nodes = static_cast<std::size_t>(shape.nodes);
  const auto top_k = static_cast<std::uint32_t>(shape.top_k);
  const RailToken token(static_cast<std::uint32_t>(shape.max_row_bytes),
                        static_cast<std::uint32_t>(shape.max_scales * 4), top_k, true);
  const RailSum sum(static_cast<std::uint32_t>(shape.max_combine_row_bytes), top_k, true);
  depth = std::clamp(wanted_depth, kMinRailDepth, kMaxRailDepth);
  chunk_bytes = align_up(std::max<std::size_t>(chunk, std::max(token.total, sum.total)), 128);
  Cursor cursor{start};
  arrived = cursor.take(product(nodes, depth, sizeof(std::uint64_t)));
  read = cursor.take(product(nodes, depth, sizeof(std::uint64_t)));
  control_end = cursor.aligned(Cursor::kAlignment);
  notices = cursor.take(product(2, shape.ranks, notice_bytes));
  out = cursor.take(product(nodes, depth, chunk_bytes), kPageBytes);
  in = cursor.take(product(nodes, depth, chunk_bytes), kPageBytes);
  end = cursor.aligned(kPageBytes);
}

}  // namespace shoal::ep::detail
