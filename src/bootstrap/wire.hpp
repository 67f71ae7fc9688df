// SPDX-License-Identifier: Apache-2.0
// wire.hpp: the messages of the TCP bootstrap as bytes. Pure functions and small state machines
// over buffers, without sockets.
//
// A message is a frame: a header of 24 bytes, the payload, and a tag of 32 bytes. Integers are
// little-endian.
//
//   0  magic     u32   "SHL1"
//   4  version   u8    1
//   5  type      u8    MessageType
//   6  zero      u16
//   8  pe        i32   the PE that the message is from or about
//   12 length    u32   bytes of payload
//   16 sequence  u64   number of the collective call, from 1; 0 in other messages
//
// The tag is a keyed BLAKE2b hash (RFC 7693) over the direction, the number of the message in that
// direction (which is not sent), the header and the payload. The key is derived from the key of the
// world and a nonce from each side, so a recorded message cannot be replayed, on another connection
// or later on the same one. The first message, the challenge, precedes the key: its tag is a
// checksum.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/error.hpp"

namespace shoal::bootstrap {

using Bytes = std::vector<std::byte>;
using SharedBytes = std::shared_ptr<const Bytes>;
using Key = std::array<std::byte, 32>;
using Nonce = std::array<std::byte, 32>;
using Tag = std::array<std::byte, 32>;
using Pe = std::int32_t;

constexpr std::size_t kHeaderBytes = 24;
constexpr std::size_t kTagBytes = 32;
constexpr std::size_t kMaxContribution = std::size_t{16} << 20;  ///< of one PE to one all-gather
constexpr std::size_t kMaxStep = 128;         ///< longer names of steps are truncated
constexpr std::size_t kMaxReason = 16 << 10;  ///< longer reasons are truncated
constexpr std::size_t kMaxPayload = kMaxContribution + 1024;
constexpr std::size_t kMaxGreeting = 512;  ///< payload bound before the key is proven
constexpr std::int32_t kMaxPes = 1'000'000;
/// The time in which a connection may prove the key, however many strangers connect meanwhile. A PE
/// whose connection ends later without a reply was too slow and connects again. A connection that
/// ends sooner has been refused.
constexpr std::chrono::milliseconds kFairChance{250};

enum class MessageType : std::uint8_t {
  challenge = 1,  ///< root: its nonce
  hello,          ///< PE: Hello
  welcome,        ///< root: all PEs have joined
  refused,        ///< root: Failure, the reply to a refused hello
  call,           ///< PE: Call
  part,           ///< root: a piece of the result of a call; more follow
  done,           ///< root: the last piece
  failed,         ///< root: Failure of the world; `pe` is the PE that caused it, or -1
  abort,          ///< PE: the reason as text
  close,          ///< PE: its last message; it leaves in order
};

struct Header {
  MessageType type = MessageType::challenge;
  Pe pe = -1;
  std::uint32_t length = 0;
  std::uint64_t sequence = 0;
};

struct Frame {
  Header header;
  Bytes payload;
  Tag tag{};
};

std::array<std::byte, kHeaderBytes> encode_header(const Header& header);
/// Throws Error{mismatch} for a wrong magic, version or type, or a payload above `max_payload`.
Header decode_header(std::span<const std::byte, kHeaderBytes> bytes, std::size_t max_payload);

/// Splits a stream of bytes into frames. It does not check tags.
class FrameReader {
 public:
  explicit FrameReader(std::size_t max_payload) : max_payload_(max_payload) {}
  void set_max_payload(std::size_t max_payload) { max_payload_ = max_payload; }
  void append(std::span<const std::byte> bytes);
  /// The next complete frame, or nullopt if more bytes are needed. Throws Error{mismatch} if the
  /// stream is malformed.
  std::optional<Frame> next();

 private:
  std::size_t max_payload_;
  Bytes buffer_;
  std::size_t start_ = 0;
};

enum class Direction : std::uint8_t { to_root = 1, from_root = 2 };

/// Makes or checks the tags of one direction of one connection, and counts its messages. Until
/// set_key, tags are checksums (a key of zeros).
class Authenticator {
 public:
  explicit Authenticator(Direction direction) : direction_(direction) {}
  void set_key(const Key& key) { key_ = key; }
  Tag make(std::span<const std::byte, kHeaderBytes> header, std::span<const std::byte> payload);
  bool check(const Frame& frame);

 private:
  Tag tag(std::span<const std::byte, kHeaderBytes> header,
          std::span<const std::byte> payload) const;

  Direction direction_;
  Key key_{};
  std::uint64_t count_ = 0;
};

Nonce random_nonce();
Key session_key(const Key& world, const Nonce& root, const Nonce& pe);
/// The key of a session: a hash of SHOAL_SESSION_ID and SHOAL_SESSION_SECRET.
Key key_from_text(std::string_view id, std::string_view secret);

/// The first message of a PE.
struct Hello {
  Nonce nonce{};
  std::int32_t n_pes = 0;
  std::int32_t pid = 0;
  std::chrono::milliseconds limit{0};  ///< the PE's bootstrap timeout
  std::chrono::milliseconds left{0};   ///< the time left of it
  std::string host;
};

/// A PE's contribution to a collective call.
struct Call {
  enum class Kind : std::uint8_t { barrier = 1, all_gather = 2 };
  Kind kind = Kind::barrier;
  std::chrono::milliseconds timeout{0};
  std::string step;
  Bytes data;
};

/// The reason why a PE is refused or the world has failed.
struct Failure {
  Code code = Code::peer_failed;
  Pe origin = -1;  ///< the PE that caused it, or -1; sent in the header
  std::string message;
};

// Payloads. Each decode function throws Error{mismatch} if the bytes have another form.
Bytes encode(const Hello& hello);
Hello decode_hello(std::span<const std::byte> bytes);
Bytes encode(const Call& call);
Call decode_call(std::span<const std::byte> bytes);
Bytes encode(const Failure& failure);
Failure decode_failure(std::span<const std::byte> bytes, Pe origin);
Bytes encode_text(std::string_view text);
std::string decode_text(std::span<const std::byte> bytes);
Nonce decode_nonce(std::span<const std::byte> bytes);
/// All contributions of an all-gather in one buffer, each preceded by its length.
Bytes encode_contributions(std::span<const Bytes> contributions);
std::vector<Bytes> decode_contributions(std::span<const std::byte> bytes, std::int32_t n_pes);

}  // namespace shoal::bootstrap
