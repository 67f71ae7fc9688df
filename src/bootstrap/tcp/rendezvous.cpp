// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/tcp/rendezvous.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace shoal::bootstrap {

std::string Rendezvous::describe(Pe pe) const {
  const Hello& hello = states_[static_cast<std::size_t>(pe)].hello;
  return fmt::format("PE {} (pid {} on host {})", pe, hello.pid, hello.host);
}

std::vector<Pe> Rendezvous::pes_in(Presence presence) const {
  std::vector<Pe> pes;
  for (std::size_t pe = 0; pe < states_.size(); ++pe)
    if (states_[pe].presence == presence) pes.push_back(static_cast<Pe>(pe));
  return pes;
}

std::optional<Failure> Rendezvous::check(Pe pe, const Hello& hello) {
  const std::string who = fmt::format("the process {} on host {}", hello.pid, hello.host);
  if (hello.n_pes < 1 || hello.n_pes > kMaxPes)
    return Failure{
        Code::invalid_argument, pe,
        fmt::format(
            "SHOAL-N143: {} gave {} as the number of PEs; allowed: 1 to {}. Setting: SHOAL_N_PES",
            who, hello.n_pes, kMaxPes)};
  if (pe < 0 || pe >= hello.n_pes)
    return Failure{
        Code::invalid_argument, pe,
        fmt::format("SHOAL-N143: {} gave {} as its PE; allowed: 0 to {}. Setting: SHOAL_PE", who,
                    pe, hello.n_pes - 1)};
  if (n_pes_ > 0 && hello.n_pes != n_pes_) {
    const auto first = std::ranges::find_if(
        states_, [](const PeState& state) { return state.presence != Presence::absent; });
    return Failure{
        Code::mismatch, pe,
        fmt::format(
            "SHOAL-N143: PEs give different numbers of PEs: PE {} gives {}, PE {} gives {}. "
            "Setting: SHOAL_N_PES",
            first - states_.begin(), n_pes_, pe, hello.n_pes)};
  }
  if (n_pes_ > 0 && states_[static_cast<std::size_t>(pe)].presence != Presence::absent)
    return Failure{
        Code::invalid_argument, pe,
        fmt::format("SHOAL-N143: {} gave {} as its PE, which is taken by {}. Setting: SHOAL_PE",
                    who, pe, describe(pe))};
  return std::nullopt;
}

std::optional<Failure> Rendezvous::join(Pe pe, const Hello& hello, Clock::time_point now) {
  if (failure_) {
    ++n_refused_late_;
    return failure_;
  }
  if (auto refusal = check(pe, hello)) {
    last_refusal_ = refusal->message;
    if (refusal->code == Code::mismatch && n_joined_ < n_pes_) {
      ++n_refused_late_;
      fail(*refusal);
    }
    return refusal;
  }
  if (n_pes_ == 0) {
    n_pes_ = hello.n_pes;
    states_.resize(static_cast<std::size_t>(n_pes_));
  }
  if (now + hello.left < deadline_) {
    limit_ = hello.limit;
    deadline_ = now + hello.left;
  }
  states_[static_cast<std::size_t>(pe)] = {Presence::present, hello};
  ++n_joined_;
  ++n_present_;
  if (n_joined_ == n_pes_) {
    round_.emplace(n_pes_);
    deadline_ = Clock::time_point::max();
    broadcast(MessageType::welcome, -1, 0, nullptr);
  }
  return std::nullopt;
}

void Rendezvous::call(Pe pe, std::uint64_t sequence, Call call, Clock::time_point now) {
  if (failure_) return;
  if (!round_ || sequence != sequence_) {
    lost(pe, fmt::format("made call {} out of order (expected {})", sequence, sequence_));
    return;
  }
  const bool first = !round_->pending();
  const std::chrono::milliseconds limit = call.timeout;
  if (auto mismatch = round_->arrive(pe, std::move(call))) return fail(std::move(*mismatch));
  if (const auto closed = pes_in(Presence::closed); n_closed_ > 0 && !closed.empty())
    return fail({Code::peer_failed, closed.front(),
                 fmt::format("{} closed the bootstrap before {}", describe(closed.front()),
                             round_->name())});
  if (first || now + limit < deadline_) {
    limit_ = limit;
    deadline_ = now + limit;
  }
  if (round_->complete()) send_result();
}

