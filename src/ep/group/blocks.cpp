// SPDX-License-Identifier: Apache-2.0
#include "ep/group/blocks.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "heap/staging.hpp"
#include "pe/memory.hpp"
#include "team/exchange.hpp"
#include "team/teams.hpp"

namespace shoal::ep::detail {

using shoal::detail::WorldState;

/// The blocks that one PE has offered. Any thread may drop the last reference to a group.
struct OfferedBlocks {
  using Key = std::uint64_t;  ///< offset * 2, plus 1 for staging memory
  static constexpr Key kNone = ~Key{0};

  std::mutex mutex;
  std::set<Key> keys;
};

namespace {

using Key = OfferedBlocks::Key;

/// The blocks of a world on this PE. Worlds that are gone leave no entry.
std::shared_ptr<OfferedBlocks> blocks_of(WorldState& world) {
  struct Entry {
    std::weak_ptr<WorldState> world;
    std::shared_ptr<OfferedBlocks> blocks;
  };
  static std::mutex mutex;
  static std::map<const WorldState*, Entry> worlds;
  const std::lock_guard lock(mutex);
  std::erase_if(worlds, [](const auto& one) { return one.second.world.expired(); });
  Entry& entry = worlds[&world];
  if (entry.blocks == nullptr) entry = {world.weak_from_this(), std::make_shared<OfferedBlocks>()};
  return entry.blocks;
}

void release_block(WorldState& world, std::size_t offset, bool staging) {
  if (staging)
    shoal::detail::release_staging(world, offset);
  else
    world.heap().free(world.heap().base() + offset);
}

}  // namespace

Block::Block(WorldState& world, std::size_t offset, bool staging)
    : world_(&world), offset_(offset), staging_(staging), offered_(blocks_of(world)) {}

bool Block::take() noexcept {
  if (offered_ == nullptr) return false;
  const std::lock_guard lock(offered_->mutex);
  return !std::exchange(taken_, true);
}

void Block::offer() noexcept {
  if (!take()) return;
  const std::lock_guard lock(offered_->mutex);
  offered_->keys.insert(Key{offset_} << 1 | (staging_ ? 1 : 0));
}

void Block::release() {
  if (take()) release_block(*world_, offset_, staging_);
}

void release_offered_blocks(WorldState& world) {
  constexpr std::size_t kAtOnce = 16;
  using Offer = std::array<Key, kAtOnce>;
  const std::shared_ptr<OfferedBlocks> blocks = blocks_of(world);
  std::size_t released = kAtOnce;
  while (released == kAtOnce) {
    Offer mine;
    mine.fill(OfferedBlocks::kNone);
    {
      const std::lock_guard lock(blocks->mutex);
      const std::size_t count = std::min(kAtOnce, blocks->keys.size());
      std::copy_n(blocks->keys.begin(), count, mine.begin());
    }
    const std::vector<std::byte> all = shoal::detail::exchange(
        world.teams().world_team(), mine.data(), sizeof mine, "memory of ep groups");
    const auto offered_by_all = [&](Key key) {
      for (std::size_t at = 0; at < all.size(); at += sizeof(Offer)) {
        Offer other;
        std::memcpy(other.data(), all.data() + at, sizeof other);
        if (std::find(other.begin(), other.end(), key) == other.end()) return false;
      }
      return true;
    };
    released = 0;
    for (const Key key : mine) {
      if (key == OfferedBlocks::kNone || !offered_by_all(key)) continue;
      release_block(world, key >> 1, (key & 1) != 0);
      const std::lock_guard lock(blocks->mutex);
      blocks->keys.erase(key);
      ++released;
    }
  }
}

}  // namespace shoal::ep::detail
