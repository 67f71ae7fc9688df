// SPDX-License-Identifier: Apache-2.0
// peer.hpp: what a PE knows about its connection to another one. Everything here belongs to who
// holds the engine's lock.
#pragma once

#include <ucp/api/ucp.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "transport/transport.hpp"
#include "transport/ucx/message.hpp"

namespace shoal::transport::ucx {

class Engine;
struct Peer;

/// A message that UCX may be sending.
struct Slot {
  Message message;
  Peer* peer = nullptr;
};

/// Something that a peer will answer. Without `awaited` nobody but quiet waits, and the answer ends
/// it.
struct Request {
  std::byte* target = nullptr;  ///< where bytes go, element by element
  std::size_t stride = 0, element = 0, count = 0;
  std::uint64_t value = 0;
  bool awaited = false;
  bool done = false;
};

struct Peer {
  Engine* engine = nullptr;
  Pe pe = 0;
  bool wanted = false;
  bool connected = false;  ///< the handshake went well both ways
  bool ended = false;      ///< nothing is sent to it any more
  std::string reason;      ///< why it is not connected, or how it ended
  bool lost = false;       ///< it ended while operations were under way, which the next quiet says

  ucp_ep_h endpoint = nullptr;
  ucp_rkey_h key = nullptr;  ///< of its segment
  std::uint64_t base = 0;    ///< its segment, in its address space
  std::uint64_t depth = 1;   ///< messages that it sends before it waits for acknowledgements

  // Messages to it, by number.
  std::uint64_t sent = 0;
  std::uint64_t acknowledged = 0;
  std::uint64_t asked = 0;  ///< an acknowledgement for everything up to here has been asked for
  struct Held {
    Slot* slot;
    std::uint64_t after;
  };
  std::deque<Held> held;  ///< wait for RMA transfer `after` to be flushed; no more than the depth

  // RMA transfers to it, by number.
  std::uint64_t issued = 0;
  std::uint64_t last_put = 0;
  std::uint64_t flushed = 0;  ///< everything up to here is complete at its target
  bool flushing = false;
  std::uint64_t flush_target = 0;
  std::size_t in_flight = 0;  ///< whose local buffers are in use

  // What later operations are to be ordered after, by fence.
  std::uint64_t fenced_messages = 0;
  std::uint64_t fenced_transfers = 0;

  // Answers that it owes, by request number.
  std::uint64_t requests_made = 0;
  std::map<std::uint64_t, Request> requests;

  // Messages from it.
  std::uint64_t applied = 0;
  bool acknowledge = false;    ///< it waits for a message that says what has been applied
  bool acknowledging = false;  ///< such a message is on its way; one at a time
  std::map<std::uint64_t, std::vector<std::byte>>
      early;  ///< overtook others; no more than its depth
  bool hello_good = false;
  std::optional<std::uint64_t> hello_request;  ///< came before there was an endpoint to answer to

  std::uint64_t unacknowledged() const { return sent - acknowledged; }
  bool idle() const {
    return unacknowledged() == 0 && held.empty() && flushed == issued && in_flight == 0 &&
           requests.empty();
  }
};

}  // namespace shoal::transport::ucx
