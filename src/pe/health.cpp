// SPDX-License-Identifier: Apache-2.0
#include "pe/health.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>

#include "transport/scoped_timeout.hpp"
#include "transport/transport.hpp"

namespace shoal::detail {
namespace {

template <std::size_t Size>
std::string text_of(const char (&message)[Size]) {
  return std::string(message, strnlen(message, Size));
}

template <std::size_t Size>
void copy_text(char (&target)[Size], const std::string& text) {
  std::memcpy(target, text.data(), std::min(text.size(), Size - 1));
}

}  // namespace

void Health::start(std::shared_ptr<Bootstrap> bootstrap) {
  bootstrap_ = std::move(bootstrap);
  peers_ = std::vector<Peer>(static_cast<std::size_t>(placement_.n_pes));
  ended_seen_.resize(routes_.transports().size());
}

std::optional<std::string> Health::failure(Pe awaited) noexcept {
  if (!open_) return std::nullopt;
  const std::lock_guard lock(mutex_);
  update();
  return find_failure(awaited);
}

bool Health::has_failed(Pe pe) noexcept {
  if (!open_) return false;
  const std::lock_guard lock(mutex_);
  update();
  return !peers_[static_cast<std::size_t>(pe)].failure.empty();
}

std::optional<FailureCause> Health::first_cause() noexcept {
  if (!open_) return std::nullopt;
  const std::lock_guard lock(mutex_);
  update();
  return world_failure_;
}

std::optional<FailureCause> Health::published_cause(Pe by) noexcept {
  if (!open_) return std::nullopt;
  const std::lock_guard lock(mutex_);
  update();
  return peers_[static_cast<std::size_t>(by)].cause;
}

void Health::update() {
  read_ended();
  read_bootstrap();
  judge_suspects();
}

void Health::read_board() {
  const std::uint64_t alerts = memory_.load(memory_.layout().alerts());
  if (alerts == alerts_seen_) return;
  alerts_seen_ = alerts;
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    const auto pe = static_cast<Pe>(i);
    const std::size_t offset = memory_.layout().status(pe);
    const auto status = static_cast<PeerStatus>(memory_.load(offset));
    read_cause(pe);  // published before the status
    if (status == peers_[i].status) continue;
    const auto& entry = *reinterpret_cast<const StatusEntry*>(memory_.control(offset));
    record(pe, status, text_of(entry.message));
  }
}

void Health::read_cause(Pe pe) {
  Peer& peer = peers_[static_cast<std::size_t>(pe)];
  for (std::uint64_t parity = 0; parity < 2; ++parity) {
    const std::size_t offset = memory_.layout().cause(pe, parity);
    const std::uint64_t word = memory_.load(offset);
    const std::uint64_t sequence = CauseEntry::sequence_of(word);
    const Pe cause = CauseEntry::pe_of(word);
    if (sequence <= peer.cause_sequence || cause >= placement_.n_pes) continue;
    const auto& entry = *reinterpret_cast<const CauseEntry*>(memory_.control(offset));
    FailureCause read{cause, text_of(entry.reason)};
    if (memory_.load(offset) != word) continue;  // overwritten meanwhile: another alert follows
    peer.cause_sequence = sequence;
    peer.cause = std::move(read);
  }
}

/// Reads the board after each transport, so that a PE that closed the world and then ended does not
/// count as failed.
void Health::read_ended() {
  const auto transports = routes_.transports();
  for (std::size_t i = 0; i < transports.size(); ++i) {
    if (transports[i] == nullptr) continue;
    const auto ended = transports[i]->ended();
    read_board();
    for (; ended_seen_[i] < ended.size(); ++ended_seen_[i]) {
      const auto& [pe, description] = ended[ended_seen_[i]];
      if (suspects_.empty()) suspected_ = std::chrono::steady_clock::now();
      suspects_.emplace_back(pe, description);
    }
  }
}

void Health::read_bootstrap() {
  if (world_failure_) return;
  const auto text = bootstrap_->aborted();
  if (!text) return;
  const FailureCause reported = parse_cause(*text);
  if (reported.pe < 0 || reported.pe >= placement_.n_pes) {
    // The root itself has ended. It is in the process of PE 0, or outside the world.
    if (!suspects_.empty()) return;
    world_failure_ = FailureCause{-1, *text};
    return;
  }
  Peer& peer = peers_[static_cast<std::size_t>(reported.pe)];
  if (peer.status != PeerStatus::running) return;
  peer.cause = parse_consequence(reported.reason);
  const auto suspect =
      std::ranges::find(suspects_, reported.pe, [](const auto& s) { return s.first; });
  record(reported.pe, PeerStatus::failed,
         suspect == suspects_.end() ? reported.reason : suspect->second);
}

