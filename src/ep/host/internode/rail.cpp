// SPDX-License-Identifier: Apache-2.0
#include "ep/host/internode/rail.hpp"

#include <cstring>

#include "base/check.hpp"
#include "ep/host/signals/reach.hpp"
#include "ep/host/signals/signals.hpp"

namespace shoal::ep::host {

Rail::Rail(HostGroup& group)
    : group_(group), sent_(group.chunks_sent.data()), read_(group.chunks_read.data()) {}

std::byte* Rail::room(std::int32_t node) const {
  const GroupLayout& layout = group_.layout;
  const std::uint64_t read = read_signal(group_, layout.chunks_read, node);
  if (sent_[node] >= read + layout.chunk_depth) return nullptr;
  return group_.state.block + layout.chunk(layout.chunks_out, node, sent_[node]);
}

void Rail::send(std::int32_t node, const ChunkHeader& header, std::size_t bytes) {
  const GroupLayout& layout = group_.layout;
  std::byte* const chunk = group_.state.block + layout.chunk(layout.chunks_out, node, sent_[node]);
  std::memcpy(chunk, &header, sizeof header);
  const std::int32_t to = group_.state.nodes.rail_peer(node);
  put_remote(group_, to, layout.chunk(layout.chunks_in, group_.state.nodes.mine, sent_[node]),
             chunk, bytes);
  signal(group_, to, layout.chunks_sent + group_.state.nodes.mine * kLine, ++sent_[node]);
}

const std::byte* Rail::arrived(std::int32_t node, std::uint64_t epoch) const {
  const GroupLayout& layout = group_.layout;
  if (read_signal(group_, layout.chunks_sent, node) <= read_[node]) return nullptr;
  const std::byte* const chunk =
      group_.state.block + layout.chunk(layout.chunks_in, node, read_[node]);
  const ChunkHeader header = header_of(chunk);
  require(header.epoch == epoch, Code::peer_failed,
          "SHOAL-N595: PE {} sent a chunk of epoch {} in epoch {}",
          group_.state.team.world_pe(group_.state.nodes.rail_peer(node)), header.epoch, epoch);
  return chunk;
}

void Rail::release(std::int32_t node) {
  signal(group_, group_.state.nodes.rail_peer(node),
         group_.layout.chunks_read + group_.state.nodes.mine * kLine, ++read_[node]);
}

ChunkHeader header_of(const std::byte* chunk) {
  ChunkHeader header;
  std::memcpy(&header, chunk, sizeof header);
  return header;
}

void run(HostGroup& group, RailWork& work, const Step& step) {
  enter_phase(group, step);
  const auto advance = [&] {
    bool moved = false;
    for (std::int32_t i = 1; i < group.state.nodes.count; ++i)  // not all to the same node at once
      moved |= work.send((group.state.nodes.mine + i) % group.state.nodes.count);
    moved |= work.receive();
    return moved || work.work();
  };
  while (!work.done())
    if (!advance() && !work.done()) wait_for(group, advance, work.awaited(), step);
}

}  // namespace shoal::ep::host
