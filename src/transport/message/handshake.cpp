// SPDX-License-Identifier: Apache-2.0
#include "transport/message/handshake.hpp"

#include <algorithm>
#include <array>
#include <mutex>

#include "base/backoff.hpp"
#include "base/check.hpp"
#include "base/deadline.hpp"

namespace shoal::transport::message {
namespace {

using Pattern = std::array<std::byte, kPatternBytes>;

constexpr std::chrono::milliseconds kCheckInterval{1};

Pattern make_pattern(std::uint64_t world, Pe from, Pe to, std::size_t rail) {
  Pattern bytes;
  std::uint64_t state =
      world ^
      ((static_cast<std::uint64_t>(from) << 32 | static_cast<std::uint32_t>(to)) * 31 + rail + 1);
  for (std::byte& byte : bytes) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    byte = static_cast<std::byte>(state >> 56);
  }
  return bytes;
}

}  // namespace

bool is_pattern(const std::byte* memory, std::uint64_t world, Pe from, Pe to, std::size_t rail) {
  const Pattern expected = make_pattern(world, from, to, rail);
  return std::memcmp(memory, expected.data(), expected.size()) == 0;
}

Handshake::Handshake(Engine& engine) : engine_(engine), reasons_(engine.peers_.size()) {
  for (Peer& peer : engine.peers_)
    for (std::size_t rail = 0; peer.known && rail < peer.rails; ++rail)
      tracks_.push_back({peer, rail});
}

void Handshake::run(std::chrono::milliseconds limit, const std::function<void()>& check) {
  Deadline deadline(Clock::now() + limit);
  Backoff backoff;
  Clock::time_point next_check = Clock::now();
  for (;;) {
    bool all = true;
    {
      const std::lock_guard guard(engine_.lock());
      if (engine_.poll()) backoff.reset();
      for (Track& track : tracks_) {
        step(track);
        all = all && track.is_over();
      }
    }
    const Clock::time_point now = Clock::now();
    if (all || deadline.passed(now)) break;
    if (now >= next_check) {
      next_check = now + kCheckInterval;
      try {
        if (check) check();
      } catch (...) {
        abandon();
        throw;
      }
    }
    backoff();
  }
  abandon();
  const std::lock_guard guard(engine_.lock());
  for (Track& track : tracks_) {
    // A peer may end after its own handshake, while others are still under way.
    if (!track.peer.failure.empty()) fail(track, track.peer.failure);
    if (track.is_over()) continue;
    static constexpr const char* kMissing[] = {
        "the network took no write", "the network took no message", "a message had no reply",
        "the network took no read",  "the network took no read",    "a read had no result"};
    fail(track, fmt::format("SHOAL-N314: it did not answer within {} ms ({} on {}; {}). Setting: "
                            "SHOAL_BOOTSTRAP_TIMEOUT_MS",
                            limit.count(), kMissing[static_cast<std::size_t>(track.stage)],
                            engine_.network_->route(track.peer), engine_.network_->description()));
  }
  for (Peer& peer : engine_.peers_) {
    if (!peer.known) continue;
    peer.connected = reason(peer.pe).empty();
    // No quiet and no farewell waits for a peer that did not connect.
    if (!peer.connected) engine_.fail_peer(peer, reason(peer.pe));
  }
}

void Handshake::abandon() {
  for (Track& track : tracks_) engine_.abandon(track.batch);
}

void Handshake::fail(Track& track, const std::string& reason) {
  track.stage = Stage::failed;
  std::string& first = reasons_[static_cast<std::size_t>(track.peer.pe)];
  if (first.empty()) first = reason;
}

std::byte* Handshake::slot(const Track& track, Slot which) const {
  return engine_.scratch_.data() +
         scratch_offset(track.peer.pe, track.rail, engine_.scratch_rails_, which);
}

/// Tries to take the next step.
void Handshake::step(Track& track) {
  Peer& peer = track.peer;
  if (track.is_over()) return;
  if (!peer.failure.empty()) return fail(track, peer.failure);
  const std::uint32_t bit = std::uint32_t{1} << track.rail;
  const std::size_t at_peer =
      scratch_offset(engine_.my_pe_, track.rail, engine_.scratch_rails_, Slot::incoming);
  switch (track.stage) {
    case Stage::write: {
      const Pattern mine = make_pattern(engine_.world_, engine_.my_pe_, peer.pe, track.rail);
      std::memcpy(slot(track, Slot::outgoing), mine.data(), mine.size());
      if (transfer(track, Direction::write, Region::scratch, at_peer, Slot::outgoing))
        track.stage = Stage::hello;
      break;
    }
    case Stage::hello: {
      if (track.batch.pending != 0) break;
      Message hello;
      hello.kind = Kind::hello;
      hello.offset = track.rail;
      if (engine_.network_->send(peer, hello, {}, After::writes)) track.stage = Stage::welcome;
      break;
    }
    case Stage::welcome:
      if ((peer.refused & bit) != 0)
        fail(track, "SHOAL-N315: it did not find the data that were written");
      if ((peer.welcomed & bit) != 0) track.stage = Stage::read_word;
      break;
    case Stage::read_word:
      if (transfer(track, Direction::read, Region::segment, 0, Slot::segment_word))
        track.stage = Stage::read_back;
      break;
    case Stage::read_back:
      if (transfer(track, Direction::read, Region::scratch, at_peer, Slot::read_back))
        track.stage = Stage::reading;
      break;
    case Stage::reading:
      if (track.batch.pending != 0) break;
      track.stage = Stage::done;
      if (!is_pattern(slot(track, Slot::read_back), engine_.world_, engine_.my_pe_, peer.pe,
                      track.rail))
        fail(track, "SHOAL-N315: a read did not return what was written");
      break;
    case Stage::done:
    case Stage::failed:
      break;
  }
}

/// Starts a transfer between this peer's scratch memory and `local`; false: later.
bool Handshake::transfer(Track& track, Direction direction, Region region, std::size_t offset,
                         Slot local) {
  return engine_.network_->transfer(
      track.peer, {.direction = direction,
                   .region = region,
                   .rail = static_cast<int>(track.rail),
                   .offset = offset,
                   .local = slot(track, local),
                   .bytes = region == Region::segment ? sizeof(std::uint64_t) : kPatternBytes,
                   .batch = &track.batch});
}

}  // namespace shoal::transport::message
