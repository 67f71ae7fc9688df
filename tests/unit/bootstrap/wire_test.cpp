// SPDX-License-Identifier: Apache-2.0
// The messages of the TCP bootstrap as bytes: valid messages survive a round trip, and all others
// are rejected with the reason.
// @traits one_thread
#include <gtest/gtest.h>

#include <algorithm>

#include "bootstrap/wire.hpp"
#include "support/expect_error.hpp"

namespace shoal::bootstrap {
namespace {

Bytes bytes_of(std::string_view text) {
  return encode_text(text);
}

Key key_of(int value) {
  Key key{};
  key[0] = static_cast<std::byte>(value);
  return key;
}

Bytes seal(Authenticator& sender, MessageType type, Pe pe, std::uint64_t sequence,
           const Bytes& payload) {
  const auto header =
      encode_header({type, pe, static_cast<std::uint32_t>(payload.size()), sequence});
  const Tag tag = sender.make(header, payload);
  Bytes out(header.begin(), header.end());
  out.insert(out.end(), payload.begin(), payload.end());
  out.insert(out.end(), tag.begin(), tag.end());
  return out;
}

std::string error_of(const auto& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

struct Wire : ::testing::Test {
  void SetUp() override {
    sender.set_key(key_of(1));
    receiver.set_key(key_of(1));
  }
  Authenticator sender{Direction::to_root};
  Authenticator receiver{Direction::to_root};
  FrameReader reader{kMaxPayload};
};

TEST_F(Wire, FrameArrivesWholeHoweverItIsCut) {
  const Bytes message = seal(sender, MessageType::call, 3, 77, bytes_of("payload"));
  for (const std::byte byte : message) {
    EXPECT_FALSE(reader.next().has_value());
    reader.append({&byte, 1});
  }
  const auto frame = reader.next();
  ASSERT_TRUE(frame.has_value());
  EXPECT_EQ(frame->header.type, MessageType::call);
  EXPECT_EQ(frame->header.pe, 3);
  EXPECT_EQ(frame->header.sequence, 77u);
  EXPECT_EQ(decode_text(frame->payload), "payload");
  EXPECT_TRUE(receiver.check(*frame));
  EXPECT_FALSE(reader.next().has_value());
}

TEST_F(Wire, SeveralFramesInOneRead) {
  Bytes stream = seal(sender, MessageType::call, 0, 1, bytes_of("a"));
  const Bytes second = seal(sender, MessageType::close, 0, 0, {});
  stream.insert(stream.end(), second.begin(), second.end());
  reader.append(stream);
  EXPECT_TRUE(receiver.check(*reader.next()));
  EXPECT_TRUE(receiver.check(*reader.next()));
}

TEST_F(Wire, EveryAlteredBitIsNoticed) {
  const Bytes message = seal(sender, MessageType::call, 3, 77, bytes_of("pay"));
  for (std::size_t bit = 0; bit < message.size() * 8; ++bit) {
    Bytes altered = message;
    altered[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    FrameReader fresh(64);
    Authenticator check(Direction::to_root);
    check.set_key(key_of(1));
    fresh.append(altered);
    try {
      const auto frame = fresh.next();
      EXPECT_TRUE(!frame || !check.check(*frame)) << "bit " << bit;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::mismatch) << "bit " << bit;
    }
  }
}

TEST_F(Wire, WrongKeyDirectionAndReplayAreNoticed) {
  const Bytes message = seal(sender, MessageType::call, 3, 1, bytes_of("x"));
  reader.append(message);
  const Frame frame = *reader.next();
  Authenticator stranger(Direction::to_root);
  stranger.set_key(key_of(2));
  EXPECT_FALSE(stranger.check(frame));
  Authenticator reflected(Direction::from_root);
  reflected.set_key(key_of(1));
  EXPECT_FALSE(reflected.check(frame));
  EXPECT_TRUE(receiver.check(frame));
  EXPECT_FALSE(receiver.check(frame)) << "the same message a second time is a replay";
}

TEST_F(Wire, SessionKeyDependsOnBothNonces) {
  const Nonce a = random_nonce(), b = random_nonce();
  EXPECT_NE(a, b);
  EXPECT_NE(session_key(key_of(1), a, b), session_key(key_of(1), b, a));
  EXPECT_NE(session_key(key_of(1), a, b), session_key(key_of(2), a, b));
  EXPECT_NE(key_from_text("h:1", "ab"), key_from_text("h:1a", "b"));
}

TEST_F(Wire, OversizedAndForeignStreamsAreRejected) {
  FrameReader small(16);
  small.append(seal(sender, MessageType::call, 0, 1, Bytes(17)));
  test::expect_parts(error_of([&] { small.next(); }), {"17 bytes, at most 16"});
  FrameReader foreign(16);
  foreign.append(bytes_of("GET / HTTP/1.1\r\nHost: x\r\n"));
  test::expect_parts(error_of([&] { foreign.next(); }), {"not a message of the Shoal bootstrap"});
  Bytes version = seal(sender, MessageType::call, 0, 1, {});
  version[4] = std::byte{9};
  FrameReader newer(16);
  newer.append(version);
  test::expect_parts(error_of([&] { newer.next(); }), {"version 9"});
}

TEST_F(Wire, PayloadsRoundTrip) {
  const Hello hello{
      random_nonce(), 8, 4711, std::chrono::milliseconds(60'000), std::chrono::milliseconds(59'000),
      "node-a"};
  const Hello hello_back = decode_hello(encode(hello));
  EXPECT_EQ(hello_back.nonce, hello.nonce);
  EXPECT_EQ(hello_back.n_pes, 8);
  EXPECT_EQ(hello_back.pid, 4711);
  EXPECT_EQ(hello_back.limit, hello.limit);
  EXPECT_EQ(hello_back.left, hello.left);
  EXPECT_EQ(hello_back.host, "node-a");
  const Call call = decode_call(
      encode(Call{Call::Kind::all_gather, std::chrono::milliseconds(5), "heap", bytes_of("data")}));
  EXPECT_EQ(call.step, "heap");
  EXPECT_EQ(call.data, bytes_of("data"));
  const Failure failure = decode_failure(encode(Failure{Code::timeout, -1, "late"}), 3);
  EXPECT_EQ(failure.code, Code::timeout);
  EXPECT_EQ(failure.origin, 3);
  EXPECT_EQ(failure.message, "late");
  const std::vector<Bytes> contributions = {bytes_of("a"), {}, bytes_of("ccc")};
  EXPECT_EQ(decode_contributions(encode_contributions(contributions), 3), contributions);
}

TEST_F(Wire, TruncatedPayloadsAreRejectedAtEveryLength) {
  const Bytes hello = encode(Hello{random_nonce(), 8, 1, std::chrono::milliseconds(1),
                                   std::chrono::milliseconds(1), "host"});
  for (std::size_t length = 0; length < hello.size(); ++length)
    EXPECT_THROW(decode_hello(std::span(hello).first(length)), Error) << length;
  const std::vector<Bytes> contributions = {bytes_of("a"), bytes_of("bb")};
  const Bytes result = encode_contributions(contributions);
  for (std::size_t length = 0; length < result.size(); ++length)
    EXPECT_THROW(decode_contributions(std::span(result).first(length), 2), Error) << length;
  EXPECT_THROW(decode_contributions(result, 1), Error) << "bytes are left over";
  EXPECT_THROW(decode_contributions(result, 3), Error);
}

TEST_F(Wire, OverlongTextsAreCutNotRefused) {
  const Call call = decode_call(
      encode(Call{Call::Kind::barrier, std::chrono::milliseconds(1), std::string(1000, 's'), {}}));
  EXPECT_EQ(call.step, std::string(kMaxStep, 's'));
  const Failure failure =
      decode_failure(encode(Failure{Code::system, -1, std::string(100'000, 'm')}), -1);
  EXPECT_EQ(failure.message.size(), kMaxReason);
}

}  // namespace
}  // namespace shoal::bootstrap
