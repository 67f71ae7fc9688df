// SPDX-License-Identifier: Apache-2.0
// control.hpp: the control block: what a PE's segment holds in front of the heap.
//
// Other PEs write into it through whatever transport reaches here, and its owner polls it. Nothing
// in it is ever cleared: every word either only grows or carries the epoch of the operation that
// wrote it. Offsets count from the start of the segment.
#pragma once

#include <cstddef>
#include <cstdint>

#include "shoal/heap.hpp"

namespace shoal::detail {

/// Changes whenever PEs of different builds would misread each other.
inline constexpr std::uint64_t kProtocolVersion = 3;

/// What a PE says about itself to all others.
enum class PeerStatus : std::uint64_t { running = 0, closed, failed, left };

/// Written by its owner alone, read by others for their error messages.
struct ProgressRecord {
  std::uint64_t activity;
  std::uint64_t epoch;
  std::uint64_t phase[2];  ///< text, at most 15 characters
  std::uint64_t awaited;   ///< the PE that it waits for, counted from 1; 0: none in particular
};

/// How the PE with this index in the board has fared; written by that PE.
struct StatusEntry {
  static constexpr std::size_t kMessageBytes = 504;
  std::uint64_t status;  ///< a PeerStatus
  char message[kMessageBytes];
};

/// One blob of an exchange with what is needed to see that all members are in the same one.
struct ExchangeEntry {
  static constexpr std::size_t kBlobBytes = 512;
  std::uint64_t epoch;
  std::uint64_t bytes;
  char what[48];  ///< name of the operation, for messages
  std::byte blob[kBlobBytes];
};

/// A record of the join board; written by one joining PE, polled by the owner of the board. The
/// words of the set of free team indices follow it. `version` is odd while the record is being
/// written.
struct JoinRecord {
  std::uint64_t version;
  std::uint64_t id;
  std::uint64_t size;
  std::uint64_t index;
  std::uint64_t generation;
};

/// Where everything lies: a pure function of the number of PEs and SHOAL_MAX_TEAMS, so it is the
/// same on every PE.
class ControlLayout {
 public:
  ControlLayout(Pe n_pes, std::int64_t max_teams);

  /// Bytes of the control block, a multiple of memory::Segment::kAlignment: the heap starts there.
  std::size_t bytes() const noexcept { return bytes_; }

  std::size_t progress() const noexcept { return 0; }
  /// Counts the status changes that other PEs wrote here; the only word that a healthy wait looks
  /// at.
  std::size_t alerts() const noexcept { return kLine; }
  std::size_t status(Pe from) const noexcept { return status_ + at(from) * sizeof(StatusEntry); }

  std::size_t join_record(Pe from) const noexcept { return join_ + at(from) * join_stride_; }
  std::size_t join_free_word(Pe from, std::size_t word) const noexcept {
    return join_record(from) + sizeof(JoinRecord) + word * sizeof(std::uint64_t);
  }
  /// The last join of this PE that `from` has read.
  std::size_t join_acknowledged(Pe from) const noexcept { return acknowledged_ + at(from) * kLine; }

  /// The flag and the blob of member `member` of the team with this index, for operations of this
  /// parity.
  std::size_t flag(std::int32_t team, std::uint64_t parity, std::size_t member) const noexcept {
    return teams_ + at(team) * team_stride_ + (parity * n_pes_ + member) * kLine;
  }
  std::size_t entry(std::int32_t team, std::uint64_t parity, std::size_t member) const noexcept {
    return teams_ + at(team) * team_stride_ + 2 * n_pes_ * kLine +
           (parity * n_pes_ + member) * sizeof(ExchangeEntry);
  }

 private:
  static constexpr std::size_t kLine =
      64;  // bytes of a cache line: flags of different writers do not share one
  static std::size_t at(std::int32_t index) noexcept { return static_cast<std::size_t>(index); }

  std::size_t n_pes_;
  std::size_t status_, join_, join_stride_, acknowledged_, teams_, team_stride_, bytes_;
};

}  // namespace shoal::detail
