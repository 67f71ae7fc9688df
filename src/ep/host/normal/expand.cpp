// SPDX-License-Identifier: Apache-2.0
// expand: copies each received row to the rows of its experts.
//
// Reads each row once and writes it once per expert here. Nothing waits.
#include <algorithm>
#include <cstring>
#include <vector>

#include "base/check.hpp"
#include "ep/host/normal/normal.hpp"
#include "ep/plan/row_format.hpp"

namespace shoal::ep::host {
namespace {

/// Requires the caller's numbers of the first `slots` top-k slots to lie in `out`: those of another
/// layout may not.
void check_numbers(const ExpandOptions& options, std::int64_t slots) {
  const std::int64_t copies = options.out.shape[0], top_k = options.topk_rows.shape[1];
  for (std::int64_t i = 0; i < slots; ++i) {
    const std::int32_t copy = options.topk_rows.as<std::int32_t>()[i];
    require(
        copy >= -1 && copy < copies, Code::invalid_argument,
        "SHOAL-N544: expand: ExpandOptions.topk_rows[{}, {}] is {}; allowed with numbered: -1 to "
        "{}, the rows of out",
        i / top_k, i % top_k, copy, copies - 1);
  }
}

/// Numbers the rows of `out` in the order of experts, then of received rows.
void number_rows(const ExpandOptions& options, std::int64_t slots) {
  const auto* const counts = options.tokens_per_expert.as<std::int32_t>();
  const auto* const ends = options.expert_ends.as<std::int32_t>();
  const std::int64_t experts = options.expert_ends.shape[0], copies = options.out.shape[0];
  std::vector<std::int32_t> next(static_cast<std::size_t>(experts));
  for (std::int64_t e = 0; e < experts; ++e) {
    next[static_cast<std::size_t>(e)] = e == 0 ? 0 : ends[e - 1];
    if (options.block_ends.defined())
      options.block_ends.as<std::int32_t>()[e] = next[static_cast<std::size_t>(e)] + counts[e];
  }
  if (options.numbered) return;
  for (std::int64_t i = 0; i < options.topk_rows.size(); ++i) {
    const std::int64_t expert = i < slots ? options.topk_idx.as<std::int64_t>()[i] : -1;
    const bool here = expert >= 0 && expert < experts;
    options.topk_rows.as<std::int32_t>()[i] =
        here && next[static_cast<std::size_t>(expert)] < copies
            ? next[static_cast<std::size_t>(expert)]++
            : -1;
  }
}

/// Tiles belong to one expert each.
void check_blocks(const ExpandOptions& options) {
  if (options.out_scales.rank != 3) return;
  for (std::int64_t e = 0; e + 1 < options.expert_ends.shape[0]; ++e) {
    const std::int32_t end = options.expert_ends.as<std::int32_t>()[e];
    require(end % detail::kTileRows == 0, Code::invalid_argument,
            "SHOAL-N582: expand: ExpandOptions.out_scales are tiles and expert_ends[{}] is {}; "
            "allowed: multiples of {} (the expert_alignment of the dispatch)",
            e, end, detail::kTileRows);
  }
}

/// Copies rows, scales and weights, and clears the rows that none is copied to.
class Copies {
 public:
  Copies(const ExpandOptions& options, Store store)
      : options_(options),
        store_(store),
        row_bytes_(static_cast<std::size_t>(options.x.shape[1]) * size_of(options.x.dtype)),
        top_k_(options.topk_idx.shape[1]),
        places_(options.out_scales),
        filled_(static_cast<std::size_t>(options.out.shape[0])) {}

  void copy(std::int64_t row) {
    void* targets[kMaxTopK];
    std::size_t count = 0;
    for (std::int64_t i = row * top_k_; i < (row + 1) * top_k_; ++i) {
      const std::int64_t to = options_.topk_rows.as<std::int32_t>()[i];
      if (to < 0) continue;
      filled_[static_cast<std::size_t>(to)] = 1;
      targets[count++] = row_at(to);
      if (options_.weights.defined())
        options_.out_weights.as<float>()[to] = options_.weights.as<float>()[i];
      if (options_.scales.defined())
        set_scales(to, options_.scales.as<std::uint32_t>() + row * options_.scales.strides[0]);
    }
    scatter_row({targets, count}, options_.x.as<std::byte>() + row * row_bytes_, row_bytes_,
                store_);
  }

  void clear_others() {
    for (std::int64_t to = 0; to < options_.out.shape[0]; ++to) {
      if (filled_[static_cast<std::size_t>(to)] != 0) continue;
      if (options_.weights.defined()) options_.out_weights.as<float>()[to] = 0;
      if (!options_.zero_padding) continue;
      std::memset(row_at(to), 0, row_bytes_);
      set_scales(to, nullptr);
    }
  }

 private:
  std::byte* row_at(std::int64_t to) const {
    return options_.out.as<std::byte>() + static_cast<std::size_t>(to) * row_bytes_;
  }
  void set_scales(std::int64_t to, const std::uint32_t* from) const {
    if (!options_.scales.defined()) return;
    auto* const out = options_.out_scales.as<std::uint32_t>() + places_.first(to);
    for (std::int64_t s = 0; s < options_.scales.shape[1]; ++s)
      out[s * places_.step] = from == nullptr ? 0 : from[s];
  }

  const ExpandOptions& options_;
  const Store store_;
  const std::size_t row_bytes_;
  const std::int64_t top_k_;
  const detail::RowPlaces places_;  ///< of out_scales
  std::vector<char> filled_;        ///< [rows of out]
};

}  // namespace

void expand(HostGroup& group, const ExpandOptions& options) {
  const std::int64_t top_k = options.topk_idx.shape[1];
  const std::int64_t rows =
      options.rows.defined()
          ? std::min<std::int64_t>(options.x.shape[0], *options.rows.as<std::int32_t>())
          : options.x.shape[0];
  check_blocks(options);
  if (options.numbered) check_numbers(options, rows * top_k);
  number_rows(options, rows * top_k);
  // The rows that are read compete for the cache with those that are written.
  const std::size_t bytes = options.x.bytes() + options.out.bytes();
  Copies copies(options, choose_store(bytes, group.state.shape.ranks, last_level_cache_bytes()));
  group.workers.for_ranges(rows, [&](std::int64_t first, std::int64_t end) {
    for (std::int64_t row = first; row < end; ++row) copies.copy(row);
  });
  copies.clear_others();
}

}  // namespace shoal::ep::host
