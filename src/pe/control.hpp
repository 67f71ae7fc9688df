// SPDX-License-Identifier: Apache-2.0
// control.hpp: the control block, which lies in front of the heap in each PE's segment.
//
// Other PEs write into it through any transport, and its owner polls it. No word is ever cleared:
// each one either only grows or carries the epoch of the operation that wrote it. Offsets count
// from the start of the segment.
#pragma once

#include <cstddef>
#include <cstdint>

#include "shoal/heap.hpp"

namespace shoal::detail {

/// Increases with every change after which PEs of different builds would misread each other.
inline constexpr std::uint64_t kProtocolVersion = 12;

/// The state of a PE as it announces it to all others.
enum class PeerStatus : std::uint64_t { running = 0, closed, failed, left };

/// Written by its owner, read by other PEs for their error messages.
struct ProgressEntry {
  std::uint64_t activity;
  std::uint64_t epoch;
  std::uint64_t phase[2];  ///< text, at most 15 characters
  std::uint64_t awaited;   ///< the PE that it waits for, plus 1; 0: no single PE
};

/// The last collective call of some kind that its owner refused because of its arguments, with the
/// reason: written by the owner, read by other PEs for their error messages.
struct RefusalEntry {
  static constexpr std::size_t kTextWords = 62;
  std::uint64_t number;  ///< CallId::number; 0 while the record is written, and before the first
  std::uint64_t object;  ///< CallId::object
  std::uint64_t text[kTextWords];
};

/// The status of one PE, written by that PE.
struct StatusEntry {
  static constexpr std::size_t kMessageBytes = 504;
  std::uint64_t status;  ///< a PeerStatus
  char message[kMessageBytes];
};

/// Why a PE gives something up, written by that PE. Two entries per PE alternate, so that a reader
/// never sees an entry that is being written.
struct CauseEntry {
  static constexpr std::size_t kReasonBytes = 504;
  std::uint64_t cause;  ///< word(); 0: none yet
  char reason[kReasonBytes];

  /// `sequence` counts the entries of the writer from 1. A negative `pe` is an unknown PE.
  static std::uint64_t word(std::uint64_t sequence, Pe pe) noexcept {
    return sequence << 32 | static_cast<std::uint32_t>(pe + 1);
  }
  static std::uint64_t sequence_of(std::uint64_t word) noexcept { return word >> 32; }
  static Pe pe_of(std::uint64_t word) noexcept {
    return static_cast<Pe>(static_cast<std::uint32_t>(word)) - 1;
  }
};

/// One PE's part of an exchange. `epoch` and `declared` show whether all PEs are in the same
/// exchange. The flag, what follows it and a short blob share a cache line.
struct ExchangeEntry {
  static constexpr std::size_t kBlobBytes = 512;
  static constexpr std::size_t kWhatBytes = 40;
  std::uint64_t flag;  ///< ControlLayout::flag
  std::uint64_t epoch;
  std::uint32_t declared;                      ///< length of the blob, or what stands for it
  std::uint16_t bytes;                         ///< length of the blob
  std::uint16_t what_bytes;                    ///< length of the name
  std::byte payload[kBlobBytes + kWhatBytes];  ///< the blob, the name of the operation
};

/// A record of the join board, written by one joining PE and polled by the owner of the board. The
/// bit set of free team indices follows it. `version` is odd while the record is being written.
struct JoinEntry {
  std::uint64_t version;
  std::uint64_t id;
  std::uint64_t size;
  std::uint64_t index;
  std::uint64_t generation;
};

/// The offsets in the control block: a pure function of the number of PEs and SHOAL_MAX_TEAMS,
/// hence the same on every PE.
class ControlLayout {
 public:
  ControlLayout(Pe n_pes, std::int64_t max_teams);

  /// Bytes of the control block, a multiple of memory::Segment::kAlignment. The heap or staging
  /// starts there.
  std::size_t bytes() const noexcept { return bytes_; }

  std::size_t progress() const noexcept { return 0; }
  /// Counts the entries that other PEs wrote to the board; the only word that a healthy wait reads.
  std::size_t alerts() const noexcept { return kLine; }
  /// The WaitPoint of this PE.
  std::size_t wait_point() const noexcept { return 2 * kLine; }
  /// A record for each CallKind.
  std::size_t refusal(std::size_t kind) const noexcept {
    return refusals_ + kind * sizeof(RefusalEntry);
  }
  static constexpr std::size_t kRefusals = 4;
  std::size_t status(Pe from) const noexcept { return status_ + at(from) * sizeof(StatusEntry); }

  /// One of the two cause entries of `from`.
  std::size_t cause(Pe from, std::uint64_t parity) const noexcept {
    return causes_ + (2 * at(from) + parity) * sizeof(CauseEntry);
  }

  /// Bytes that only `from` writes, while a network is tried: the reason of its first cause entry,
  /// which no PE reads before a failure is published there.
  static constexpr std::size_t kTrialBytes = CauseEntry::kReasonBytes;
  std::size_t trial(Pe from) const noexcept {
    return cause(from, 0) + offsetof(CauseEntry, reason);
  }

  std::size_t join_entry(Pe from) const noexcept { return join_ + at(from) * join_stride_; }
  std::size_t join_free_word(Pe from, std::size_t word) const noexcept {
    return join_entry(from) + sizeof(JoinEntry) + word * sizeof(std::uint64_t);
  }
  /// The version of the last join record of this PE that `from` has read.
  std::size_t join_acknowledged(Pe from) const noexcept { return acknowledged_ + at(from) * kLine; }

  /// The flag and the exchange entry of the PE with index `pe` in the team with index `team`, for
  /// operations whose epoch has this parity.
  std::size_t flag(std::int32_t team, std::uint64_t parity, std::size_t pe) const noexcept {
    if (n_pes_ <= kDirectPes) return entry(team, parity, pe) + offsetof(ExchangeEntry, flag);
    return teams_ + at(team) * team_stride_ + (parity * n_pes_ + pe) * kLine;
  }
  std::size_t entry(std::int32_t team, std::uint64_t parity, std::size_t pe) const noexcept {
    return entries_ + at(team) * team_stride_ + (parity * n_pes_ + pe) * sizeof(ExchangeEntry);
  }
  /// Teams of up to so many PEs write flags and entries directly to all PEs. Larger ones pass
  /// entries on, so in worlds that are larger no flag lies in an entry.
  static constexpr std::size_t kDirectPes = 32;

 private:
  /// Bytes of a cache line. Flags of different writers do not share one.
  static constexpr std::size_t kLine = 64;
  static std::size_t at(std::int32_t index) noexcept { return static_cast<std::size_t>(index); }

  std::size_t n_pes_;
  std::size_t refusals_, status_, causes_, join_, join_stride_, acknowledged_, teams_, entries_,
      team_stride_, bytes_;
};

}  // namespace shoal::detail
