// SPDX-License-Identifier: Apache-2.0
// rail_layout.hpp: memory and messages of normal mode between nodes, as pure functions of the
// group's options; the same on every rank. docs/internals/protocol/normal-internode.md says who
// writes what.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/align.hpp"
#include "ep/plan/shape.hpp"
#include "shoal/config.hpp"

namespace shoal::ep::detail {

/// Chunks of a ring: two are the fewest for which a tile of tokens cannot wait for itself.
inline constexpr std::uint32_t kMinRailDepth = 2, kMaxRailDepth = 64;

/// One token on its way to another node: its row, then what the side records at its ranks consist
/// of. A multiple of 16 bytes.
struct RailToken {
  std::uint32_t scales;
  std::uint32_t experts;  ///< int32 [top_k]: experts of the whole group, or -1
  std::uint32_t copies;   ///< int32 [top_k]: NormalDispatch::copies, or indices among the expert's
  std::uint32_t weights;  ///< float32 [top_k]
  std::uint32_t token, total;

  SHOAL_HOST_DEVICE constexpr RailToken(std::uint32_t row_bytes, std::uint32_t scale_bytes,
                                        std::uint32_t top_k, bool has_weights)
      : scales(row_bytes),
        experts(row_bytes + scale_bytes),
        copies(experts + top_k * 4),
        weights(copies + top_k * 4),
        token(weights + (has_weights ? top_k * 4 : 0)),
        total(static_cast<std::uint32_t>(align_up(token + 4, 16))) {}
};

/// The sum of one node's rows of a token, on its way back to the source.
struct RailSum {
  std::uint32_t weights, total;

  SHOAL_HOST_DEVICE constexpr RailSum(std::uint32_t row_bytes, std::uint32_t top_k,
                                      bool has_weights)
      : weights(row_bytes),
        total(static_cast<std::uint32_t>(align_up(weights + (has_weights ? top_k * 4 : 0), 16))) {}
};

/// Offsets in the group's block of the heap. Entries of a node concern the rail peer there.
struct RailLayout {
  std::size_t start;
  /// [nodes][depth] words: number + 1 of the chunk that lies in a slot of `in`.
  std::size_t arrived;
  /// [nodes][depth] words: number + 1 of the last chunk of a slot of the peer's `in` that the peer
  /// has read.
  std::size_t read;
  std::size_t control_end;            ///< `start` to here is zeroed when the group starts
  std::size_t notices, notice_bytes;  ///< [2][ranks] notices on their way to ranks of other nodes
  std::size_t out, in;                ///< [nodes][depth] chunks
  std::size_t chunk_bytes;
  std::uint32_t depth;
  std::size_t end;

  RailLayout() = default;
  /// `start` is a multiple of kPageBytes; `chunk` bytes are the wish of a setting.
  RailLayout(const Shape& shape, std::size_t notice, std::size_t from, std::size_t chunk,
             std::uint32_t depth);

  /// Offset of the slot of chunk `number` of a node, in an array of `bytes` each.
  SHOAL_HOST_DEVICE constexpr std::size_t slot(std::int32_t node, std::uint64_t number,
                                               std::size_t bytes) const {
    return (static_cast<std::size_t>(node) * depth + number % depth) * bytes;
  }
};

}  // namespace shoal::ep::detail