/// Suspects of which nothing else is known have failed themselves.
void Health::judge_suspects() {
  const auto announced = [&](const auto& suspect) {
    return peers_[static_cast<std::size_t>(suspect.first)].status != PeerStatus::running;
  };
  std::erase_if(suspects_, announced);
  if (suspects_.empty()) return;
  const auto waited = std::chrono::steady_clock::now() - suspected_;
  if (!world_failure_ && waited < transport::kFailureReportTimeout) return;
  std::ranges::sort(suspects_);  // where the root has ended, PE 0 was the first
  for (const auto& [pe, description] : suspects_) record(pe, PeerStatus::failed, description);
  suspects_.clear();
}

void Health::record(Pe pe, PeerStatus status, const std::string& reason) {
  Peer& peer = peers_[static_cast<std::size_t>(pe)];
  peer.status = status;
  if (status == PeerStatus::closed) return;
  const FailureCause cause = peer.cause.value_or(FailureCause{pe, reason});
  peer.failure = cause.text();
  if (status == PeerStatus::failed && !world_failure_) world_failure_ = cause;
}

std::optional<std::string> Health::find_failure(Pe awaited) const {
  if (world_failure_) return world_failure_->text();
  for (std::size_t i = 0; i < peers_.size(); ++i)
    if (!peers_[i].failure.empty() && (awaited < 0 || static_cast<std::size_t>(awaited) == i))
      return peers_[i].failure;
  return std::nullopt;
}

std::optional<FailureCause> Health::cause_quoted_in(const std::string& reason) const {
  if (world_failure_) return world_failure_;
  for (const Peer& peer : peers_)
    if (!peer.failure.empty() && reason.find(peer.failure) != std::string::npos)
      return parse_cause(peer.failure);
  return std::nullopt;
}

template <typename Write>
void Health::write_to_all(const Write& write) noexcept {
  const auto unless_out_of_reach = [](const auto& step) {
    try {
      step();
    } catch (const std::exception&) {
    }
  };
  for (Pe pe = 0; pe < placement_.n_pes; ++pe) {
    if (pe == placement_.my_pe) continue;
    transport::Transport& route = routes_.route(pe);
    unless_out_of_reach([&] {
      write(route, pe);
      route.signal(pe, memory_.layout().alerts(), SignalOp::add, 1);
      route.wake(pe);
    });
  }
  for (const auto& transport : routes_.transports())
    if (transport) unless_out_of_reach([&] { transport->quiet(); });
}

void Health::publish_cause(const FailureCause& cause) noexcept {
  // The cause of the announced failure has been published. More would overwrite it under its
  // readers.
  if (!open_ || announced_) return;
  std::uint64_t sequence = 0;
  {
    const std::lock_guard lock(mutex_);
    sequence = ++causes_published_;
  }
  const transport::ScopedTimeout limit(transport::kFailureReportTimeout);
  char reason[CauseEntry::kReasonBytes] = {};
  copy_text(reason, cause.reason);
  const std::size_t entry = memory_.layout().cause(placement_.my_pe, sequence % 2);
  const std::uint64_t word = CauseEntry::word(sequence, cause.pe);
  write_to_all([&](transport::Transport& route, Pe pe) {
    route.put_signal(pe, entry + offsetof(CauseEntry, reason), reason, sizeof reason, entry,
                     SignalOp::set, word);
  });
}

void Health::announce(PeerStatus status, const std::string& message) noexcept {
  if (announced_.exchange(true)) return;
  std::optional<transport::ScopedTimeout> limit;
  if (status != PeerStatus::closed) limit.emplace(transport::kFailureReportTimeout);
  char text[StatusEntry::kMessageBytes] = {};
  copy_text(text, message);
  const std::size_t entry = memory_.layout().status(placement_.my_pe);
  write_to_all([&](transport::Transport& route, Pe pe) {
    route.put_signal(pe, entry + offsetof(StatusEntry, message), text, sizeof text, entry,
                     SignalOp::set, static_cast<std::uint64_t>(status));
  });
}

void Health::fail_world(const std::string& reason) noexcept {
  if (!open_) return;
  bootstrap_->abort(announce_failure(reason));
  routes_.route(placement_.my_pe).wake(placement_.my_pe);
}

/// Returns the text for the bootstrap.
std::string Health::announce_failure(const std::string& reason) noexcept {
  FailureCause cause;
  {
    const std::lock_guard lock(mutex_);
    update();
    cause = cause_quoted_in(reason).value_or(FailureCause{placement_.my_pe, reason});
    if (!world_failure_) world_failure_ = cause;
  }
  const transport::ScopedTimeout limit(transport::kFailureReportTimeout);
  publish_cause(cause);
  announce(PeerStatus::failed, reason);
  return cause.pe == placement_.my_pe ? reason : describe_consequence(cause);
}

}  // namespace shoal::detail
