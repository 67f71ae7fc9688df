// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/wire.hpp"

#include <sodium.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "base/check.hpp"

namespace shoal::bootstrap {
namespace {

constexpr std::uint32_t kMagic = 0x314c4853;  // "SHL1"
constexpr std::uint8_t kVersion = 1;

static_assert(kTagBytes == crypto_generichash_BYTES && sizeof(Key) == crypto_generichash_KEYBYTES);

template <typename T>
void store(std::byte* to, T value) {
  const auto bits = static_cast<std::make_unsigned_t<T>>(value);
  for (std::size_t i = 0; i < sizeof(T); ++i)
    to[i] = static_cast<std::byte>((bits >> (8 * i)) & 0xff);
}

template <typename T>
T load(const std::byte* from) {
  std::make_unsigned_t<T> bits = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i)
    bits = static_cast<std::make_unsigned_t<T>>(
        bits | std::to_integer<std::make_unsigned_t<T>>(from[i]) << (8 * i));
  return static_cast<T>(bits);
}

const unsigned char* raw(const std::byte* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}
unsigned char* raw(std::byte* bytes) {
  return reinterpret_cast<unsigned char*>(bytes);
}

void start_sodium() {
  static const bool ready = sodium_init() >= 0;
  require(ready, Code::system,
          "SHOAL-N159: libsodium could not be initialised: the system gives no random numbers");
}

/// BLAKE2b over several pieces.
class Hash {
 public:
  explicit Hash(std::span<const std::byte> key) {
    start_sodium();
    crypto_generichash_init(&state_, raw(key.data()), key.size(), kTagBytes);
  }
  Hash& add(std::span<const std::byte> bytes) {
    crypto_generichash_update(&state_, raw(bytes.data()), bytes.size());
    return *this;
  }
  std::array<std::byte, kTagBytes> finish() {
    std::array<std::byte, kTagBytes> out;
    crypto_generichash_final(&state_, raw(out.data()), out.size());
    return out;
  }

 private:
  crypto_generichash_state state_;
};

class Writer {
 public:
  template <typename T>
  Writer& number(T value) {
    std::byte bytes[sizeof(T)];
    store(bytes, value);
    return raw_bytes(bytes);
  }
  Writer& raw_bytes(std::span<const std::byte> bytes) {
    out_.insert(out_.end(), bytes.begin(), bytes.end());
    return *this;
  }
  Writer& text(std::string_view value) {
    number(static_cast<std::uint16_t>(value.size()));
    return raw_bytes(std::as_bytes(std::span(value)));
  }
  Bytes take() { return std::move(out_); }

 private:
  Bytes out_;
};

class Reader {
 public:
  Reader(std::span<const std::byte> bytes, std::string_view what) : left_(bytes), what_(what) {}
  template <typename T>
  T number() {
    return load<T>(raw_bytes(sizeof(T)).data());
  }
  std::span<const std::byte> raw_bytes(std::size_t count) {
    require(count <= left_.size(), Code::mismatch,
            "SHOAL-N160: a {} message is truncated: {} more bytes were expected, {} are there",
            what_, count, left_.size());
    const auto taken = left_.first(count);
    left_ = left_.subspan(count);
    return taken;
  }
  std::string text(std::size_t limit) {
    const std::size_t length = number<std::uint16_t>();
    require(length <= limit, Code::mismatch,
            "SHOAL-N160: a {} message has a text of {} bytes, at most {} are allowed", what_,
            length, limit);
    return decode_text(raw_bytes(length));
  }
  Nonce nonce() {
    Nonce value;
    std::ranges::copy(raw_bytes(value.size()), value.begin());
    return value;
  }
  std::span<const std::byte> rest() { return raw_bytes(left_.size()); }
  std::size_t left() const { return left_.size(); }
  void end() const {
    require(left_.empty(), Code::mismatch, "SHOAL-N160: a {} message has {} bytes too many", what_,
            left_.size());
  }

 private:
  std::span<const std::byte> left_;
  std::string_view what_;
};

std::uint32_t to_wire(std::chrono::milliseconds time) {
  return static_cast<std::uint32_t>(
      std::clamp<std::int64_t>(time.count(), 0, std::numeric_limits<std::int32_t>::max()));
}

}  // namespace

