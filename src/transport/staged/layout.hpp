// SPDX-License-Identifier: Apache-2.0
// layout.hpp: requests, replies and chunks that two PEs write into each other's host memory, and
// their places there. The layout is the same on all PEs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/align.hpp"
#include "shoal/heap.hpp"
#include "shoal/settings.hpp"

namespace shoal::transport::staged {

enum class Kind : std::uint32_t { put, put_strided, get, get_strided, atomic, signal };

/// Location of the data of a put.
enum class DataIn : std::uint32_t { chunk, payload };

/// Written by the requesting PE into a ring in the memory of the serving PE. `number` is a signal
/// after the rest: the request is complete when it has the expected value.
struct Request {
  static constexpr std::size_t kPayload = 176;  ///< bytes
  std::uint64_t number;  ///< from 1, by pair of PEs; its place in the ring is number % depth
  Kind kind;
  std::uint32_t op;             ///< AtomicOp or SignalOp
  std::uint32_t width;          ///< of the word, in bytes
  DataIn data_in;               ///< put
  std::uint64_t offset;         ///< in the heap
  std::uint64_t bytes;          ///< of the data; strided: of one element
  std::uint64_t count, stride;  ///< strided: elements, and their distance in the heap in bytes
  std::uint64_t chunk;          ///< offset of the data in the requesting PE's segment
  std::uint64_t operand, compare;
  std::byte payload[kPayload];
};
static_assert(sizeof(Request) == 256);

/// Written by the serving PE into the memory of the requesting PE.
struct Reply {
  static constexpr std::size_t kReason = 232;  ///< bytes
  std::uint64_t completed;                     ///< all requests up to this number are complete
  std::uint64_t value;                         ///< the value before the last atomic
  std::uint64_t failed;                        ///< number of the first request that failed; 0: none
  char reason[kReason];                        ///< of the failure; ends with a zero
};
static_assert(sizeof(Reply) == 256);

/// The bytes of a request or reply, which travel as they are in memory.
template <typename T>
std::byte* bytes_of(T& message) noexcept {
  static_assert(std::is_trivially_copyable_v<T>);
  return reinterpret_cast<std::byte*>(&message);
}

/// Offsets from the start of the area, which is Context::staging in every segment.
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
  /// Most requests in flight from one PE to another, chunks in flight from one PE, and chunks that
  /// it works on for others.
  std::size_t depth() const noexcept { return depth_; }
  std::size_t chunk_bytes() const noexcept { return chunk_; }
  /// Start of all chunks.
  std::size_t chunks() const noexcept { return chunks_; }
  /// Chunk `i` of requests of this PE.
  std::size_t own_chunk(std::size_t i) const noexcept { return chunks_ + i * chunk_; }
  /// Chunk `i` of requests that this PE serves.
  std::size_t served_chunk(std::size_t i) const noexcept { return chunks_ + (depth_ + i) * chunk_; }
  std::size_t bytes() const noexcept { return chunks_ + 2 * depth_ * chunk_; }

 private:
  std::size_t n_pes_, depth_, chunk_, chunks_;
};

}  // namespace shoal::transport::staged
