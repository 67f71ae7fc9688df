// SPDX-License-Identifier: Apache-2.0
// shoal/collective.hpp: collectives over teams (OpenSHMEM 1.5, section 9.9; requirement D6).
//
// Every member of the team calls, in the same order, with the same counts. `source` and `target`
// are addresses in this PE's symmetric heap, at the same offset on every member, except where said
// otherwise; they must not overlap unless they are equal where "in place" is said. On return
// `target` is complete on this PE and `source` may be reused. Member i is the PE with index i of
// the team. Sizes of zero are allowed, with any addresses.
//
// Bad arguments (null, outside the heap, root out of range, dtype that the operation does not know)
// throw Error{invalid_argument} before anything is sent. Members that call with different
// arguments, or make different calls that move data: Error{mismatch} on all of them, stating who
// passed what; the team stays usable. A member that does not come: Error{timeout} naming it, or
// Error{peer_failed}; the team is then out of step and no longer usable.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include <shoal/team.hpp>
#include <shoal/tensor.hpp>

namespace shoal {

enum class ReduceOp : std::uint8_t { sum, prod, min, max, bit_and, bit_or, bit_xor };

/// Completes this PE's outstanding operations (quiet), then waits for all members.
void barrier(const Team& team);
/// Waits for all members; outstanding operations stay outstanding.
void sync(const Team& team);

/// All-gather of a few bytes of ordinary memory: size() blocks of mine.size() bytes each, in member
/// order. For agreeing on sizes and choices: one hop in a small team, and no heap memory is needed.
/// At most kMaxExchangeBytes, the same length on all members.
inline constexpr std::size_t kMaxExchangeBytes = 512;
std::vector<std::byte> exchange_bytes(const Team& team, std::span<const std::byte> mine);

/// `bytes` bytes of the root's `source` to every member's `target`, the root's included. In place
/// allowed.
void broadcast(const Team& team, void* target, const void* source, std::size_t bytes, Pe root);
/// Member i's `source` (`bytes` bytes) to block i of every `target`. Also known as fcollect.
void all_gather(const Team& team, void* target, const void* source, std::size_t bytes);
/// Block j of member i's `source` to block i of member j's `target`; blocks of `bytes` bytes.
void all_to_all(const Team& team, void* target, const void* source, std::size_t bytes);

/// All-to-all with a size per pair. This PE sends source[send_offsets[j] .. + send_bytes[j]) to
/// member j, where it lands at the offset that member j gives for this PE in its receive_offsets.
/// Spans have one element per member, in bytes; they are private. Offsets count from `source` and
/// `target`, which may differ among members. What this PE receives must not overlap what it sends,
/// nor what it receives from another member. Throws Error{mismatch} on all members when send_bytes
/// and receive_bytes differ for a pair.
void all_to_all_v(const Team& team, void* target, std::span<const std::size_t> receive_bytes,
                  std::span<const std::size_t> receive_offsets, const void* source,
                  std::span<const std::size_t> send_bytes,
                  std::span<const std::size_t> send_offsets);

/// Element-wise reduction of `count` elements over all members, in ascending member order, so that
/// the result is the same bit by bit on every member and every time. In place allowed. int32,
/// int64, float32, float64, bfloat16, float16; the bit operations take integers only. bfloat16 and
/// float16 are accumulated in float32 and rounded once; integers wrap around; min and max of
/// floating point are NaN when a member has NaN there. Addresses are multiples of the element size.
void reduce(const Team& team, DataType dtype, ReduceOp op, void* target, const void* source,
            std::size_t count);
/// As reduce, but member i gets block i (`count` elements) of the result; `source` has size()
/// blocks. In place means that `target` is the start of `source`; the rest of it keeps its
/// contents.
void reduce_scatter(const Team& team, DataType dtype, ReduceOp op, void* target, const void* source,
                    std::size_t count);

}  // namespace shoal
