// SPDX-License-Identifier: Apache-2.0
// wire.hpp: what a token looks like between nodes. Pure.
//
// Rail peers send each other chunks: a ChunkHeader, then messages of equal size. Both ends compute
// the size from what the notices have agreed on, so nothing describes itself. Byte order is the
// machine's, which all PEs share (the start compares it with the protocol version).
#pragma once

#include <cstddef>
#include <cstdint>

#include "ep/plan/layout.hpp"

namespace shoal::ep::detail {

struct ChunkHeader {
  std::uint64_t epoch;
  std::uint32_t messages;
  std::uint32_t last;  ///< 1: the last chunk of this operation to this member
};
static_assert(sizeof(ChunkHeader) == 16, "rows behind it stay aligned");

/// One token on its way to another node: its row, and what travels beside it.
struct TokenMessage {
  std::size_t scales, experts, weights, token, total;

  TokenMessage(std::size_t row_bytes, std::size_t scale_bytes, std::int32_t top_k,
               bool has_weights) {
    scales = align_up(row_bytes, 16);
    experts = align_up(scales + scale_bytes, 4);
    weights =
        experts + top_k * sizeof(std::int32_t);  // int32 [top_k] experts of the whole group, or -1
    token = weights + (has_weights ? top_k * sizeof(float) : 0);
    total = align_up(token + sizeof(std::int32_t), 16);
  }
};

/// The sum of one node's answers to a token on its way back.
struct AnswerMessage {
  std::size_t weights, total;

  AnswerMessage(std::size_t row_bytes, std::int32_t top_k, bool has_weights) {
    weights = align_up(row_bytes, 16);
    total = align_up(weights + (has_weights ? top_k * sizeof(float) : 0), 16);
  }
};

}  // namespace shoal::ep::detail
