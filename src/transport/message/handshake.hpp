// SPDX-License-Identifier: Apache-2.0
// handshake.hpp: proves for each peer and rail, before a pair relies on it, that data and messages
// come through in both directions.
//
// A PE writes a pattern to the peer's scratch memory and says hello after it on the same rail. The
// peer looks for the pattern and replies with welcome. The PE then reads the pattern back, and a
// word of the peer's segment.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "transport/message/engine.hpp"

namespace shoal::transport::message {

inline constexpr std::size_t kPatternBytes = 64;

/// Slots of the scratch memory of a PE for each peer and rail.
enum class Slot : std::uint8_t { incoming, outgoing, read_back, segment_word, count };

constexpr std::size_t scratch_offset(Pe pe, std::size_t rail, std::size_t rails, Slot slot) {
  constexpr auto kSlots = static_cast<std::size_t>(Slot::count);
  const std::size_t connection = static_cast<std::size_t>(pe) * rails + rail;
  return (connection * kSlots + static_cast<std::size_t>(slot)) * kPatternBytes;
}
constexpr std::size_t scratch_bytes(Pe n_pes, std::size_t rails) {
  return scratch_offset(n_pes, 0, rails, Slot::incoming);
}
/// True if `memory` holds the pattern that `from` writes to `to` on this rail.
bool is_pattern(const std::byte* memory, std::uint64_t world, Pe from, Pe to, std::size_t rail);

class Handshake {
 public:
  /// With all peers that the engine knows.
  explicit Handshake(Engine& engine);
  /// Returns when every peer has succeeded or failed, or when `limit` has passed. `check`: called
  /// about every millisecond. The engine must be polled afterwards: peers may not be done yet.
  void run(std::chrono::milliseconds limit, const std::function<void()>& check);
  /// Why `pe` is not connected; empty: it is.
  const std::string& reason(Pe pe) const { return reasons_[static_cast<std::size_t>(pe)]; }

 private:
  enum class Stage : std::uint8_t {
    write,
    hello,
    welcome,
    read_word,
    read_back,
    reading,
    done,
    failed
  };
  struct Track {
    Peer& peer;
    std::size_t rail;
    Stage stage = Stage::write;
    Batch batch{};

    bool is_over() const { return stage == Stage::done || stage == Stage::failed; }
  };

  void step(Track& track);
  bool transfer(Track& track, Direction direction, Region region, std::size_t offset, Slot local);
  void fail(Track& track, const std::string& reason);
  void abandon();
  std::byte* slot(const Track& track, Slot which) const;

  Engine& engine_;
  std::vector<Track> tracks_;
  std::vector<std::string> reasons_;  ///< by PE
};

}  // namespace shoal::transport::message
