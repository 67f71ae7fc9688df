// SPDX-License-Identifier: Apache-2.0
// draws.hpp: numbers for random shapes. A seed gives the same numbers on every machine.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>

namespace shoal::test {

class Draws {
 public:
  /// log_pick continues to double with a chance of `reach` - 1 in `reach`.
  explicit Draws(std::uint64_t seed, std::int64_t reach = 6) : random_(seed), reach_(reach) {}

  std::int64_t pick(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(high - low + 1));
  }
  /// Small values are as likely as large ones.
  std::int64_t log_pick(std::int64_t low, std::int64_t high) {
    std::int64_t limit = low;
    while (limit < high && pick(1, reach_) > 1) limit *= 2;
    return pick(low, std::min(limit, high));
  }
  template <typename T, typename... Rest>
  T one_of(T first, Rest... rest) {
    const T values[] = {first, rest...};
    return values[pick(0, static_cast<std::int64_t>(sizeof...(rest)))];
  }

 private:
  std::mt19937_64 random_;
  std::int64_t reach_;
};

}  // namespace shoal::test