void Rendezvous::send_result() {
  const bool gathers = round_->kind() == Call::Kind::all_gather;
  const std::vector<Bytes> contributions = round_->take();
  const Bytes result = gathers ? encode_contributions(contributions) : Bytes();
  std::size_t at = 0;
  for (; result.size() - at > kMaxContribution; at += kMaxContribution) {
    const auto begin = result.begin() + static_cast<std::ptrdiff_t>(at);
    broadcast(MessageType::part, -1, sequence_,
              std::make_shared<const Bytes>(begin, begin + kMaxContribution));
  }
  broadcast(MessageType::done, -1, sequence_,
            std::make_shared<const Bytes>(result.begin() + static_cast<std::ptrdiff_t>(at),
                                          result.end()));
  ++sequence_;
  deadline_ = Clock::time_point::max();
}

void Rendezvous::abort(Pe pe, const std::string& reason) {
  fail({Code::peer_failed, pe, fmt::format("PE {}: {}", pe, reason_of(reason))});
}

void Rendezvous::close(Pe pe) {
  if (round_ && round_->pending() && !failure_)
    fail({Code::peer_failed, pe,
          fmt::format("{} closed the bootstrap before {}", describe(pe), round_->name())});
  leave(pe, Presence::closed);
}

void Rendezvous::lost(Pe pe, const std::string& how) {
  leave(pe, Presence::gone);
  fail({Code::peer_failed, pe, fmt::format("{} {}", describe(pe), how)});
}

void Rendezvous::leave(Pe pe, Presence how) {
  PeState& state = states_[static_cast<std::size_t>(pe)];
  if (state.presence != Presence::present) return;
  state.presence = how;
  --n_present_;
  if (how == Presence::closed) ++n_closed_;
}

void Rendezvous::stop(const std::string& why) {
  fail({Code::peer_failed, -1, why});
}

void Rendezvous::tick(Clock::time_point now) {
  if (failure_ && awaiting_latecomers_ && deadline_ == Clock::time_point::max())
    deadline_ = now + grace_;
  if (now < deadline_) return;
  deadline_ = Clock::time_point::max();
  if (failure_) {
    awaiting_latecomers_ = false;
  } else if (round_) {
    fail(round_->timed_out(limit_));
  } else {
    std::string message = fmt::format(
        "SHOAL-N144: {} did not connect within {} ms. Setting: SHOAL_BOOTSTRAP_TIMEOUT_MS",
        name_pes(pes_in(Presence::absent), n_pes_), limit_.count());
    if (!last_refusal_.empty()) message += ". Refused was: " + last_refusal_;
    if (!remark_.empty()) message += ". " + remark_;
    fail({Code::timeout, -1, std::move(message)});
  }
}

Clock::time_point Rendezvous::deadline() const {
  return deadline_;
}

void Rendezvous::fail(Failure failure) {
  if (failure_) return;
  failure_ = std::move(failure);
  broadcast(MessageType::failed, failure_->origin, 0,
            std::make_shared<const Bytes>(encode(*failure_)));
  awaiting_latecomers_ = n_joined_ < n_pes_;
  deadline_ = Clock::time_point::max();
}

void Rendezvous::broadcast(MessageType type, Pe about, std::uint64_t sequence,
                           const SharedBytes& payload) {
  for (std::size_t pe = 0; pe < states_.size(); ++pe)
    if (states_[pe].presence == Presence::present)
      messages_.push_back({static_cast<Pe>(pe), type, about, sequence, payload});
}

std::vector<Rendezvous::Message> Rendezvous::take_messages() {
  return std::exchange(messages_, {});
}

bool Rendezvous::over() const {
  if (n_pes_ == 0 || n_present_ > 0) return false;
  return !awaiting_latecomers_ || n_joined_ + n_refused_late_ >= n_pes_;
}

}  // namespace shoal::bootstrap
