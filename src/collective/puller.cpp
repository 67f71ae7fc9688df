// SPDX-License-Identifier: Apache-2.0
#include "collective/puller.hpp"

#include <algorithm>

#include "collective/copy.hpp"

namespace shoal::collective {

bool delivers(const detail::TeamState& team) {
  const detail::WorldState& world = *team.world;
  return world.cuda() == nullptr &&
         std::ranges::any_of(team.pes, [&](Pe pe) { return world.peer_base(pe) == nullptr; });
}

Puller::~Puller() {
  if (pending_ && scratch_) team_.world->keep(std::move(scratch_));
}

std::byte* Puller::scratch(std::size_t bytes) {
  scratch_ = std::make_shared<std::vector<std::byte>>(bytes);
  return scratch_->data();
}

void Puller::pull(void* target, std::size_t pe, std::size_t offset, std::size_t bytes) {
  const void* source = view(pe, offset, bytes, target);
  if (source != target) copy_block(target, source, bytes);
}

const void* Puller::view(std::size_t pe, std::size_t offset, std::size_t bytes, void* scratch) {
  if (const std::byte* reached = base(pe)) return reached + offset;
  if (bytes == 0) return scratch;
  team_.world->get_nbi(scratch, {team_.pes[pe], offset}, bytes);
  pending_ = true;
  return scratch;
}

void Puller::finish() {
  if (pending_) team_.world->quiet();
  pending_ = false;
}

}  // namespace shoal::collective
