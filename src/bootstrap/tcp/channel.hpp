// SPDX-License-Identifier: Apache-2.0
// channel.hpp: both directions of one authenticated connection, as used by the root and by PEs.
// No call blocks.
//
// The two directions share only the socket, so one thread may send while another receives.
#pragma once

#include <deque>
#include <optional>

#include "bootstrap/tcp/socket.hpp"
#include "bootstrap/wire.hpp"

namespace shoal::bootstrap {

/// Frames to send. Payloads are shared: a result that is queued for many PEs is in memory once.
class Outbox {
 public:
  explicit Outbox(Direction direction) : authenticator_(direction) {}
  void set_key(const Key& key) { authenticator_.set_key(key); }
  void add(MessageType type, Pe pe, std::uint64_t sequence, SharedBytes payload);
  bool empty() const { return queue_.empty(); }
  /// Sends as much as the socket accepts. Throws Error{peer_failed} if the connection is broken.
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

/// Received frames.
class Inbox {
 public:
  Inbox(Direction direction, std::size_t max_payload)
      : reader_(max_payload), authenticator_(direction) {}
  void set_key(const Key& key) { authenticator_.set_key(key); }
  void set_max_payload(std::size_t max_payload) { reader_.set_max_payload(max_payload); }
  /// Reads the available bytes, at most about 1 MiB, so that no connection delays the others.
  /// Returns false at the end of the stream. Throws Error{peer_failed} if the connection is broken.
  bool fill(int fd);
  /// The next frame, with its tag unchecked.
  std::optional<Frame> next_unchecked() { return reader_.next(); }
  /// The next frame. Throws Error{mismatch} if it is malformed, altered, replayed or made with
  /// another key.
  std::optional<Frame> next();
  bool check(const Frame& frame) { return authenticator_.check(frame); }

 private:
  FrameReader reader_;
  Authenticator authenticator_;
};

}  // namespace shoal::bootstrap
