// SPDX-License-Identifier: Apache-2.0
#include "ep/cuda/layout/result_memory.hpp"

#include <algorithm>
#include <optional>

namespace shoal::ep::cuda {

namespace {

template <typename Place>
bool overlap(const Place& a, const Place& b) {
  return a.block == b.block && a.begin < b.end && b.begin < a.end;
}

}  // namespace

std::vector<ResultMemory::Place> ResultMemory::places(bool wide) const {
  if (wide) return {{0, 0, sizes_.wide}, {1, 0, sizes_.wide}};
  return {{0, 0, sizes_.narrow}, {0, sizes_.narrow, 2 * sizes_.narrow}, {1, 0, sizes_.narrow}};
}

const std::shared_ptr<void>& ResultMemory::first() {
  if (blocks_[0] == nullptr) blocks_[0] = allocate_(sizes_.first());
  return blocks_[0];
}

std::shared_ptr<void> ResultMemory::take(bool wide) {
  first();
  const bool last_is_held = !last_.expired();
  // The second block, where it does not exist, comes after all places but that of the last result.
  struct Rank {
    int reason;
    std::uint64_t last;
    auto operator<=>(const Rank&) const = default;
  };
  std::optional<Place> best;
  Rank best_rank{};
  for (const Place& place : places(wide)) {
    Rank rank{blocks_[place.block] == nullptr ? 1 : 0, 0};
    for (const Result& result : results_)
      if (overlap(result.place, place)) rank.last = std::max(rank.last, result.number);
    if (last_is_held && rank.last == taken_) rank.reason = 2;
    if (best && best_rank <= rank) continue;
    best = place;
    best_rank = rank;
  }
  std::shared_ptr<void>& block = blocks_[best->block];
  if (block == nullptr) block = allocate_(sizes_.second());
  results_before_ = results_;
  last_before_ = last_;
  std::erase_if(results_, [&](const Result& result) { return overlap(result.place, *best); });
  results_.push_back({*best, ++taken_});
  // A control block of its own, which says how long this result is held.
  auto holder = std::make_shared<std::shared_ptr<void>>(block);
  std::shared_ptr<void> memory(holder, static_cast<std::byte*>(block.get()) + best->begin);
  last_ = memory;
  return memory;
}

void ResultMemory::undo() {
  results_ = results_before_;
  last_ = last_before_;
  --taken_;
}

}  // namespace shoal::ep::cuda
