// SPDX-License-Identifier: Apache-2.0
#include "ep/host/internode/rail.hpp"

#include <cstring>

#include "base/check.hpp"
#include "ep/host/signals/reach.hpp"
#include "ep/host/signals/signals.hpp"

namespace shoal::ep::host {

Rail::Rail(GroupState& group)
    : group_(group), sent_(group.host->chunks_sent.data()), read_(group.host->chunks_read.data()) {}

std::byte* Rail::room(std::int32_t node) const {
  const detail::GroupLayout& layout = group_.host->layout;
  const std::uint64_t read = read_signal(group_, layout.chunks_read, node);
  if (sent_[node] >= read + group_.shape.chunk_depth) return nullptr;
  return group_.block + layout.chunk(layout.chunks_out, node, sent_[node], group_.shape);
}

void Rail::send(std::int32_t node, const ChunkHeader& header, std::size_t bytes) {
  const detail::GroupLayout& layout = group_.host->layout;
  std::byte* const chunk =
      group_.block + layout.chunk(layout.chunks_out, node, sent_[node], group_.shape);
  std::memcpy(chunk, &header, sizeof header);
  const std::int32_t to = group_.nodes.rail_peer(node);
  put_far(group_, to, layout.chunk(layout.chunks_in, group_.nodes.mine, sent_[node], group_.shape),
          chunk, bytes);
  signal(group_, to, layout.chunks_sent + group_.nodes.mine * detail::kLine, ++sent_[node]);
}

const std::byte* Rail::arrived(std::int32_t node, std::uint64_t epoch) const {
  const detail::GroupLayout& layout = group_.host->layout;
  if (read_signal(group_, layout.chunks_sent, node) <= read_[node]) return nullptr;
  const std::byte* const chunk =
      group_.block + layout.chunk(layout.chunks_in, node, read_[node], group_.shape);
  const ChunkHeader header = header_of(chunk);
  require(header.epoch == epoch, Code::peer_failed, "PE {} sent a chunk of epoch {} in epoch {}",
          group_.team.world_pe(group_.nodes.rail_peer(node)), header.epoch, epoch);
  return chunk;
}

void Rail::release(std::int32_t node) {
  signal(group_, group_.nodes.rail_peer(node),
         group_.host->layout.chunks_read + group_.nodes.mine * detail::kLine, ++read_[node]);
}

ChunkHeader header_of(const std::byte* chunk) {
  ChunkHeader header;
  std::memcpy(&header, chunk, sizeof header);
  return header;
}

void run(GroupState& group, RailWork& work, const Step& step) {
  group.world->set_progress(step.activity, step.epoch, step.phase);
  const auto advance = [&] {
    bool moved = false;
    for (std::int32_t i = 1; i < group.nodes.count; ++i)  // not all to the same node at once
      moved |= work.send((group.nodes.mine + i) % group.nodes.count);
    moved |= work.receive();
    return moved || work.work();
  };
  while (!work.done())
    if (!advance() && !work.done()) wait_for(group, advance, work.awaited(), step);
}

}  // namespace shoal::ep::host
