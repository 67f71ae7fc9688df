// SPDX-License-Identifier: Apache-2.0
// shoal/collective.hpp: collectives over teams (OpenSHMEM 1.5, section 9.9).
//
//   auto mine = world.heap().allocate<float>(1), all = world.heap().allocate<float>(world.n_pes());
//   mine[0] = 1.0f;
//   shoal::all_gather(world.team(), all.data(), mine.data(), sizeof(float));
//
// Every PE of the team calls, in the same order, with the same counts. `source` and `target` are
// addresses in this PE's symmetric heap, at the same offset on every PE. They must not overlap; a
// call marked "in place" also takes equal addresses. On return `target` is complete on this PE and
// `source` may be reused. "PE i" is index i of the team. Sizes of zero are allowed, with any
// addresses.
//
// Bad arguments (null, outside the heap, root out of range, a dtype that the operation does not
// take) throw Error{invalid_argument} before anything is sent; the errors of other PEs that wait
// for this one quote the message. When PEs pass different arguments, or make different calls that
// move data, all of them throw Error{mismatch} stating who passed what, and the team stays usable.
// When a PE does not come, the others throw Error{timeout} naming it, or Error{peer_failed}; the
// team is then out of step and no longer usable.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include <shoal/team.hpp>
#include <shoal/tensor.hpp>

namespace shoal {

/// Element-wise reductions.
enum class ReduceOp : std::uint8_t { sum, prod, min, max, bit_and, bit_or, bit_xor };

/// Completes this PE's outstanding operations (quiet), then waits for all PEs.
void barrier(const Team& team);
/// Waits for all PEs. Outstanding operations stay outstanding.
void sync(const Team& team);

/// The longest contribution to exchange_bytes.
inline constexpr std::size_t kMaxExchangeBytes = 512;
/// All-gather of a few bytes of ordinary memory, for agreeing on sizes and choices: one hop in a
/// small team. `mine` has the same length on all PEs, at most kMaxExchangeBytes. Returns size()
/// blocks of mine.size() bytes, by PE.
std::vector<std::byte> exchange_bytes(const Team& team, std::span<const std::byte> mine);

/// Copies `bytes` bytes of the root's `source` to every PE's `target`, the root's included. In
/// place.
void broadcast(const Team& team, void* target, const void* source, std::size_t bytes, Pe root);
/// Copies PE i's `source` (`bytes` bytes) to block i of every `target` (OpenSHMEM: fcollect).
void all_gather(const Team& team, void* target, const void* source, std::size_t bytes);
/// Copies block j of PE i's `source` to block i of PE j's `target`; blocks of `bytes` bytes.
void all_to_all(const Team& team, void* target, const void* source, std::size_t bytes);

/// All-to-all with a size per pair of PEs.
///
/// This PE sends send_bytes[j] bytes at source + send_offsets[j] to PE j. There they arrive at
/// target + receive_offsets[this PE]. The spans have one element per PE, in bytes, in ordinary
/// memory; only size() elements are read. `source` and `target` may differ among PEs. What this PE
/// receives must not overlap what it sends or receives otherwise. Throws Error{mismatch} on all PEs
/// when send_bytes and receive_bytes differ for a pair.
void all_to_all_v(const Team& team, void* target, std::span<const std::size_t> receive_bytes,
                  std::span<const std::size_t> receive_offsets, const void* source,
                  std::span<const std::size_t> send_bytes,
                  std::span<const std::size_t> send_offsets);

/// Element-wise reduction of `count` elements over all PEs. In place.
///
/// dtype: int32, int64, float32, float64, bfloat16 or float16; the bit operations take integers
/// only. The order is ascending by PE, so the result has the same bits on every PE and in every
/// run. bfloat16 and float16 are accumulated in float32 and rounded once. Integers wrap. min and
/// max of floating point are NaN when any PE has a NaN there. Addresses are multiples of the
/// element size.
void reduce(const Team& team, DataType dtype, ReduceOp op, void* target, const void* source,
            std::size_t count);
/// Reduces as reduce does, but PE i gets only block i (`count` elements) of the result. `source`
/// has size() blocks. In place: `target` is the start of `source`; the other blocks of it keep
/// their contents.
void reduce_scatter(const Team& team, DataType dtype, ReduceOp op, void* target, const void* source,
                    std::size_t count);

}  // namespace shoal
