// SPDX-License-Identifier: Apache-2.0
// thread_bootstrap.cpp: the bootstrap for threads of one process, and for a world of one PE.

#include <atomic>
#include <condition_variable>
#include <mutex>

#include "base/check.hpp"
#include "bootstrap/round.hpp"
#include "shoal/bootstrap.hpp"

namespace shoal {
namespace {

using bootstrap::Bytes;
using bootstrap::Call;
using bootstrap::Failure;
using bootstrap::Pe;
using Clock = std::chrono::steady_clock;

/// The state that the threads share. A round ends when all PEs have arrived, or with the first
/// failure, which is final.
class Meeting {
 public:
  Meeting(std::int32_t n_pes, std::chrono::milliseconds limit)
      : n_pes_(n_pes), limit_(limit), round_(n_pes), closed_(static_cast<std::size_t>(n_pes)) {}

  std::int32_t n_pes() const noexcept { return n_pes_; }

  std::vector<Bytes> meet(Pe pe, Call call) {
    const Clock::time_point deadline = Clock::now() + limit_;
    std::unique_lock lock(mutex_);
    throw_if_failed();
    require(!closed_[static_cast<std::size_t>(pe)], Code::closed,
            "SHOAL-N156: the bootstrap of PE {} is closed: \"{}\" cannot be called", pe, call.step);
    const std::uint64_t mine = generation_;
    if (auto mismatch = round_.arrive(pe, std::move(call))) set_failure(std::move(*mismatch));
    check_closed();
    throw_if_failed();
    if (round_.complete()) {
      result_ = std::make_shared<const std::vector<Bytes>>(round_.take());
      ++generation_;
      changed_.notify_all();
    }
    const auto ended = [&] { return generation_ != mine || failure_.has_value(); };
    if (!changed_.wait_until(lock, deadline, ended)) set_failure(round_.timed_out(limit_));
    if (generation_ == mine) throw_if_failed();
    const auto result = result_;  // the next round cannot end before this PE joins it
    lock.unlock();
    return *result;
  }

  void abort(Pe pe, const std::string& reason) {
    const std::lock_guard lock(mutex_);
    if (!closed_[static_cast<std::size_t>(pe)])
      set_failure({Code::peer_failed, pe, fmt::format("PE {}: {}", pe, reason_of(reason))});
  }

  std::optional<std::string> aborted(Pe pe) {
    if (!failed_.load(std::memory_order_acquire)) return std::nullopt;
    const std::lock_guard lock(mutex_);
    if (failure_->origin == pe || closed_[static_cast<std::size_t>(pe)]) return std::nullopt;
    return failure_->message;
  }

  void close(Pe pe) {
    const std::lock_guard lock(mutex_);
    closed_[static_cast<std::size_t>(pe)] = true;
    check_closed();
  }

 private:
  /// Fails the pending call if a PE has closed: that PE can no longer join it.
  void check_closed() {
    if (!round_.pending() || failure_) return;
    for (std::size_t pe = 0; pe < closed_.size(); ++pe)
      if (closed_[pe])
        return set_failure(
            {Code::peer_failed, static_cast<Pe>(pe),
             fmt::format("PE {} closed the bootstrap before {}", pe, round_.name())});
  }

  void set_failure(Failure failure) {
    if (failure_) return;
    failure_ = std::move(failure);
    failed_.store(true, std::memory_order_release);
    changed_.notify_all();
  }

  void throw_if_failed() const {
    if (failure_) throw Error(failure_->code, failure_->message);
  }

  const std::int32_t n_pes_;
  const std::chrono::milliseconds limit_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bootstrap::Round round_;
  std::uint64_t generation_ = 0;
  std::shared_ptr<const std::vector<Bytes>> result_;
  std::vector<bool> closed_;
  std::optional<Failure> failure_;
  std::atomic<bool> failed_{false};
};

class ThreadBootstrap final : public Bootstrap {
 public:
  ThreadBootstrap(std::shared_ptr<Meeting> meeting, Pe pe)
      : meeting_(std::move(meeting)), pe_(pe) {}
  ~ThreadBootstrap() override { close(); }

  std::int32_t pe() const noexcept override { return pe_; }
  std::int32_t n_pes() const noexcept override { return meeting_->n_pes(); }
  std::vector<Bytes> all_gather(std::span<const std::byte> mine, std::string_view step) override {
    require(
        mine.size() <= bootstrap::kMaxContribution, Code::invalid_argument,
        "SHOAL-N156: all_gather(\"{}\") on PE {}: the contribution has {} bytes, at most {} are "
        "allowed",
        step, pe_, mine.size(), bootstrap::kMaxContribution);
    return meeting_->meet(
        pe_, {Call::Kind::all_gather, {}, std::string(step), Bytes(mine.begin(), mine.end())});
  }
  void barrier(std::string_view step) override {
    meeting_->meet(pe_, {Call::Kind::barrier, {}, std::string(step), {}});
  }
  void abort(const std::string& reason) noexcept override { meeting_->abort(pe_, reason); }
  std::optional<std::string> aborted() noexcept override { return meeting_->aborted(pe_); }
  void close() noexcept override { meeting_->close(pe_); }

 private:
  std::shared_ptr<Meeting> meeting_;
  Pe pe_;
};

}  // namespace

std::vector<std::unique_ptr<Bootstrap>> thread_bootstraps(std::int32_t n_pes,
                                                          const Settings& settings) {
  require(n_pes >= 1 && n_pes <= bootstrap::kMaxPes, Code::invalid_argument,
          "SHOAL-N158: a world of {} threads; allowed: 1 to {}", n_pes, bootstrap::kMaxPes);
  auto meeting = std::make_shared<Meeting>(n_pes, settings.bootstrap_timeout);
  std::vector<std::unique_ptr<Bootstrap>> all;
  for (std::int32_t pe = 0; pe < n_pes; ++pe)
    all.push_back(std::make_unique<ThreadBootstrap>(meeting, pe));
  return all;
}

std::unique_ptr<Bootstrap> single_bootstrap() {
  return std::move(thread_bootstraps(1).front());
}

}  // namespace shoal
