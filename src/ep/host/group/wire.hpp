// SPDX-License-Identifier: Apache-2.0
// wire.hpp: the messages between nodes. Pure.
//
// Rail peers send each other chunks: a ChunkHeader, then messages of equal size. Both ends compute
// the size from the notices, so messages have no header. Byte order is the machine's, which all PEs
// share (compared at startup with the protocol version).
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/align.hpp"

namespace shoal::ep::host {

struct ChunkHeader {
  std::uint64_t epoch;
  std::uint32_t messages;
  std::uint32_t last;  ///< 1: the last chunk of this operation to this rank
};
static_assert(sizeof(ChunkHeader) == 16, "the rows that follow stay aligned");

/// One token on its way to another node: its row and side payload.
struct TokenMessage {
  std::size_t scales;
  std::size_t experts;  ///< int32 [top_k] experts of the whole group, or -1
  std::size_t weights, token, total;

  TokenMessage(std::size_t row_bytes, std::size_t scale_bytes, std::int32_t top_k,
               bool has_weights) {
    scales = align_up(row_bytes, 16);
    experts = align_up(scales + scale_bytes, 4);
    weights = experts + top_k * sizeof(std::int32_t);
    token = weights + (has_weights ? top_k * sizeof(float) : 0);
    total = align_up(token + sizeof(std::int32_t), 16);
  }
};

/// The sum of one node's combine rows of a token, on its way back to the source.
struct SumMessage {
  std::size_t weights, total;

  SumMessage(std::size_t row_bytes, std::int32_t top_k, bool has_weights) {
    weights = align_up(row_bytes, 16);
    total = align_up(weights + (has_weights ? top_k * sizeof(float) : 0), 16);
  }
};

}  // namespace shoal::ep::host
