// SPDX-License-Identifier: Apache-2.0
// channel.hpp: one authenticated connection, on either side: frames out, frames in. Nothing here
// blocks.
//
// The two halves share the socket and nothing else, so that one thread may send while another
// receives.
#pragma once

#include <deque>
#include <optional>

#include "bootstrap/tcp/socket.hpp"
#include "bootstrap/tcp/wire.hpp"

namespace shoal::bootstrap {

/// Frames to send. Payloads are shared, so the same result can wait in the queues of many PEs and
/// be in memory once.
class Outbox {
 public:
  explicit Outbox(Direction direction) : authenticator_(direction) {}
  void set_key(const Key& key) { authenticator_.set_key(key); }
  void add(MessageType type, Pe pe, std::uint64_t sequence, SharedBytes payload);
  bool empty() const { return queue_.empty(); }
  /// Sends what the socket takes. Throws Error{peer_failed} when the connection is broken.
  void flush(int fd);

 private:
  struct Item {
    std::array<std::byte, kHeaderBytes> header;
    SharedBytes payload;
    Tag tag;
    std::size_t sent = 0;
  };
  std::deque<Item> queue_;
  Authenticator authenticator_;
};

/// Frames that came.
class Inbox {
 public:
  Inbox(Direction direction, std::size_t max_payload)
      : reader_(max_payload), authenticator_(direction) {}
  void set_key(const Key& key) { authenticator_.set_key(key); }
  void set_max_payload(std::size_t max_payload) { reader_.set_max_payload(max_payload); }
  /// Reads what is there, at most about a megabyte, so that one connection cannot keep the others
  /// waiting. Returns false at the end of the stream. Throws Error{peer_failed} when the connection
  /// is broken.
  bool fill(int fd);
  /// The next frame, its tag not yet checked.
  std::optional<Frame> next_unchecked() { return reader_.next(); }
  /// The next frame. Throws Error{mismatch} when it is malformed, altered, replayed or made with
  /// another key.
  std::optional<Frame> next();
  bool check(const Frame& frame) { return authenticator_.check(frame); }

 private:
  FrameReader reader_;
  Authenticator authenticator_;
};

}  // namespace shoal::bootstrap
