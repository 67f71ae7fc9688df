// SPDX-License-Identifier: Apache-2.0
// shoal/collective.hpp: collectives over teams (OpenSHMEM 1.5, section 9.9).
//
//   auto mine = world.heap().allocate<float>(1), all = world.heap().allocate<float>(world.n_pes());
//   mine[0] = 1.0f;
//   shoal::all_gather(world.team(), all.span(), mine.span());
//
// Each call takes a `target` and a `source` of elements of one type, in blocks of one length (the
// table, for n PEs). For callers that learn types at run time, the calls named _bytes take
// addresses and bytes, and reductions take addresses, a DataType and a number of elements.
//
// | call | blocks of target | blocks of source |
// |---|---|---|
// | broadcast, reduce | 1 | 1 |
// | all_gather | n | 1 |
// | all_to_all | n | n |
// | reduce_scatter | 1 | n |
//
// Every PE of the team calls, in the same order, with the same counts. `source` and `target` lie
// in this PE's symmetric heap, at the same offset on every PE. They must not overlap; a call marked
// "in place" also takes equal addresses. On return `target` is complete on this PE and `source` may
// be reused. "PE i" is index i of the team. Sizes of zero are allowed, with any addresses.
//
// Bad arguments (null, outside the heap, root out of range, a dtype that the operation does not
// take) throw Error{invalid_argument} before anything is sent; the errors of other PEs that wait
// for this one quote the message. When PEs pass different arguments, or make different calls that
// move data, all of them throw Error{mismatch} stating who passed what, and the team stays usable.
// When a PE does not come, the others throw Error{timeout} naming it, or Error{peer_failed}; the
// team is then out of step and no longer usable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
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
[[nodiscard]] std::vector<std::byte> exchange_bytes(const Team& team,
                                                    std::span<const std::byte> mine);

namespace detail {

/// The DataType of T for reductions.
template <typename T>
constexpr DataType reduced_type() {
  if constexpr (std::is_same_v<T, float>) {
    return DataType::float32;
  } else if constexpr (std::is_same_v<T, double>) {
    return DataType::float64;
  } else {
    static_assert(
        std::is_integral_v<T> && std::is_signed_v<T> && (sizeof(T) == 4 || sizeof(T) == 8),
        "reduce and reduce_scatter with spans take elements of type int32_t, int64_t, float or "
        "double; bfloat16 and float16 need the call with addresses and a DataType");
    return sizeof(T) == 4 ? DataType::int32 : DataType::int64;
  }
}

/// Throws Error{invalid_argument} unless `target` and `source` elements are `target_blocks` and
/// `source_blocks` blocks of one length. Returns the length. The first one reports the error to PEs
/// that wait for this one.
std::size_t block_length(const Team& team, const char* call, std::size_t target, std::size_t source,
                         std::size_t target_blocks, std::size_t source_blocks);
std::size_t block_length(const char* call, std::size_t target, std::size_t source,
                         std::size_t target_blocks, std::size_t source_blocks);
/// all_to_all_v in elements of `size` bytes.
void all_to_all_v_elements(const Team& team, std::size_t size, void* target,
                           std::size_t target_count, std::span<const std::size_t> receive_counts,
                           std::span<const std::size_t> receive_offsets, const void* source,
                           std::size_t source_count, std::span<const std::size_t> send_counts,
                           std::span<const std::size_t> send_offsets);

}  // namespace detail

/// Copies `bytes` bytes of the root's `source` to every PE's `target`, the root's included. In
/// place.
void broadcast_bytes(const Team& team, void* target, const void* source, std::size_t bytes,
                     Pe root);
/// Copies PE i's `source` (`bytes` bytes) to block i of every `target` (OpenSHMEM: fcollect).
void all_gather_bytes(const Team& team, void* target, const void* source, std::size_t bytes);
/// Copies block j of PE i's `source` to block i of PE j's `target`; blocks of `bytes` bytes.
void all_to_all_bytes(const Team& team, void* target, const void* source, std::size_t bytes);

