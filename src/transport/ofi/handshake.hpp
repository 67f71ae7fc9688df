// SPDX-License-Identifier: Apache-2.0
// handshake.hpp: proves for each peer and rail that data, a message and its answer come through,
// both ways.
//
// A PE puts a pattern into the peer's scratch memory, waits for the completion, and says hello on
// that rail; the peer looks for the pattern and answers; then the pattern is read back. Scratch
// memory has, for each PE and rail, a slot that the peer writes and two of this PE's own.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "transport/ofi/engine.hpp"

namespace shoal::transport::ofi {

inline constexpr std::size_t kPatternBytes = 64;
/// Of a world of so many PEs.
std::size_t scratch_bytes(Pe n_pes);

class Handshake {
 public:
  /// With the peers that the engine knows. The progress of others' handshakes needs polling after
  /// it ends.
  Handshake(Engine& engine, Pe my_pe);
  /// Returns when all have succeeded or failed, or when the time has passed. `check`: called about
  /// every millisecond.
  void run(std::chrono::milliseconds limit, const std::function<void()>& check);
  /// Empty: the PE is connected. Else why not.
  const std::string& reason(Pe pe) const { return reasons_[static_cast<std::size_t>(pe)]; }

  /// Is what `from` puts to `to` in the scratch memory of `to`?
  static bool arrived(const std::byte* scratch, Pe from, Pe to, std::size_t rail);

 private:
  enum class Stage { put, putting, hello, wait, get, getting, done, failed };
  struct Track {
    Peer& peer;
    std::size_t rail;
    Stage stage = Stage::put;
    Batch batch;
  };

  bool step(Track& track);
  bool post(Track& track, bool write);
  void fail(Track& track, const std::string& text);

  Engine& engine_;
  const Pe my_pe_;
  std::vector<Track> tracks_;
  std::vector<std::string> reasons_;
};

}  // namespace shoal::transport::ofi
