// SPDX-License-Identifier: Apache-2.0
// network.hpp: what a network library contributes to the message core: endpoints, registered
// memory, and the order in which it delivers.
//
// The engine calls all functions with its lock held, except the constructor and destructor. An
// implementation reports through the engine: Engine::receive for a message that arrived,
// Peer::finish for a completed RMA request, Engine::fail_peer for a lost connection.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "transport/message/message.hpp"
#include "transport/message/peer.hpp"
#include "transport/message/pieces.hpp"
#include "transport/transport.hpp"

namespace shoal::transport::message {

/// Constants of one PE's network, which decide what travels as a message.
struct Traits {
  std::string_view name;             ///< of the transport: "ofi"
  std::size_t rails = 1;             ///< endpoints of this PE
  std::size_t payload_bytes = 0;     ///< longest payload of a message
  std::size_t put_bytes = 0;         ///< longest put that is a message
  std::size_t put_signal_bytes = 0;  ///< the same with a signal, where that is more; in several
                                     ///< messages if longer than a payload
  std::size_t put_nbi_bytes = 0;     ///< the same for put_nbi
  std::size_t get_bytes = 0;         ///< the same for gets
  bool words_are_messages = true;    ///< put_nbi and gets of words are messages always
  std::uint32_t window = 1;          ///< requests that each peer may have in flight to this PE
  bool reorders = false;             ///< messages may overtake each other
  bool probes = false;               ///< sending to a dead peer fails, so a probe finds it
  bool says_goodbye = false;         ///< peers would not notice an orderly end otherwise
  bool hides_rma = false;            ///< a target's polls serve RMA requests, but return false;
                                     ///< senders announce such requests every 250 us
  int polls_per_yield = 1;           ///< polls without success before a waiting call yields
};

/// Transfers that a message must not overtake.
enum class After : std::uint8_t { nothing, writes };

/// Memory that peers may read and write by RMA. heap: in GPU memory; segments are host memory.
enum class Region : std::uint8_t { segment, scratch, heap };

/// One RMA request.
struct Transfer {
  Direction direction;
  Region region = Region::segment;  ///< of the peer; with `scratch`, `local` lies in scratch too
  int rail = kAnyRail;
  std::size_t offset = 0;
  std::byte* local = nullptr;
  std::size_t bytes = 0;
  Batch* batch = nullptr;

  static constexpr int kAnyRail = -1;

  /// True if it is one of those that are spread over the rails in turn. Others stay on the home
  /// rail, so that a signal after them need not wait.
  bool is_spread() const noexcept { return rail == kAnyRail && bytes >= kSpreadBytes; }
  std::size_t rail_to(const Peer& peer) const noexcept {
    if (rail != kAnyRail) return static_cast<std::size_t>(rail);
    return is_spread() ? (peer.newest_spread + 1) % peer.rails : peer.home;
  }
};

/// Heaps in GPU memory, registered with the library of a network: this PE's heap, and what its
/// peers have sent about theirs. NetworkHeapRma moves data with it. The collective steps are those
/// of transport/heap_rma.hpp.
class HeapRegistration {
 public:
  virtual ~HeapRegistration() = default;

  virtual std::vector<std::byte> add(std::size_t offset, std::size_t bytes) = 0;
  virtual void connect(Pe pe, std::span<const std::byte> blob) = 0;
  virtual void roll_back(std::size_t offset) noexcept = 0;
  /// Bytes from `offset` on that one request can copy; 0: none.
  virtual std::size_t piece(Pe pe, std::size_t offset, const std::byte* local,
                            std::size_t bytes) const = 0;
  virtual std::string describe(Pe pe) const = 0;
};

class Network {
 public:
  virtual ~Network() = default;

  virtual const Traits& traits() const noexcept = 0;

  // Startup.
  /// Address with which peers open a connection to this PE.
  virtual std::vector<std::byte> address() = 0;
  /// Opens the connection. Sets `peer.rails`. Throws Error where the two PEs do not fit together.
  virtual void open(Peer& peer, std::span<const std::byte> address) = 0;
  /// All connections are open: from here on messages may arrive.
  virtual void listen(std::span<const Peer> /*peers*/) {}

  /// Sends a message with its payload. `After::writes`: it arrives after the data of all earlier
  /// writes to the peer; the network may hold it back for that, together with later requests.
  /// Calls Engine::stamp right before it hands the message to its library and Engine::sent after.
  /// Returns false when it cannot take the message now: poll and try again, or the peer has failed.
  virtual bool send(Peer& peer, const Message& message, const Payload& payload, After after) = 0;
  /// Starts an RMA request. Returns false as send does.
  virtual bool transfer(Peer& peer, const Transfer& transfer) = 0;
  /// nullptr: the network does not access GPU memory.
  virtual HeapRegistration* heap_registration() noexcept { return nullptr; }
  /// nullptr: the network has no queues for kernels.
  virtual const DeviceQueues* device_queues() const noexcept { return nullptr; }
  /// Length of the requests that a long transfer is cut into.
  virtual std::size_t request_bytes(const Peer& peer, const Transfer& transfer) const = 0;
  /// Makes progress. Returns false when there was nothing to do.
  virtual bool poll() = 0;
  /// Closes all connections; called once, when no other thread uses the engine any more.
  virtual void close() noexcept {}

  // Completion of writes at the target.
  /// True if writes may be incomplete at the target.
  virtual bool writing(const Peer& peer) const noexcept = 0;
  /// True if writes become complete only by the acknowledgement of a request that follows them.
  virtual bool needs_acknowledgement(const Peer& peer) const noexcept = 0;
  /// The newest transfer, for is_complete().
  virtual std::uint64_t newest(const Peer& peer) const noexcept = 0;
  /// True if all transfers up to `newest` are complete at the target, apart from a needed
  /// acknowledgement. May start what brings that about.
  virtual bool is_complete(Peer& peer, std::uint64_t newest) = 0;

  /// Like Transport::shortfalls.
  virtual std::vector<std::string> shortfalls(const Peer& /*peer*/,
                                              std::span<const Load> /*loads*/) const {
    return {};
  }

  // Failure.
  /// A call that uses `batch` gives up: its memory must not be accessed any more where the library
  /// allows that, and the batch must not be counted.
  virtual void abandon(Batch& batch) noexcept = 0;
  /// The peer has failed: drops what is held for it.
  virtual void drop(Peer& /*peer*/) noexcept {}

  // For error messages.
  /// "provider tcp;ofi_rxm"
  virtual std::string description() const = 0;
  /// Describes how `peer` is reached: "rail 0, eth0".
  virtual std::string route(const Peer& peer) const = 0;
};

}  // namespace shoal::transport::message