/// All-to-all with a size per pair of PEs.
///
/// This PE sends send_bytes[j] bytes at source + send_offsets[j] to PE j. There they arrive at
/// target + receive_offsets[this PE]. The spans have one element per PE, in bytes, in ordinary
/// memory; only size() elements are read. `source` and `target` may differ among PEs. What this PE
/// receives must not overlap what it sends or receives otherwise. Throws Error{mismatch} on all PEs
/// when send_bytes and receive_bytes differ for a pair.
void all_to_all_v_bytes(const Team& team, void* target, std::span<const std::size_t> receive_bytes,
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

// The collectives with spans of elements, of any extent; T is trivially copyable. They throw
// Error{invalid_argument} when the lengths do not fit (the table above), stating them and the
// number of PEs.

template <typename T, std::size_t N>
void broadcast(const Team& team, std::span<T, N> target,
               std::span<const std::type_identity_t<T>> source, Pe root) {
  detail::block_length(team, "broadcast", target.size(), source.size(), 1, 1);
  broadcast_bytes(team, target.data(), source.data(), source.size_bytes(), root);
}
template <typename T, std::size_t N>
void all_gather(const Team& team, std::span<T, N> target,
                std::span<const std::type_identity_t<T>> source) {
  const auto n = static_cast<std::size_t>(team.size());
  detail::block_length(team, "all_gather", target.size(), source.size(), n, 1);
  all_gather_bytes(team, target.data(), source.data(), source.size_bytes());
}
template <typename T, std::size_t N>
void all_to_all(const Team& team, std::span<T, N> target,
                std::span<const std::type_identity_t<T>> source) {
  const auto n = static_cast<std::size_t>(team.size());
  const std::size_t length =
      detail::block_length(team, "all_to_all", target.size(), source.size(), n, n);
  all_to_all_bytes(team, target.data(), source.data(), length * sizeof(T));
}
/// Exchanges as all_to_all_v_bytes does. Counts and offsets are in elements and must stay within
/// the spans.
template <typename T, std::size_t N>
void all_to_all_v(const Team& team, std::span<T, N> target,
                  std::span<const std::size_t> receive_counts,
                  std::span<const std::size_t> receive_offsets,
                  std::span<const std::type_identity_t<T>> source,
                  std::span<const std::size_t> send_counts,
                  std::span<const std::size_t> send_offsets) {
  detail::all_to_all_v_elements(team, sizeof(T), target.data(), target.size(), receive_counts,
                                receive_offsets, source.data(), source.size(), send_counts,
                                send_offsets);
}
/// Reduces elements of type int32, int64, float or double.
template <typename T, std::size_t N>
void reduce(const Team& team, ReduceOp op, std::span<T, N> target,
            std::span<const std::type_identity_t<T>> source) {
  detail::block_length(team, "reduce", target.size(), source.size(), 1, 1);
  reduce(team, detail::reduced_type<T>(), op, target.data(), source.data(), source.size());
}
template <typename T, std::size_t N>
void reduce_scatter(const Team& team, ReduceOp op, std::span<T, N> target,
                    std::span<const std::type_identity_t<T>> source) {
  const auto n = static_cast<std::size_t>(team.size());
  detail::block_length(team, "reduce_scatter", target.size(), source.size(), 1, n);
  reduce_scatter(team, detail::reduced_type<T>(), op, target.data(), source.data(), target.size());
}

// Names of version 0.1.

[[deprecated("use broadcast_bytes")]] inline void broadcast(const Team& team, void* target,
                                                            const void* source, std::size_t bytes,
                                                            Pe root) {
  broadcast_bytes(team, target, source, bytes, root);
}
[[deprecated("use all_gather_bytes")]] inline void all_gather(const Team& team, void* target,
                                                              const void* source,
                                                              std::size_t bytes) {
  all_gather_bytes(team, target, source, bytes);
}
[[deprecated("use all_to_all_bytes")]] inline void all_to_all(const Team& team, void* target,
                                                              const void* source,
                                                              std::size_t bytes) {
  all_to_all_bytes(team, target, source, bytes);
}
[[deprecated("use all_to_all_v_bytes")]] inline void all_to_all_v(
    const Team& team, void* target, std::span<const std::size_t> receive_bytes,
    std::span<const std::size_t> receive_offsets, const void* source,
    std::span<const std::size_t> send_bytes, std::span<const std::size_t> send_offsets) {
  all_to_all_v_bytes(team, target, receive_bytes, receive_offsets, source, send_bytes,
                     send_offsets);
}

}  // namespace shoal
