// SPDX-License-Identifier: Apache-2.0
// shoal/detail/stream_steps.hpp: the parts of pipelines, barriers and tables of bindings on CUDA
// streams.
//
// Headers in shoal/detail are installed for code that extends Shoal. They change without notice.
//
//   shoal::detail::StreamSteps(world, stream).wait_for_all(world.team(), flags.data(), 1);
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <shoal/cuda.hpp>

namespace shoal::detail {

/// A block of bytes that put_to_all copies: from local memory to `place`, an address in this PE's
/// heap that names the copy on every PE. With source == place this PE's copy is there already;
/// others_only: it is written by other means.
struct StreamBlock {
  void* place = nullptr;
  const void* source = nullptr;
  std::size_t bytes = 0;
  bool others_only = false;
};

/// Entries of a table that is spread over the PEs of a world, chosen by indices in GPU memory.
/// Entry i lies on PE i / entries_per_pe as number i % entries_per_pe of that PE's part.
///
/// Each entry can have words in a second table, of which this PE holds the whole: `words` of them
/// per entry, 0: none. Word w of fetched entry r * per_row + k goes to
/// words_target[r * row_stride + (k * words + w) * step].
struct EntryFetch {
  const void* part = nullptr;             ///< of this PE, at the same offset of every heap
  std::size_t entry_bytes = 0;            ///< at least 1
  std::int64_t entries_per_pe = 0;        ///< at least 1
  const std::int32_t* indices = nullptr;  ///< [count]
  std::int64_t count = 0;
  void* target = nullptr;  ///< [count] entries, contiguous

  const std::uint32_t* words_table = nullptr;  ///< [all entries, words]
  std::uint32_t* words_target = nullptr;
  std::int64_t words = 0, per_row = 1, row_stride = 0, step = 1;
};

/// Operations on a stream that combine waits, copies and signals. The contract is that of
/// cuda::StreamOperations, but all need loads and stores: Error{unsupported} where this GPU does
/// not reach the heap of a PE by them.
class StreamSteps : public cuda::StreamOperations {
 public:
  using StreamOperations::StreamOperations;

  // They hide the base's forwards of version 0.1.
  // NOLINTBEGIN(bugprone-derived-method-shadowing-base-method)

  /// Puts, then sets the flag to `value`, once `*ready` is at least `at_least`. `ready` is a signal
  /// of this PE's heap that the target's PE sets; nullptr: at once. One kernel for few bytes; else
  /// a wait, a copy by a copy engine and a signal.
  void put_when(const std::uint64_t* ready, std::uint64_t at_least, RemoteAddress target,
                const void* source, std::size_t bytes, RemoteSpan<std::uint64_t> flag,
                std::uint64_t value) const;
  /// The other side of put_when: waits likewise, copies `bytes` bytes of this PE's heap at `source`
  /// to local memory, then sets `flag` to `value` on the PE that sets `*ready`.
  void take_when(const std::uint64_t* ready, std::uint64_t at_least, void* target,
                 const void* source, std::size_t bytes, RemoteSpan<std::uint64_t> flag,
                 std::uint64_t value) const;

  /// Copies the blocks to every PE of the team, this one included, then sets flags[my PE of the
  /// world] there to `value`. `flags` is an array of this PE's heap with a word for each PE of the
  /// world. One kernel for few bytes; else copy engines and one signal kernel.
  void put_to_all(const shoal::Team& team, std::span<const StreamBlock> blocks,
                  std::uint64_t* flags, std::uint64_t value) const;
  /// Holds the stream until flags[p] is at least `value` for every PE p of the team. A failure
  /// names the PE.
  void wait_for_all(const shoal::Team& team, const std::uint64_t* flags, std::uint64_t value) const;
  /// Fetches entries of a table, in one kernel. An index outside the table gives zeros and is a
  /// failure (check_failures).
  void fetch_entries(const EntryFetch& fetch) const;
  // NOLINTEND(bugprone-derived-method-shadowing-base-method)
};

}  // namespace shoal::detail
