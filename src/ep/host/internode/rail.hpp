// SPDX-License-Identifier: Apache-2.0
// rail.hpp: chunks between a rank and its rail peers, the ranks with the same index on other nodes.
//
// Each direction of each pair has a ring of GroupLayout::chunk_depth chunks. `chunks_sent` and
// `chunks_read` count the chunks of the group's life and are never reset. Chunk k is written when
// chunk k - chunk_depth has been read; the sender's copy of that chunk is then free too. No call
// waits: the caller does all work that is possible and waits if there is none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ep/host/group/wire.hpp"
#include "ep/host/signals/signals.hpp"

namespace shoal::ep::host {

class Rail {
 public:
  explicit Rail(HostGroup& group);

  /// Memory for the next chunk to the peer on `node`, GroupLayout::chunk_bytes; nullptr while the
  /// ring is full.
  std::byte* room(std::int32_t node) const;
  /// Sends the chunk that was written there: `header` and its messages, `bytes` bytes in total.
  void send(std::int32_t node, const ChunkHeader& header, std::size_t bytes);

  /// The oldest chunk of that peer that has not been released; nullptr if there is none. Throws
  /// Error{peer_failed} for a chunk of another epoch.
  const std::byte* arrived(std::int32_t node, std::uint64_t epoch) const;
  void release(std::int32_t node);

 private:
  HostGroup& group_;
  std::uint64_t* const sent_;  // by node, kept by the group
  std::uint64_t* const read_;
};

/// The header of a chunk.
ChunkHeader header_of(const std::byte* chunk);

/// The work of an operation that sends and receives chunks. `send(node)` writes at most one chunk,
/// `receive()` takes what has arrived; both return whether they made progress, and are called until
/// `done()`. `awaited()` is the rank that a wait depends on, for its report. `run` throws as
/// wait_signal does when no chunk moves for the group's timeout.
struct RailWork {
  virtual ~RailWork() = default;
  virtual bool send(std::int32_t node) = 0;
  virtual bool receive() = 0;
  /// Other work to do while chunks travel; returns whether it made progress.
  virtual bool work() { return false; }
  virtual bool done() const = 0;
  virtual std::int32_t awaited() const = 0;
};
void run(HostGroup& group, RailWork& work, const Step& step);

}  // namespace shoal::ep::host
