// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/tcp/tcp_bootstrap.hpp"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "base/check.hpp"
#include "base/log.hpp"
#include "bootstrap/round.hpp"

namespace shoal::bootstrap {
namespace {

// The root ends a call at its deadline with a message that names the missing PEs. A PE waits this
// much longer for that message.
constexpr std::chrono::milliseconds kVerdict{1'000};
// The root may drop a connection while the hello is on its way. A connection that ends later than
// this after the hello ends with the root.
constexpr std::chrono::milliseconds kCrossing{1'000};
constexpr std::chrono::milliseconds kLeaving{2'000};  // bounds close()
constexpr std::chrono::milliseconds kAbort{1'000};    // bounds abort()
constexpr std::chrono::milliseconds kRetry{20};       // between connection attempts
constexpr std::chrono::milliseconds kAttempt{3'000};  // to connect to one of several addresses

/// Locks a rarely contended mutex before a deadline. (The ThreadSanitizer of gcc 12 does not
/// support std::timed_mutex.)
bool lock_before(std::unique_lock<std::mutex>& lock, Clock::time_point deadline) {
  while (!lock.try_lock()) {
    if (Clock::now() >= deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace

TcpBootstrap::TcpBootstrap(const RootAddress& where, const Key& key, Pe pe, std::int32_t n_pes,
                           std::chrono::milliseconds limit, std::shared_ptr<void> root)
    : pe_(pe), n_pes_(n_pes), limit_(limit), root_(std::move(root)), root_shown_(where.shown) {
  const Clock::time_point deadline = Clock::now() + limit;
  RootAddress to = where;
  for (int dropped = 1;; ++dropped) {
    const Clock::time_point start = Clock::now();
    connect(to, deadline);
    if (greet(to, key, start, deadline)) return;
    to.hint = fmt::format(
        "The root dropped this PE {} time{} before it had proven the key: each connection has {} "
        "ms for that while strangers take all places. {}",
        dropped, dropped == 1 ? "" : "s", kFairChance.count(), where.hint);
    require(Clock::now() < deadline, Code::timeout,
            "SHOAL-N152: PE {} of {} did not join {} within {} ms. {}", pe_, n_pes_,
            describe_root(), limit_.count(), to.hint);
    log::debug("PE {}: connects again. {}", pe_, to.hint);
    forget_connection();
  }
}

TcpBootstrap::~TcpBootstrap() {
  close();
}

std::string TcpBootstrap::describe_root() const {
  return fmt::format("the root of the bootstrap at {}", root_shown_);
}

void TcpBootstrap::connect(const RootAddress& where, Clock::time_point deadline) {
  const bool several = where.may_be_late || where.candidates.size() > 1;
  std::string reason = "it has no address";
  do {
    for (const Address& address : where.candidates) {
      socket_ = connect_to(
          address, several ? std::min(deadline, Clock::now() + kAttempt) : deadline, reason);
      if (socket_.valid()) return;
    }
    if (where.may_be_late) std::this_thread::sleep_for(kRetry);
  } while (where.may_be_late && Clock::now() < deadline);
  const bool late = Clock::now() >= deadline;
  fail(late ? Code::timeout : Code::peer_failed,
       "SHOAL-N152: PE {} of {} could not reach {}{}: {}. {}", pe_, n_pes_, describe_root(),
       late ? fmt::format(" within {} ms", limit_.count()) : "", reason, where.hint);
}

void TcpBootstrap::forget_connection() {
  socket_ = Fd();
  outbox_ = Outbox(Direction::to_root);
  inbox_ = Inbox(Direction::from_root, kMaxPayload);
  failure_.reset();
  failed_ = false;
}

bool TcpBootstrap::greet(const RootAddress& where, const Key& key, Clock::time_point start,
                         Clock::time_point deadline) {
  // The root ends a younger connection only for a wrong key.
  const auto was_dropped = [&](const std::optional<Frame>& received) {
    return !received && failed_ && failure_->code == Code::peer_failed &&
           Clock::now() - start >= kFairChance;
  };
  const auto challenge = receive(deadline);
  if (was_dropped(challenge)) return false;
  if (!challenge) throw_if_failed();
  require(challenge.has_value(), Code::timeout,
          "SHOAL-N152: PE {} of {} got no answer from {} within {} ms. {}", pe_, n_pes_,
          describe_root(), limit_.count(), where.hint);
  require(challenge->header.type == MessageType::challenge, Code::mismatch,
          "SHOAL-N152: {} is not one: it does not start with a challenge", describe_root());
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
  const Hello hello{random_nonce(), n_pes_, getpid(), limit_, left, this_host_name()};
  const Key session = session_key(key, decode_nonce(challenge->payload), hello.nonce);
  outbox_.set_key(session);
  inbox_.set_key(session);
  send(MessageType::hello, 0, encode(hello), deadline);

  const Clock::time_point greeted = Clock::now();
  const auto answer = receive(deadline + kVerdict);
  if (was_dropped(answer) && Clock::now() - greeted < kCrossing) return false;
  require(answer || !failed_, Code::mismatch,
          "SHOAL-N153: PE {} of {} was not let in by {}: the key differs (another world listens "
          "there), or the process that holds it ended. {}",
          pe_, n_pes_, describe_root(), where.hint);
  require(answer.has_value(), Code::timeout,
          "SHOAL-N154: PE {} of {} got no verdict from {} within {} ms. Setting: "
          "SHOAL_BOOTSTRAP_TIMEOUT_MS",
          pe_, n_pes_, describe_root(), limit_.count());
  if (answer->header.type == MessageType::refused) {
    const Failure refusal = decode_failure(answer->payload, answer->header.pe);
    throw Error(refusal.code, refusal.message);
  }
  keep_failure(*answer);
  throw_if_failed();
  require(answer->header.type == MessageType::welcome, Code::mismatch,
          "SHOAL-N155: {} sent an unexpected message of type {}", describe_root(),
          static_cast<int>(answer->header.type));
  return true;
}

std::vector<Bytes> TcpBootstrap::all_gather(std::span<const std::byte> mine,
                                            std::string_view step) {
  require(mine.size() <= kMaxContribution, Code::invalid_argument,
          "SHOAL-N156: all_gather(\"{}\") on PE {}: the contribution has {} bytes, at most {} are "
          "allowed",
          step, pe_, mine.size(), kMaxContribution);
  const Bytes result = collective(
      {Call::Kind::all_gather, limit_, std::string(step), Bytes(mine.begin(), mine.end())});
  return decode_contributions(result, n_pes_);
}

void TcpBootstrap::barrier(std::string_view step) {
  collective({Call::Kind::barrier, limit_, std::string(step), {}});
}

Bytes TcpBootstrap::collective(const Call& call) {
  require(!closed_, Code::closed,
          "SHOAL-N156: the bootstrap of PE {} is closed: \"{}\" cannot be called", pe_, call.step);
  throw_if_failed();
  const Clock::time_point deadline = Clock::now() + limit_ + kVerdict;
  const std::uint64_t sequence = ++sequence_;
  send(MessageType::call, sequence, encode(call), deadline);

  Bytes result;
  while (true) {
    const auto frame = receive(deadline);
    if (frame) keep_failure(*frame);
    throw_if_failed();
    require(frame.has_value(), Code::timeout,
            "SHOAL-N154: \"{}\" timed out after {} ms on PE {} of {}: no answer from {}. Setting: "
            "SHOAL_BOOTSTRAP_TIMEOUT_MS",
            call.step, limit_.count(), pe_, n_pes_, describe_root());
    const auto type = frame->header.type;
    require((type == MessageType::part || type == MessageType::done) &&
                frame->header.sequence == sequence,
            Code::mismatch, "SHOAL-N155: {} sent a message of type {} for call {} during call {}",
            describe_root(), static_cast<int>(type), frame->header.sequence, sequence);
    result.insert(result.end(), frame->payload.begin(), frame->payload.end());
    if (type == MessageType::done) return result;
  }
}

void TcpBootstrap::send(MessageType type, std::uint64_t sequence, Bytes payload,
                        Clock::time_point deadline) {
  std::unique_lock lock(send_mutex_, std::defer_lock);
  if (!lock_before(lock, deadline)) return;
  outbox_.add(type, pe_, sequence, std::make_shared<const Bytes>(std::move(payload)));
  try {
    for (outbox_.flush(socket_.get()); !outbox_.empty(); outbox_.flush(socket_.get()))
      if (!wait_ready(socket_.get(), POLLOUT, deadline)) return;
  } catch (const Error&) {
    // The root has ended or has refused this PE. Its last message, which is still unread, says more
    // than this error.
  }
}

std::optional<Frame> TcpBootstrap::receive(Clock::time_point deadline) {
  const std::lock_guard lock(receive_mutex_);
  if (!waiting_.empty()) {
    Frame frame = std::move(waiting_.front());
    waiting_.pop_front();
    return frame;
  }
  try {
    while (true) {
      if (auto frame = inbox_.next()) return frame;
      if (!wait_ready(socket_.get(), POLLIN, deadline)) return std::nullopt;
      if (inbox_.fill(socket_.get())) continue;
      if (auto frame = inbox_.next()) return frame;
      keep({Code::peer_failed, -1, fmt::format("{} ended", describe_root())});
      return std::nullopt;
    }
  } catch (const Error& error) {
    keep({error.code(), -1, fmt::format("{} failed: {}", describe_root(), reason_of(error))});
    return std::nullopt;
  }
}

bool TcpBootstrap::keep_failure(const Frame& frame) {
  if (frame.header.type != MessageType::failed) return false;
  keep(decode_failure(frame.payload, frame.header.pe));
  return true;
}

void TcpBootstrap::keep(Failure failure) {
  const std::lock_guard lock(failure_mutex_);
  if (failure_) return;
  failure_ = std::move(failure);
  failed_ = true;
}

void TcpBootstrap::throw_if_failed() {
  if (!failed_) return;
  const std::lock_guard lock(failure_mutex_);
  throw Error(failure_->code, failure_->message);
}

void TcpBootstrap::abort(const std::string& reason) noexcept {
  try {
    if (closed_) return;
    keep({Code::peer_failed, pe_, fmt::format("PE {}: {}", pe_, reason_of(reason))});
    const Clock::time_point deadline = Clock::now() + kAbort;
    send(MessageType::abort, 0, encode_text(reason_of(reason)), deadline);
    if (Clock::now() >= deadline)
      shutdown(socket_.get(), SHUT_RDWR);  // the root sees the end of this PE
  } catch (const std::exception& error) {
    log::warn("SHOAL-N146: PE {} could not tell the others that it failed: {}", pe_,
              reason_of(error));
  }
}

std::optional<std::string> TcpBootstrap::aborted() noexcept {
  try {
    if (closed_) return std::nullopt;
    if (!failed_) {
      // If the mutex is taken, the thread in a collective call reads the failure itself.
      const std::unique_lock lock(receive_mutex_, std::try_to_lock);
      if (!lock.owns_lock()) return std::nullopt;
      const bool open = inbox_.fill(socket_.get());
      // The owner thread may be between sending its call and waiting for the result: results are
      // kept for it.
      while (auto frame = inbox_.next())
        if (!keep_failure(*frame)) waiting_.push_back(std::move(*frame));
      if (!open) keep({Code::peer_failed, -1, fmt::format("{} ended", describe_root())});
    }
  } catch (const Error& error) {
    keep({error.code(), -1, fmt::format("{} failed: {}", describe_root(), reason_of(error))});
  } catch (...) {
    return std::nullopt;
  }
  const std::lock_guard lock(failure_mutex_);
  if (!failure_ || failure_->origin == pe_) return std::nullopt;
  return failure_->message;
}

void TcpBootstrap::close() noexcept {
  if (closed_.exchange(true)) return;
  try {
    const Clock::time_point deadline = Clock::now() + kLeaving;
    send(MessageType::close, 0, {}, deadline);
    shutdown(socket_.get(), SHUT_WR);
    // Closing a socket with unread data resets the connection, and the reset could overtake the
    // message: read to the end first.
    while (receive(deadline)) {
    }
  } catch (const std::exception& error) {
    log::warn("SHOAL-N146: PE {} could not close the bootstrap in order: {}", pe_,
              reason_of(error));
  }
  root_.reset();
}

}  // namespace shoal::bootstrap
