// SPDX-License-Identifier: Apache-2.0
// rail.hpp: chunks between a member and its rail peers, the members with the same index on the
// other nodes.
//
// One ring of Shape.chunk_depth chunks per direction and pair. `chunks_sent` and `chunks_read`
// count the chunks of the group's life and are never reset; chunk k is written when chunk k -
// chunk_depth has been read, which also says that the sender's copy of it is free again. So neither
// side ever waits inside a call: the caller does what can be done and waits when nothing can.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ep/host/internode/wire.hpp"
#include "ep/host/signals/signals.hpp"

namespace shoal::ep::host {

class Rail {
 public:
  explicit Rail(HostGroup& group);

  /// Where the next chunk to the peer on `node` is to be written, Shape.chunk_bytes; nullptr while
  /// there is no room.
  std::byte* room(std::int32_t node) const;
  /// Sends the chunk that was written there: `header` and what follows it, `bytes` bytes in all.
  void send(std::int32_t node, const ChunkHeader& header, std::size_t bytes);

  /// The oldest chunk of that peer that has not been released; nullptr while none has come. Throws
  /// Error{peer_failed} for one of another epoch.
  const std::byte* arrived(std::int32_t node, std::uint64_t epoch) const;
  void release(std::int32_t node);

 private:
  HostGroup& group_;
  std::uint64_t* const sent_;  // by node, kept by the group
  std::uint64_t* const read_;
};

/// The header of a chunk.
ChunkHeader header_of(const std::byte* chunk);

/// Chunks to and from the peers on all other nodes, for an operation that both sends and receives:
/// `send(node)` writes at most one chunk, `receive()` takes what has come; both return whether they
/// did anything and are asked again until `done()`. `awaited()` is the member that a wait is for,
/// for its report. Throws as wait_signal does when nothing moves for the group's timeout.
struct RailWork {
  virtual ~RailWork() = default;
  virtual bool send(std::int32_t node) = 0;
  virtual bool receive() = 0;
  virtual bool work() {
    return false;
  }  ///< what else there is to do while chunks travel; true: did something
  virtual bool done() const = 0;
  virtual std::int32_t awaited() const = 0;
};
void run(HostGroup& group, RailWork& work, const Step& step);

}  // namespace shoal::ep::host
