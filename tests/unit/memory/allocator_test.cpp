// SPDX-License-Identifier: Apache-2.0
// The allocator of the symmetric heap: best fit, coalescing, and comparison with a naive model.
// @traits one_thread
#include "memory/allocator.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

namespace shoal::memory {
namespace {

constexpr std::size_t kUnit = Allocator::kMinimumAlignment;

TEST(Allocator, TakesTheSmallestBlockThatFits) {
  Allocator allocator(10 * kUnit);
  const auto a = allocator.allocate(3 * kUnit);
  const auto b = allocator.allocate(kUnit);
  const auto c = allocator.allocate(2 * kUnit);
  const auto d = allocator.allocate(kUnit);
  ASSERT_TRUE(a && b && c && d);
  EXPECT_TRUE(allocator.release(*a));
  EXPECT_TRUE(allocator.release(*c));
  EXPECT_EQ(allocator.largest_free(), 3 * kUnit);
  EXPECT_EQ(allocator.allocate(2 * kUnit), c);
  EXPECT_EQ(allocator.allocate(1), a);
  EXPECT_EQ(allocator.high_water(), 7 * kUnit);
}

TEST(Allocator, JoinsFreeNeighbours) {
  Allocator allocator(8 * kUnit);
  std::vector<std::size_t> offsets;
  while (const auto offset = allocator.allocate(1)) offsets.push_back(*offset);
  ASSERT_EQ(offsets.size(), 8u);
  EXPECT_EQ(allocator.largest_free(), 0u);
  for (const std::size_t i : {1u, 3u, 2u, 0u, 7u, 5u, 6u, 4u})
    EXPECT_TRUE(allocator.release(offsets[i]));
  EXPECT_EQ(allocator.largest_free(), 8 * kUnit);
  EXPECT_EQ(allocator.used(), 0u);
}

TEST(Allocator, RefusesWhatDoesNotFit) {
  Allocator allocator(4 * kUnit + 5);
  EXPECT_EQ(allocator.size(), 4 * kUnit);
  EXPECT_FALSE(allocator.allocate(0));
  EXPECT_FALSE(allocator.allocate(4 * kUnit + 1));
  EXPECT_FALSE(allocator.allocate(SIZE_MAX));
  EXPECT_FALSE(allocator.allocate(SIZE_MAX - 10, 1 << 21));
  EXPECT_EQ(allocator.allocate(4 * kUnit), 0u);
  EXPECT_FALSE(Allocator(0).allocate(1));
}

TEST(Allocator, SurvivesBadReleases) {
  Allocator allocator(4 * kUnit);
  const auto a = allocator.allocate(2 * kUnit);
  EXPECT_FALSE(allocator.release(kUnit));
  EXPECT_FALSE(allocator.release(2 * kUnit));
  EXPECT_FALSE(allocator.release(SIZE_MAX));
  EXPECT_TRUE(allocator.release(*a));
  EXPECT_FALSE(allocator.release(*a));
  EXPECT_EQ(allocator.largest_free(), 4 * kUnit);
}

/// A map of every unit of the heap, the model that the allocator must match.
class Model {
 public:
  explicit Model(std::size_t units) : owner_(units, 0) {}

  void take(std::size_t offset, std::size_t bytes, int owner) {
    ASSERT_EQ(offset % kUnit, 0u);
    const std::size_t end = (offset + bytes + kUnit - 1) / kUnit;
    ASSERT_LE(end, owner_.size());
    for (std::size_t i = offset / kUnit; i < end; ++i) {
      ASSERT_EQ(owner_[i], 0) << "overlap at unit " << i;
      owner_[i] = owner;
    }
  }
  void release(int owner) { std::replace(owner_.begin(), owner_.end(), owner, 0); }
  std::size_t used() const {
    return (owner_.size() - static_cast<std::size_t>(std::count(owner_.begin(), owner_.end(), 0))) *
           kUnit;
  }
  std::size_t largest_free() const {
    std::size_t best = 0;
    std::size_t run = 0;
    for (const int owner : owner_) best = std::max(best, run = owner == 0 ? run + 1 : 0);
    return best * kUnit;
  }
  bool fits(std::size_t bytes, std::size_t alignment) const {
    const std::size_t need = (bytes + kUnit - 1) / kUnit;
    for (std::size_t start = 0; start + need <= owner_.size();
         start += std::max<std::size_t>(1, alignment / kUnit))
      if (std::all_of(owner_.begin() + static_cast<std::ptrdiff_t>(start),
                      owner_.begin() + static_cast<std::ptrdiff_t>(start + need),
                      [](int owner) { return owner == 0; }))
        return true;
    return false;
  }

 private:
  std::vector<int> owner_;
};

TEST(Allocator, AgreesWithANaiveModel) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    constexpr std::size_t kUnits = 300;
    Allocator allocator(kUnits * kUnit);
    Allocator twin(kUnits * kUnit);  // the same calls give the same offsets
    Model model(kUnits);
    std::map<int, std::size_t> live;
    for (int step = 1; step <= 1000; ++step) {
      if (random() % 3 != 0) {
        const std::size_t bytes = 1 + random() % (random() % 8 == 0 ? 100 * kUnit : 10 * kUnit);
        const std::size_t alignment = std::size_t{1} << (random() % 13);
        const auto offset = allocator.allocate(bytes, alignment);
        ASSERT_EQ(twin.allocate(bytes, alignment), offset);
        ASSERT_EQ(offset.has_value(), model.fits(bytes, alignment))
            << bytes << " aligned to " << alignment;
        if (!offset) continue;
        ASSERT_EQ(*offset % alignment, 0u);
        ASSERT_GE(allocator.size_of(*offset), bytes);
        model.take(*offset, bytes, step);
        live.emplace(step, *offset);
      } else if (!live.empty()) {
        const auto victim =
            std::next(live.begin(), static_cast<std::ptrdiff_t>(random() % live.size()));
        ASSERT_TRUE(allocator.release(victim->second));
        ASSERT_TRUE(twin.release(victim->second));
        model.release(victim->first);
        live.erase(victim);
      }
      ASSERT_EQ(allocator.used(), model.used());
      ASSERT_EQ(allocator.largest_free(), model.largest_free());
      ASSERT_EQ(allocator.blocks(), live.size());
    }
  }
}

}  // namespace
}  // namespace shoal::memory
