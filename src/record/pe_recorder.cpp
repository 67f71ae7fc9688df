// SPDX-License-Identifier: Apache-2.0
#include "record/pe_recorder.hpp"

#include <algorithm>
#include <bit>

#include "base/align.hpp"
#include "record/text.hpp"
#include "shoal/settings.hpp"

namespace shoal::detail::record {

PeRecorder::PeRecorder(const Settings& settings, std::uint64_t world, Pe pe, Pe n_pes,
                       std::string_view host)
    : world_(world) {
  constexpr std::size_t kPeersAt = align_up(sizeof(PeBlock), alignof(WorldPeerBlock));
  block_ = allocate(kPeersAt + static_cast<std::size_t>(n_pes) * sizeof(WorldPeerBlock));
  auto* const block = block_.as<PeBlock>();
  if (block == nullptr) return;
  counts_ = settings.metrics != "off";
  counts_all_ = settings.metrics == "all";
  peers_ = reinterpret_cast<WorldPeerBlock*>(block_.as<std::byte>() + kPeersAt);
  block->world.store(world);
  block->pe.store(static_cast<std::uint64_t>(pe));
  block->n_pes.store(static_cast<std::uint64_t>(n_pes));
  block->peers_at.store(kPeersAt);
  store_text(block->host, host);
  block_.publish(Kind::pe);
}

void PeRecorder::set(std::string_view activity, std::uint64_t epoch, bool active) noexcept {
  auto* const block = block_.as<PeBlock>();
  if (block == nullptr) return;
  store_text(block->activity, activity);
  block->epoch.store(epoch);
  block->active.store(active ? 1 : 0);
  block->awaited.store(0);
}

void PeRecorder::set_awaited(Pe pe) noexcept {
  if (auto* const block = block_.as<PeBlock>())
    block->awaited.store(static_cast<std::uint64_t>(pe) + 1);
}

void PeRecorder::set_failure(std::string_view reason) noexcept {
  if (auto* const block = block_.as<PeBlock>()) store_text(block->failure, reason);
}

WorldCountsBlock& PeRecorder::counts_of(WorldOperation operation) noexcept {
  return block_.as<PeBlock>()->counts[static_cast<std::size_t>(operation)];
}

void PeRecorder::count_collective(WorldOperation operation, std::uint64_t bytes,
                                  std::chrono::nanoseconds took) noexcept {
  const auto time = static_cast<std::uint64_t>(took.count());
  const auto bucket = static_cast<std::size_t>(std::bit_width(time | 1) - 1);
  WorldCountsBlock& counts = counts_of(operation);
  counts.buckets[std::min(bucket, observe::Histogram::kBuckets - 1)].add_shared(1);
  if (time != 0) counts.time.add_shared(time);
  if (bytes != 0) counts.bytes.add_shared(bytes);
}

void PeRecorder::count_failure(WorldOperation operation) noexcept {
  counts_of(operation).failures.add_shared(1);
}

void PeRecorder::count_wait(Pe pe, std::chrono::nanoseconds waited) noexcept {
  WorldPeerBlock& peer = peers_[pe];
  peer.waits.add_shared(1);
  peer.wait.add_shared(static_cast<std::uint64_t>(waited.count()));
}

void PeRecorder::add_one_sided(WorldOperation operation, Pe pe, std::uint64_t bytes) noexcept {
  WorldCountsBlock& counts = counts_of(operation);
  counts.buckets[0].add_shared(1);
  counts.bytes.add_shared(bytes);
  peers_[pe].operations.add_shared(1);
  peers_[pe].bytes.add_shared(bytes);
}

}  // namespace shoal::detail::record