std::array<std::byte, kHeaderBytes> encode_header(const Header& header) {
  std::array<std::byte, kHeaderBytes> bytes{};
  store(&bytes[0], kMagic);
  store(&bytes[4], kVersion);
  store(&bytes[5], static_cast<std::uint8_t>(header.type));
  store(&bytes[8], header.pe);
  store(&bytes[12], header.length);
  store(&bytes[16], header.sequence);
  return bytes;
}

Header decode_header(std::span<const std::byte, kHeaderBytes> bytes, std::size_t max_payload) {
  const auto magic = load<std::uint32_t>(&bytes[0]);
  require(magic == kMagic, Code::mismatch,
          "SHOAL-N160: not a message of the Shoal bootstrap (it starts with {:#010x})", magic);
  const auto version = load<std::uint8_t>(&bytes[4]);
  require(version == kVersion, Code::mismatch,
          "SHOAL-N160: version {} of the bootstrap protocol, this Shoal speaks version {}", version,
          kVersion);
  const auto type = load<std::uint8_t>(&bytes[5]);
  require(type >= static_cast<std::uint8_t>(MessageType::challenge) &&
              type <= static_cast<std::uint8_t>(MessageType::close),
          Code::mismatch, "SHOAL-N160: a message of unknown type {}", type);
  require(load<std::uint16_t>(&bytes[6]) == 0, Code::mismatch,
          "SHOAL-N160: a message with unknown flags");
  const Header header{static_cast<MessageType>(type), load<Pe>(&bytes[8]),
                      load<std::uint32_t>(&bytes[12]), load<std::uint64_t>(&bytes[16])};
  require(header.length <= max_payload, Code::mismatch,
          "SHOAL-N160: a message of {} bytes, at most {} are allowed here", header.length,
          max_payload);
  return header;
}

void FrameReader::append(std::span<const std::byte> bytes) {
  if (start_ > 0) {
    buffer_.erase(buffer_.begin(), buffer_.begin() + static_cast<std::ptrdiff_t>(start_));
    start_ = 0;
  }
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
}

std::optional<Frame> FrameReader::next() {
  const auto bytes = std::span(buffer_).subspan(start_);
  if (bytes.size() < kHeaderBytes) return std::nullopt;
  Frame frame;
  frame.header = decode_header(bytes.first<kHeaderBytes>(), max_payload_);
  const std::size_t total = kHeaderBytes + frame.header.length + kTagBytes;
  if (bytes.size() < total) return std::nullopt;
  const auto payload = bytes.subspan(kHeaderBytes, frame.header.length);
  frame.payload.assign(payload.begin(), payload.end());
  std::ranges::copy(bytes.subspan(kHeaderBytes + frame.header.length, kTagBytes),
                    frame.tag.begin());
  start_ += total;
  if (start_ == buffer_.size()) {
    buffer_ = Bytes();  // frees the memory of a large payload
    start_ = 0;
  }
  return frame;
}

Tag Authenticator::tag(std::span<const std::byte, kHeaderBytes> header,
                       std::span<const std::byte> payload) const {
  std::array<std::byte, 9> context;
  context[0] = static_cast<std::byte>(direction_);
  store(&context[1], count_);
  return Hash(key_).add(context).add(header).add(payload).finish();
}

Tag Authenticator::make(std::span<const std::byte, kHeaderBytes> header,
                        std::span<const std::byte> payload) {
  const Tag made = tag(header, payload);
  ++count_;
  return made;
}

bool Authenticator::check(const Frame& frame) {
  const Tag expected = tag(encode_header(frame.header), frame.payload);
  ++count_;
  return sodium_memcmp(expected.data(), frame.tag.data(), expected.size()) == 0;
}

Nonce random_nonce() {
  start_sodium();
  Nonce nonce;
  randombytes_buf(nonce.data(), nonce.size());
  return nonce;
}

Key session_key(const Key& world, const Nonce& root, const Nonce& pe) {
  return Hash(world).add(root).add(pe).finish();
}

