// SPDX-License-Identifier: Apache-2.0
#include "collective/puller.hpp"

#include <algorithm>

#include "collective/copy.hpp"
#include "fabric/fabric.hpp"
#include "pe/memory.hpp"

namespace shoal::collective {

bool delivers(const detail::TeamState& team) {
  const detail::WorldState& world = *team.world;
  return world.memory().cuda() == nullptr && std::ranges::any_of(team.pes, [&](Pe pe) {
           return world.fabric().peer_base(pe) == nullptr;
         });
}

Puller::~Puller() {
  if (pending_ && scratch_) team_.world->fabric().keep(std::move(scratch_));
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
  team_.world->fabric().get_nbi(scratch, {team_.pes[pe], offset}, bytes);
  pending_ = true;
  return scratch;
}

void Puller::finish() {
  if (pending_) team_.world->fabric().quiet();
  pending_ = false;
}

}  // namespace shoal::collective
