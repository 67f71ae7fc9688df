// SPDX-License-Identifier: Apache-2.0
#include "world/health/health.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstring>

namespace shoal::detail {
namespace {

std::uint64_t load(std::byte* word) {
  return std::atomic_ref(*reinterpret_cast<std::uint64_t*>(word)).load(std::memory_order_acquire);
}

/// The 3 of "PE 3: reason"; -1 for other texts.
Pe leading_pe(std::string_view text) {
  Pe pe = -1;
  if (text.starts_with("PE ")) std::from_chars(text.data() + 3, text.data() + text.size(), pe);
  return pe;
}

}  // namespace

Health::Health(Pe n_pes, const ControlLayout& layout, std::byte* control,
               std::span<const std::unique_ptr<transport::Transport>> transports,
               std::shared_ptr<Bootstrap> bootstrap)
    : layout_(layout),
      control_(control),
      transports_(transports),
      bootstrap_(std::move(bootstrap)),
      peers_(static_cast<std::size_t>(n_pes)),
      ended_seen_(transports.size()) {}

void Health::update() noexcept {
  read_ended();  // reads the board afterwards, so that a PE that closed and ended is not taken for
                 // one that failed
  read_bootstrap();
}

void Health::read_board() {
  const std::uint64_t alerts = load(control_ + layout_.alerts());
  if (alerts == alerts_seen_) return;
  alerts_seen_ = alerts;
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    const auto pe = static_cast<Pe>(i);
    std::byte* const entry = control_ + layout_.status(pe);
    const auto status = static_cast<PeerStatus>(load(entry));
    if (status == peers_[i].status) continue;
    const char* const message = reinterpret_cast<StatusEntry*>(entry)->message;
    record(pe, status, std::string(message, strnlen(message, StatusEntry::kMessageBytes)));
  }
}

void Health::read_ended() {
  for (std::size_t i = 0; i < transports_.size(); ++i) {
    const auto ended = transports_[i]->ended();
    read_board();
    for (; ended_seen_[i] < ended.size(); ++ended_seen_[i]) {
      const auto& [pe, description] = ended[ended_seen_[i]];
      if (peers_[static_cast<std::size_t>(pe)].status == PeerStatus::running)
        record(pe, PeerStatus::failed, description);
    }
  }
}

void Health::read_bootstrap() {
  if (!world_failure_.empty()) return;
  const auto text = bootstrap_->aborted();
  if (!text) return;
  const Pe pe = leading_pe(*text);
  if (pe < 0 || static_cast<std::size_t>(pe) >= peers_.size()) {
    world_failure_ = *text;
  } else if (peers_[static_cast<std::size_t>(pe)].status == PeerStatus::running) {
    const std::size_t colon = text->find(": ");
    record(pe, PeerStatus::failed, colon == std::string::npos ? *text : text->substr(colon + 2));
  }
}

void Health::record(Pe pe, PeerStatus status, const std::string& reason) {
  Peer& peer = peers_[static_cast<std::size_t>(pe)];
  peer.status = status;
  if (status == PeerStatus::closed) return;
  peer.failure = fmt::format("PE {}: {}", pe, reason);
  if (status == PeerStatus::failed && world_failure_.empty()) world_failure_ = peer.failure;
}

std::optional<std::string> Health::failure(Pe awaited) const {
  if (!world_failure_.empty()) return world_failure_;
  for (std::size_t i = 0; i < peers_.size(); ++i)
    if (!peers_[i].failure.empty() && (awaited < 0 || static_cast<std::size_t>(awaited) == i))
      return peers_[i].failure;
  return std::nullopt;
}

}  // namespace shoal::detail