Key key_from_text(std::string_view id, std::string_view secret) {
  const std::byte separator{0};
  return Hash({})
      .add(std::as_bytes(std::span(id)))
      .add({&separator, 1})
      .add(std::as_bytes(std::span(secret)))
      .finish();
}

Bytes encode(const Hello& hello) {
  return Writer()
      .raw_bytes(hello.nonce)
      .number(hello.n_pes)
      .number(hello.pid)
      .number(to_wire(hello.limit))
      .number(to_wire(hello.left))
      .text(std::string_view(hello.host).substr(0, 255))
      .take();
}

Hello decode_hello(std::span<const std::byte> bytes) {
  Reader reader(bytes, "hello");
  Hello hello;
  hello.nonce = reader.nonce();
  hello.n_pes = reader.number<std::int32_t>();
  hello.pid = reader.number<std::int32_t>();
  hello.limit = std::chrono::milliseconds(reader.number<std::uint32_t>());
  hello.left = std::chrono::milliseconds(reader.number<std::uint32_t>());
  hello.host = reader.text(255);
  reader.end();
  return hello;
}

Bytes encode(const Call& call) {
  return Writer()
      .number(static_cast<std::uint8_t>(call.kind))
      .number(to_wire(call.timeout))
      .text(std::string_view(call.step).substr(0, kMaxStep))
      .raw_bytes(call.data)
      .take();
}

Call decode_call(std::span<const std::byte> bytes) {
  Reader reader(bytes, "call");
  Call call;
  const auto kind = reader.number<std::uint8_t>();
  require(kind == 1 || kind == 2, Code::mismatch, "SHOAL-N160: a call message of unknown kind {}",
          kind);
  call.kind = static_cast<Call::Kind>(kind);
  call.timeout = std::chrono::milliseconds(reader.number<std::uint32_t>());
  call.step = reader.text(kMaxStep);
  const auto data = reader.rest();
  const std::size_t limit = call.kind == Call::Kind::barrier ? 0 : kMaxContribution;
  require(data.size() <= limit, Code::mismatch,
          "SHOAL-N160: a call message contributes {} bytes, at most {} are allowed", data.size(),
          limit);
  call.data.assign(data.begin(), data.end());
  return call;
}

Bytes encode(const Failure& failure) {
  return Writer()
      .number(static_cast<std::uint8_t>(failure.code))
      .text(std::string_view(failure.message).substr(0, kMaxReason))
      .take();
}

Failure decode_failure(std::span<const std::byte> bytes, Pe origin) {
  Reader reader(bytes, "failure");
  const auto code = reader.number<std::uint8_t>();
  require(code >= static_cast<std::uint8_t>(Code::invalid_argument) &&
              code <= static_cast<std::uint8_t>(Code::closed),
          Code::mismatch, "SHOAL-N160: a failure message with unknown code {}", code);
  Failure failure{static_cast<Code>(code), origin, reader.text(kMaxReason)};
  reader.end();
  return failure;
}

Bytes encode_text(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text.substr(0, kMaxReason)));
  return {bytes.begin(), bytes.end()};
}

std::string decode_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Nonce decode_nonce(std::span<const std::byte> bytes) {
  Reader reader(bytes, "challenge");
  const Nonce nonce = reader.nonce();
  reader.end();
  return nonce;
}

Bytes encode_contributions(std::span<const Bytes> contributions) {
  Writer writer;
  for (const auto& bytes : contributions)
    writer.number(static_cast<std::uint32_t>(bytes.size())).raw_bytes(bytes);
  return writer.take();
}

std::vector<Bytes> decode_contributions(std::span<const std::byte> bytes, std::int32_t n_pes) {
  Reader reader(bytes, "result");
  std::vector<Bytes> contributions;
  for (std::int32_t pe = 0; pe < n_pes; ++pe) {
    const auto data = reader.raw_bytes(reader.number<std::uint32_t>());
    contributions.emplace_back(data.begin(), data.end());
  }
  reader.end();
  return contributions;
}

}  // namespace shoal::bootstrap
