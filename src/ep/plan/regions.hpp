// SPDX-License-Identifier: Apache-2.0
// regions.hpp: collects the arrays of a block for its map (shoal/memory_map.hpp). Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "ep/plan/shape.hpp"
#include "shoal/memory_map.hpp"

namespace shoal::ep::detail {

/// Collects the arrays of a block in any order; an array without elements is omitted.
class Regions {
 public:
  struct Dimension {
    const char* name;
    std::int64_t count;
  };

  /// An array at `offset` of elements of `bytes` bytes, the outermost dimension first.
  void add(const char* name, std::size_t offset, std::initializer_list<Dimension> dimensions,
           std::size_t bytes) {
    observe::MemoryRegion region{name, offset, bytes, {}};
    for (std::size_t left = dimensions.size(); left-- > 0;) {
      const Dimension& d = dimensions.begin()[left];
      region.dimensions.push_back({d.name, static_cast<std::uint64_t>(d.count), region.bytes});
      region.bytes *= static_cast<std::uint64_t>(d.count);
    }
    std::reverse(region.dimensions.begin(), region.dimensions.end());
    if (region.bytes != 0) regions_.push_back(std::move(region));
  }

  /// Ascending.
  std::vector<observe::MemoryRegion> take() {
    std::sort(regions_.begin(), regions_.end(),
              [](const auto& a, const auto& b) { return a.offset < b.offset; });
    return std::move(regions_);
  }

 private:
  std::vector<observe::MemoryRegion> regions_;
};

/// The arrays that the layout of every backend has.
template <typename Layout>
void add_common_regions(Regions& regions, const Layout& layout, const Shape& shape) {
  const Regions::Dimension rank{"rank", shape.ranks};
  regions.add("entered", layout.entered, {rank}, kLine);
  regions.add("finished", layout.finished, {rank}, kLine);
  regions.add("combine_read", layout.combine_read, {rank}, kLine);
  regions.add("failed", layout.failed, {rank}, kLine);
  regions.add("notices", layout.notices, {{"parity", 2}, {"source rank", shape.ranks}},
              layout.notice_bytes);
  const std::int64_t staged = layout.staging_weights > layout.staging ? shape.max_received() : 0;
  regions.add("receive_arena", layout.arena, {}, layout.arena_bytes);
  regions.add("staging", layout.staging, {{"row", staged}}, shape.max_combine_row_bytes);
  regions.add("staging_weights", layout.staging_weights,
              {{"row", staged}, {"top-k slot", shape.top_k}}, sizeof(float));
}

}  // namespace shoal::ep::detail
