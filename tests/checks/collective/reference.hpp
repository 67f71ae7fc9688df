// SPDX-License-Identifier: Apache-2.0
// reference.hpp: collectives compared with naive references. Contents follow from a seed and the
// index of the PE, so every PE computes without communication what all PEs sent, and hence what it
// must receive.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "shoal/collective.hpp"
#include "shoal/world.hpp"

namespace shoal::test {

inline constexpr DataType kReduceTypes[] = {DataType::int32,    DataType::int64,
                                            DataType::float32,  DataType::float64,
                                            DataType::bfloat16, DataType::float16};
inline constexpr ReduceOp kReduceOps[] = {ReduceOp::sum,    ReduceOp::prod,    ReduceOp::min,
                                          ReduceOp::max,    ReduceOp::bit_and, ReduceOp::bit_or,
                                          ReduceOp::bit_xor};

bool is_integer(DataType dtype);
bool is_bit_operation(ReduceOp op);

using Bytes = std::vector<std::byte>;

Bytes random_bytes(std::size_t count, std::uint64_t seed);
/// Finite values whose sums and products often round.
Bytes random_elements(DataType dtype, std::size_t count, std::uint64_t seed);
/// Element by element, from source 0 upwards; bfloat16 and float16 in float, rounded once.
Bytes reduce_naively(DataType dtype, ReduceOp op, const std::vector<Bytes>& sources);

/// Two areas of the symmetric heap, and one call per collective, which runs it and compares every
/// byte of the target and some bytes around it that must not change. The constructor is collective
/// over the world, the calls over the team.
class CollectiveCheck {
 public:
  /// `capacity`: the most bytes that a source or target may have.
  CollectiveCheck(World& world, std::size_t capacity);

  void broadcast(const Team& team, std::size_t bytes, Pe root, std::uint64_t seed,
                 bool in_place = false);
  void all_gather(const Team& team, std::size_t bytes, std::uint64_t seed);
  void all_to_all(const Team& team, std::size_t bytes, std::uint64_t seed);
  /// Sizes of 0 to `max_bytes` per pair, with gaps between the blocks.
  void all_to_all_v(const Team& team, std::size_t max_bytes, std::uint64_t seed);
  void reduce(const Team& team, DataType dtype, ReduceOp op, std::size_t count, std::uint64_t seed,
              bool in_place = false);
  void reduce_scatter(const Team& team, DataType dtype, ReduceOp op, std::size_t count,
                      std::uint64_t seed, bool in_place = false);

  std::byte* target() const { return target_.data() + kGuard; }
  std::byte* source() const { return source_.data() + kGuard; }

 private:
  static constexpr std::size_t kGuard = 64;

  void load(std::byte* where, const Bytes& contents);
  void clear_target();
  void expect_target(const Bytes& expected, const std::byte* where, const char* operation) const;

  std::size_t capacity_;
  SymmetricArray<std::byte> target_;
  SymmetricArray<std::byte> source_;
};

/// Runs `count` operations of random kind, shape and team, the same on every PE, and checks each.
/// PEs sleep at different times, so that they enter and leave operations skewed. Collective over
/// the world.
void run_random_collectives(World& world, std::size_t count, std::uint64_t seed);

}  // namespace shoal::test
