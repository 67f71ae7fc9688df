// SPDX-License-Identifier: Apache-2.0
// peer.hpp: what the engine knows of another PE: how to reach it, what is on its way to it and from
// it.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "transport/ofi/rail.hpp"

namespace shoal::transport::ofi {

/// Operations that a call waits for.
struct Batch {
  std::uint32_t pending = 0;
};

/// A fetch that has no answer yet.
struct Fetch {
  bool waiting = false;
  std::uint8_t width = 0;
  void* target = nullptr;  ///< nullptr: the call has given up
  Batch* batch = nullptr;
};

struct Peer {
  struct OnRail {
    fi_addr_t address = FI_ADDR_UNSPEC;
    RemoteMemory segment;
    RemoteMemory scratch;
    std::uint32_t writes = 0;  ///< without their completion
  };

  Pe pe = 0;
  bool known = false;      ///< messages of it are taken, and answers go to it
  bool connected = false;  ///< the handshake succeeded
  std::string failure;     ///< not empty: the connection is lost
  bool loss_told = false;  ///< a quiet has failed because of it
  std::vector<OnRail> rails;
  std::size_t home = 0;  ///< rail of messages and short transfers
  std::size_t next = 0;  ///< rail of the next long one

  // Requests to it (wire.hpp).
  std::uint32_t window = 1;
  std::uint32_t sent = 0;          ///< number of the newest
  std::uint32_t acknowledged = 0;  ///< all up to this one have been applied
  std::uint32_t asked = 0;         ///< the newest that asked for its acknowledgement
  std::vector<Fetch> fetches;      ///< by number modulo window
  std::uint32_t fetching = 0;

  // RMA to it.
  std::uint32_t writes = 0;  ///< without their completion, on all rails
  std::uint32_t reads = 0;
  bool written = false;  ///< writes are not covered by a later request's acknowledgement
  bool fenced = false;   ///< fence was called: earlier operations complete before a write

  // Requests from it.
  std::uint32_t received = 0;    ///< number of the newest, all of them applied
  std::uint32_t told = 0;        ///< the newest that it knows to be applied
  bool due = false;              ///< it is to be told soon
  std::deque<Message> replies;   ///< that the provider did not take yet; at most its window
  std::deque<Message> welcomes;  ///< likewise, at most one a rail
  bool listed = false;           ///< among those whose answers wait
  bool probing = false;          ///< a probe has neither arrived nor failed
  std::uint32_t welcomed = 0;    ///< rails on which it answered a hello, as bits
  std::uint32_t refused = 0;     ///< rails on which it did not find what was put

  /// The newest request from it that may be acknowledged: none whose answer is still here.
  std::uint32_t applied() const noexcept {
    return replies.empty() ? received : replies.front().sequence - 1;
  }
  /// Operations since it was last quiet.
  bool busy() const noexcept {
    return written || writes != 0 || reads != 0 || fetching != 0 || sent != acknowledged;
  }
};

}  // namespace shoal::transport::ofi
