// SPDX-License-Identifier: Apache-2.0
#include "transport/ofi/handshake.hpp"

#include <rdma/fi_errno.h>
#include <sched.h>

#include <cstring>

#include "base/backoff.hpp"
#include "base/check.hpp"
#include "base/deadline.hpp"

namespace shoal::transport::ofi {
namespace {

using Pattern = std::array<std::byte, kPatternBytes>;

Pattern pattern(Pe from, Pe to, std::size_t rail) {
  Pattern bytes;
  std::uint64_t state =
      (static_cast<std::uint64_t>(from) << 32 | static_cast<std::uint32_t>(to)) * 31 + rail + 1;
  for (std::byte& byte : bytes) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    byte = static_cast<std::byte>(state >> 56);
  }
  return bytes;
}

enum Slot { incoming, outgoing, read_back, kSlots };

/// Of what is exchanged with `pe`.
std::size_t slot_offset(Pe pe, std::size_t rail, Slot slot) {
  return ((static_cast<std::size_t>(pe) * kMaxRails + rail) * kSlots + slot) * kPatternBytes;
}

}  // namespace

std::size_t scratch_bytes(Pe n_pes) {
  return slot_offset(n_pes, 0, incoming);
}

bool Handshake::arrived(const std::byte* scratch, Pe from, Pe to, std::size_t rail) {
  const Pattern expected = pattern(from, to, rail);
  return std::memcmp(scratch + slot_offset(from, rail, incoming), expected.data(), kPatternBytes) ==
         0;
}

Handshake::Handshake(Engine& engine, Pe my_pe)
    : engine_(engine), my_pe_(my_pe), reasons_(engine.peers_.size()) {
  for (Peer& peer : engine.peers_)
    for (std::size_t rail = 0; rail < peer.rails.size(); ++rail)
      if (peer.known) tracks_.push_back({peer, rail, Stage::put, {}});
}

void Handshake::run(std::chrono::milliseconds limit, const std::function<void()>& check) {
  Deadline deadline(Clock::now() + limit);
  Backoff backoff;
  auto next_check = Clock::now();
  const auto abandon = [&] {
    for (Track& track : tracks_) engine_.abandon(track.batch);
  };
  for (bool all = false; !all;) {
    {
      const std::lock_guard guard(engine_.lock());
      engine_.poll();
      all = true;
      for (Track& track : tracks_) all = step(track) && all;
    }
    const auto now = Clock::now();
    if (all || deadline.passed(now)) break;
    if (now >= next_check) {
      next_check = now + std::chrono::milliseconds(1);
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
    static constexpr const char* kWaits[] = {"it took no data",    "data was not confirmed",
                                             "it took no message", "a message was not answered",
                                             "it took no read",    "a read had no result"};
    if (track.stage != Stage::done && track.stage != Stage::failed)
      fail(track, fmt::format("{} for {} ms on rail {} ({})",
                              kWaits[static_cast<std::size_t>(track.stage)], limit.count(),
                              track.rail, engine_.lines_[track.rail].rail->domain()));
  }
  for (Peer& peer : engine_.peers_) peer.connected = peer.known && reason(peer.pe).empty();
}

void Handshake::fail(Track& track, const std::string& text) {
  track.stage = Stage::failed;
  std::string& reason = reasons_[static_cast<std::size_t>(track.peer.pe)];
  if (reason.empty()) reason = text;
}

/// One attempt to go on; true: there is nothing more to do.
bool Handshake::step(Track& track) {
  Peer& peer = track.peer;
  if (track.stage == Stage::done || track.stage == Stage::failed) return true;
  if (!peer.failure.empty()) {
    fail(track, peer.failure);
    return true;
  }
  const std::uint32_t bit = std::uint32_t{1} << track.rail;
  const auto slot = [&](Slot which) {
    return engine_.scratch_.data() + slot_offset(peer.pe, track.rail, which);
  };
  const Pattern mine = pattern(my_pe_, peer.pe, track.rail);
  switch (track.stage) {
    case Stage::put:
      std::memcpy(slot(outgoing), mine.data(), mine.size());
      if (post(track, true)) track.stage = Stage::putting;
      break;
    case Stage::putting:
      if (track.batch.pending == 0) track.stage = Stage::hello;
      break;
    case Stage::hello: {
      Message message;
      message.kind = Kind::hello;
      message.offset = track.rail;
      if (engine_.post_message(peer, track.rail, message, nullptr, 0) == 0)
        track.stage = Stage::wait;
      break;
    }
    case Stage::wait:
      if ((peer.refused & bit) != 0) fail(track, "it did not find the data that was put");
      if ((peer.welcomed & bit) != 0) track.stage = Stage::get;
      break;
    case Stage::get:
      if (post(track, false)) track.stage = Stage::getting;
      break;
    case Stage::getting:
      if (track.batch.pending != 0) break;
      track.stage = Stage::done;
      if (std::memcmp(slot(read_back), mine.data(), mine.size()) != 0)
        fail(track, "other data was read than was put");
      break;
    default:
      break;
  }
  return track.stage == Stage::done || track.stage == Stage::failed;
}

/// Posts the write of the pattern or its read; false: later.
bool Handshake::post(Track& track, bool write) {
  if (engine_.free_.first == nullptr) return false;
  Engine::Request& request = *engine_.free_.take();
  Engine::Line& line = engine_.lines_[track.rail];
  Peer& peer = track.peer;
  Peer::OnRail& on = peer.rails[track.rail];
  request.kind = write ? Engine::Request::Kind::write : Engine::Request::Kind::read;
  request.probe = false;
  request.rail = static_cast<std::uint8_t>(track.rail);
  request.pe = peer.pe;
  request.batch = &track.batch;
  request.bounce = nullptr;
  request.buffer = nullptr;
  request.target = nullptr;
  std::byte* const local =
      engine_.scratch_.data() + slot_offset(peer.pe, track.rail, write ? outgoing : read_back);
  const std::size_t remote = slot_offset(my_pe_, track.rail, incoming);
  const ssize_t code =
      write ? line.rail->write(on.address, on.scratch, remote, local, kPatternBytes,
                               line.scratch.descriptor, engine_.delivery_, &request.context)
            : line.rail->read(on.address, on.scratch, remote, local, kPatternBytes,
                              line.scratch.descriptor, &request.context);
  if (code != 0) {
    engine_.free_.give(&request);
    if (code != -FI_EAGAIN)
      fail(track,
           fmt::format("{} on rail {} ({})", error_text(code), track.rail, line.rail->domain()));
    return false;
  }
  ++track.batch.pending;
  if (write) {
    ++peer.writes;
    ++on.writes;
  } else {
    ++peer.reads;
  }
  return true;
}

}  // namespace shoal::transport::ofi
