// SPDX-License-Identifier: Apache-2.0
// The parser of bootstrap messages: frames do not depend on how the stream is split, a frame
// encodes to the bytes it was parsed from, and decoders throw nothing but Error.
#include "bootstrap/wire.hpp"
#include "fuzz.hpp"

using namespace shoal::bootstrap;
using shoal::fuzz::allow_error;
using shoal::fuzz::check;

namespace {

constexpr std::size_t kLimit = 4096;

std::vector<Frame> parse(std::span<const std::byte> stream, std::size_t piece) {
  std::vector<Frame> frames;
  FrameReader reader(kLimit);
  allow_error([&] {
    while (!stream.empty()) {
      const std::size_t count = std::min(piece, stream.size());
      reader.append(stream.first(count));
      stream = stream.subspan(count);
      while (auto frame = reader.next()) frames.push_back(std::move(*frame));
    }
  });
  return frames;
}

void decode_as_everything(std::span<const std::byte> payload) {
  allow_error([&] {
    check(encode(decode_hello(payload)).size() == payload.size(),
          "a hello encodes to its own length");
  });
  allow_error([&] {
    const Bytes again = encode(decode_call(payload));
    check(again.size() == payload.size(), "a call encodes to its own length");
  });
  allow_error([&] {
    check(encode(decode_failure(payload, 0)).size() == payload.size(),
          "a failure encodes to its own length");
  });
  allow_error([&] { decode_nonce(payload); });
  allow_error([&] {
    const auto contributions = decode_contributions(payload, 3);
    check(std::ranges::equal(encode_contributions(contributions), payload),
          "contributions encode to what was parsed");
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto stream = shoal::fuzz::bytes_of(data, size);
  const auto whole = parse(stream, size + 1), pieces = parse(stream, 7);
  check(whole.size() == pieces.size(), "the frames do not depend on how the stream arrives");
  std::size_t at = 0;
  Authenticator stranger(Direction::to_root);
  stranger.set_key(random_nonce());
  for (std::size_t i = 0; i < whole.size(); ++i) {
    const Frame& frame = whole[i];
    check(frame.payload == pieces[i].payload && frame.tag == pieces[i].tag,
          "the frames do not depend on how the stream arrives");
    check(frame.payload.size() <= kLimit, "no payload is above the limit");
    const auto header = encode_header(frame.header);
    check(std::ranges::equal(header, stream.subspan(at, kHeaderBytes)),
          "a header encodes to what was parsed");
    check(!stranger.check(frame), "no frame has a valid tag for an unknown key");
    decode_as_everything(frame.payload);
    at += kHeaderBytes + frame.payload.size() + kTagBytes;
  }
  decode_as_everything(stream);
  return 0;
}
