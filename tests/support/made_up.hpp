// SPDX-License-Identifier: Apache-2.0
// made_up.hpp: generated values, which every PE can compute for all PEs, and checks that throw.
#pragma once

#include <bit>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "shoal/numeric.hpp"
#include "shoal/tensor.hpp"

namespace shoal::test {

/// For checks on the threads of PEs, which GoogleTest does not watch. `what` is a text or a
/// function that returns one. Use a function where every element is checked: formatting unused
/// texts would take most of the time.
template <class What>
void expect(bool condition, const What& what) {
  if (condition) return;
  if constexpr (std::is_invocable_v<const What&>)
    throw std::runtime_error(what());
  else
    throw std::runtime_error(what);
}

inline std::uint64_t mix(std::uint64_t x) {  // splitmix64 finaliser
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

inline std::uint32_t encode(DataType dtype, float value) {
  if (dtype == DataType::bfloat16) return bfloat16_from_float(value);
  if (dtype == DataType::float16) return float16_from_float(value);
  return std::bit_cast<std::uint32_t>(value);
}

inline float decode(DataType dtype, std::uint32_t bits) {
  if (dtype == DataType::bfloat16) return float_from_bfloat16(static_cast<std::uint16_t>(bits));
  if (dtype == DataType::float16) return float_from_float16(static_cast<std::uint16_t>(bits));
  return std::bit_cast<float>(bits);
}

/// A value between -2 and 2, of several magnitudes.
inline float made_up(std::uint64_t hash) {
  const float value = static_cast<float>(static_cast<std::int64_t>(hash % 4001) - 2000) / 1000.0F;
  return value / static_cast<float>(1 << ((hash >> 40) % 7));
}

/// Fills memory with bytes of `seed`; holds() finds them there.
inline void fill(std::byte* memory, std::size_t bytes, std::uint64_t seed) {
  for (std::size_t i = 0; i < bytes; ++i)
    memory[i] = static_cast<std::byte>(mix(seed + i / 8) >> (8 * (i % 8)));
}

inline bool holds(const std::byte* memory, std::size_t bytes, std::uint64_t seed) {
  for (std::size_t i = 0; i < bytes; ++i)
    if (memory[i] != static_cast<std::byte>(mix(seed + i / 8) >> (8 * (i % 8)))) return false;
  return true;
}

}  // namespace shoal::test
