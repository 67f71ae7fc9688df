// SPDX-License-Identifier: Apache-2.0
// slots.hpp: the free team indices of this PE.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace shoal::detail {

class TeamSlots {
 public:
  explicit TeamSlots(std::int64_t count)
      : free_((static_cast<std::size_t>(count) + 63) / 64, ~std::uint64_t{0}), count_(count) {
    if (count % 64 != 0) free_.back() = (std::uint64_t{1} << (count % 64)) - 1;
  }

  std::int64_t count() const noexcept { return count_; }
  /// One bit per index, set where it is free.
  std::span<const std::uint64_t> free_words() const noexcept { return free_; }
  std::int64_t used() const noexcept {
    std::int64_t free = 0;
    for (const std::uint64_t word : free_) free += __builtin_popcountll(word);
    return count_ - free;
  }

  void take(std::int32_t index) noexcept { free_[at(index)] &= ~bit(index); }
  void release(std::int32_t index) noexcept { free_[at(index)] |= bit(index); }

  /// Lowest index whose bit is set; nullopt when none is. `words` start at word `first_word`.
  static std::optional<std::int32_t> lowest(std::span<const std::uint64_t> words,
                                            std::size_t first_word = 0) noexcept {
    for (std::size_t i = 0; i < words.size(); ++i)
      if (words[i] != 0)
        return static_cast<std::int32_t>((first_word + i) * 64) + __builtin_ctzll(words[i]);
    return std::nullopt;
  }

  /// Generation of the next team that this PE will be in; the PEs of a team take the highest.
  /// Predefined teams are generation 1.
  std::uint64_t next_generation = 2;

 private:
  static std::size_t at(std::int32_t index) noexcept {
    return static_cast<std::size_t>(index) / 64;
  }
  static std::uint64_t bit(std::int32_t index) noexcept { return std::uint64_t{1} << (index % 64); }

  std::vector<std::uint64_t> free_;
  std::int64_t count_;
};

}  // namespace shoal::detail
