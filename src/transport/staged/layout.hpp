// SPDX-License-Identifier: Apache-2.0
// layout.hpp: what two PEs write into each other's host memory so that one carries out operations
// on the heap of the other: requests, replies and chunks. Everything here is the same on all PEs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/align.hpp"
#include "shoal/heap.hpp"
#include "shoal/settings.hpp"

namespace shoal::transport::staged {

enum class Kind : std::uint32_t { put, put_strided, get, get_strided, atomic, signal };

/// Written by the PE that asks, into a ring in the memory of the PE that does it. `number` comes
/// last.
struct Request {
  static constexpr std::size_t kPayload = 176;
  std::uint64_t number;  ///< from 1, by pair of PEs; which place of the ring: number % depth
  Kind kind;
  std::uint32_t op;             ///< AtomicOp or SignalOp
  std::uint32_t width;          ///< of the word, in bytes
  std::uint32_t in_payload;     ///< put: 1 where the data are in `payload`
  std::uint64_t offset;         ///< in the heap
  std::uint64_t bytes;          ///< of the data; strided: of one element
  std::uint64_t count, stride;  ///< strided: of elements; in the heap, in bytes
  std::uint64_t chunk;          ///< where in the asking PE's memory the data lie, or go
  std::uint64_t operand, compare;
  std::byte payload[kPayload];
};
static_assert(sizeof(Request) == 256);

/// Written by the PE that does it, into the memory of the PE that asks.
struct Reply {
  static constexpr std::size_t kReason = 232;
  std::uint64_t completed;  ///< number of the last request that is done, as are all before
  std::uint64_t value;      ///< the word before the last atomic
  std::uint64_t failed;     ///< number of the first request that could not be done; 0: none
  char reason[kReason];     ///< why; ends with a zero
};
static_assert(sizeof(Reply) == 256);

/// Where they lie in the memory of every PE, from the start of the area.
class Layout {
 public:
  Layout(Pe n_pes, const Settings& settings) noexcept
      : n_pes_(static_cast<std::size_t>(n_pes)),
        depth_(static_cast<std::size_t>(settings.staged_depth)),
        chunk_(align_up(settings.staged_chunk, kPageBytes)) {
    const std::size_t words = n_pes_ * (depth_ * sizeof(Request) + sizeof(Reply));
    chunks_ = align_up(words, kPageBytes);
  }

  std::size_t request(Pe from, std::uint64_t number) const noexcept {
    return (static_cast<std::size_t>(from) * depth_ + number % depth_) * sizeof(Request);
  }
  std::size_t reply(Pe from) const noexcept {
    return n_pes_ * depth_ * sizeof(Request) + static_cast<std::size_t>(from) * sizeof(Reply);
  }
  /// Requests under way from one PE to one other, chunks under way from one PE, and those that it
  /// works on for others.
  std::size_t depth() const noexcept { return depth_; }
  std::size_t chunk_bytes() const noexcept { return chunk_; }
  std::size_t chunks() const noexcept { return chunks_; }  ///< of both kinds, one range of memory
  std::size_t own_chunk(std::size_t i) const noexcept {
    return chunks_ + i * chunk_;
  }  ///< of requests of this PE
  std::size_t served_chunk(std::size_t i) const noexcept { return chunks_ + (depth_ + i) * chunk_; }
  std::size_t bytes() const noexcept { return chunks_ + 2 * depth_ * chunk_; }

 private:
  std::size_t n_pes_, depth_, chunk_, chunks_;
};

}  // namespace shoal::transport::staged
