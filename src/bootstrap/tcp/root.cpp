// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/tcp/root.hpp"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>

#include "base/check.hpp"
#include "base/log.hpp"
#include "base/service_thread.hpp"
#include "base/system_error.hpp"

namespace shoal::bootstrap {
namespace {

constexpr std::chrono::milliseconds kGreetingLimit{5'000};
constexpr std::chrono::milliseconds kLeavingLimit{2'000};
// The number of unproven connections is bounded. Beyond the bound, the oldest is dropped, but only
// after kFairChance (wire.hpp): a PE that connects at the same time as many others needs time to
// answer.
constexpr std::size_t kMaxUnproven = 512;
constexpr std::chrono::milliseconds kAcceptPause{200};  // after a failed accept
constexpr std::size_t kMaxStrangersLogged = 16;

/// Bound that leaves half of this process's file descriptors to PEs and to the program.
std::size_t unproven_by_descriptors() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return kMaxUnproven;
  return std::max<std::size_t>(limit.rlim_cur / 2, 16);  // RLIM_INFINITY is the greatest number
}

}  // namespace

Root::Root(Fd listener, const Key& key, std::chrono::milliseconds grace)
    : listener_(std::move(listener)),
      wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      address_(local_address(listener_.get())),
      key_(key),
      grace_(grace),
      rendezvous_(grace),
      creator_(getpid()) {
  if (!wake_.valid()) fail_errno("SHOAL-N145: the bootstrap could not create an event descriptor");
  const SignalsBlocked blocked;
  thread_ = std::thread([this] { run(); });
  pthread_setname_np(thread_.native_handle(), "shoal-root");
}

Root::~Root() {
  if (getpid() != creator_) {  // a forked child has a copy of this object but not the thread
    thread_.detach();
    return;
  }
  stop();
  thread_.join();
}

void Root::wake() const {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof one);
}

void Root::release() {
  released_ = true;
  wake();
}

void Root::stop() {
  stopping_ = true;
  wake();
}

void Root::run() noexcept {
  try {
    while (!finished(Clock::now())) poll_once();
    if (!rendezvous_.over()) {
      rendezvous_.stop(
          fmt::format("the process {} on host {}, which holds the root of the bootstrap, ended",
                      creator_, this_host_name()));
      deliver();
    }
  } catch (const std::exception& error) {
    log::warn("SHOAL-N146: the root of the bootstrap at {} ended: {}", address_.to_string(),
              reason_of(error));
  }
  by_pe_.clear();
  connections_.clear();
  listener_ = Fd();
  done_ = true;
}

bool Root::finished(Clock::time_point now) {
  if (rendezvous_.over())
    return std::ranges::none_of(connections_,
                                [](const auto& connection) { return connection->leaving; });
  std::optional<std::chrono::milliseconds> grace;
  if (stopping_) {
    grace = rendezvous_.ending() ? kLeavingLimit : std::chrono::milliseconds(0);
  } else if (released_ && !rendezvous_.begun()) {
    grace = grace_;
  }
  if (grace != ending_grace_) give_up_ = grace ? now + *grace : Clock::time_point::max();
  ending_grace_ = grace;
  return now >= give_up_;
}

std::size_t Root::unproven() const {
  return static_cast<std::size_t>(std::ranges::count_if(connections_, [](const auto& connection) {
    return connection->pe < 0 && !connection->dropped;
  }));
}

std::size_t Root::max_unproven() const {
  // PEs that are still missing may all connect at once and are no strangers.
  return std::min(kMaxUnproven + rendezvous_.missing(), unproven_by_descriptors());
}

Clock::time_point Root::next_deadline() const {
  Clock::time_point next = std::min(rendezvous_.deadline(), give_up_);
  for (const auto& connection : connections_) next = std::min(next, connection->deadline);
  if (accept_again_ > Clock::now()) next = std::min(next, accept_again_);
  return next;
}

void Root::poll_once() {
  std::vector<pollfd> entries;
  entries.push_back({wake_.get(), POLLIN, 0});
  const bool accepting = Clock::now() >= accept_again_;
  entries.push_back({accepting ? listener_.get() : -1, POLLIN, 0});
  for (const auto& connection : connections_)
    entries.push_back({connection->fd.get(),
                       static_cast<short>(connection->outbox.empty() ? POLLIN : POLLIN | POLLOUT),
                       0});

  const Clock::time_point next = next_deadline();
  const int timeout = next == Clock::time_point::max() ? -1 : poll_timeout(next);
  if (poll(entries.data(), entries.size(), timeout) < 0 && errno != EINTR)
    fail_errno("SHOAL-N145: the root could not wait for its sockets");

  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t drained = ::read(wake_.get(), &count, sizeof count);
  for (std::size_t i = 0; i + 2 < entries.size(); ++i)
    if (entries[i + 2].revents & (POLLIN | POLLHUP | POLLERR)) read(*connections_[i]);
  if (entries[1].revents & POLLIN) accept_waiting();
  check_deadlines(Clock::now());
  deliver();
  std::erase_if(connections_, [](const auto& connection) { return connection->dropped; });
}

void Root::accept_waiting() {
  std::size_t unproven_now = unproven();
  while (true) {
    if (unproven_now >= max_unproven()) {
      if (!drop_oldest_unproven()) return;
      --unproven_now;
    }
    Address from;
    from.size = sizeof from.storage;
    Fd fd(accept4(listener_.get(), reinterpret_cast<sockaddr*>(&from.storage), &from.size,
                  SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd.valid()) {
      add_connection(std::move(fd), from);
      ++unproven_now;
      continue;
    }
    const int error = errno;
    if (error == EINTR || error == ECONNABORTED) continue;
    if (error == EAGAIN || error == EWOULDBLOCK) return;
    accept_again_ = Clock::now() + kAcceptPause;
    // Out of descriptors: the oldest unproven connection gives up its own.
    const bool no_descriptor = error == EMFILE || error == ENFILE;
    if (no_descriptor && unproven_now > 0 && drop_oldest_unproven()) {
      --unproven_now;
      continue;
    }
    accept_error_ = errno_text(error);
    log::warn("SHOAL-N146: the root of the bootstrap at {} cannot accept a connection: {}",
              address_.to_string(), accept_error_);
    return;
  }
}

void Root::add_connection(Fd fd, const Address& from) {
  tune(fd.get());
  auto connection = std::make_unique<Connection>(std::move(fd));
  connection->peer = from.to_string();
  connection->nonce = random_nonce();
  connection->accepted = Clock::now();
  connection->deadline = connection->accepted + kGreetingLimit;
  connection->outbox.add(
      MessageType::challenge, -1, 0,
      std::make_shared<const Bytes>(connection->nonce.begin(), connection->nonce.end()));
  connections_.push_back(std::move(connection));
}

bool Root::drop_oldest_unproven() {
  const auto oldest = std::ranges::find_if(connections_, [](const auto& connection) {
    return connection->pe < 0 && !connection->dropped && !connection->leaving;
  });
  if (oldest == connections_.end()) return false;
  Connection& connection = **oldest;
  const Clock::time_point fair = connection.accepted + kFairChance;
  if (Clock::now() < fair) {
    accept_again_ = fair;
    return false;
  }
  read(connection);  // its hello may have arrived
  if (connection.pe >= 0 || connection.leaving) return true;
  drop(connection, "it did not prove that it knows the key while many others connected");
  connections_.erase(oldest);
  return true;
}

void Root::read(Connection& connection) {
  try {
    const bool open = connection.inbox.fill(connection.fd.get());
    while (!connection.dropped && !connection.leaving) {
      auto frame = connection.pe < 0 ? connection.inbox.next_unchecked() : connection.inbox.next();
      if (!frame) break;
      if (connection.pe < 0) {
        greet(connection, *frame);
      } else {
        handle(connection, std::move(*frame));
      }
    }
    if (!open)
      drop(connection, connection.pe < 0 ? "it ended before it greeted" : "ended without closing");
  } catch (const Error& error) {
    drop(connection, (connection.pe < 0 ? "" : "was disconnected: ") + reason_of(error));
  }
}

void Root::greet(Connection& connection, const Frame& frame) {
  require(frame.header.type == MessageType::hello, Code::mismatch, "SHOAL-N147: it does not greet");
  const Hello hello = decode_hello(frame.payload);
  const Key key = session_key(key_, connection.nonce, hello.nonce);
  connection.inbox.set_key(key);
  require(connection.inbox.check(frame), Code::mismatch,
          "SHOAL-N147: its key is not that of this world");
  connection.outbox.set_key(key);
  if (auto refusal = rendezvous_.join(frame.header.pe, hello, Clock::now())) {
    log::warn("SHOAL-N150: the bootstrap at {} refused {}: {}", address_.to_string(),
              connection.peer, refusal->message);
    connection.outbox.add(MessageType::refused, refusal->origin, 0,
                          std::make_shared<const Bytes>(encode(*refusal)));
    connection.leaving = true;
    connection.deadline = Clock::now() + kLeavingLimit;
    return;
  }
  connection.pe = frame.header.pe;
  connection.deadline = Clock::time_point::max();
  connection.inbox.set_max_payload(kMaxPayload);
  by_pe_[connection.pe] = &connection;
}

void Root::handle(Connection& connection, Frame frame) {
  const Pe pe = connection.pe;
  require(frame.header.pe == pe, Code::mismatch, "SHOAL-N155: it sent a message as PE {}",
          frame.header.pe);
  switch (frame.header.type) {
    case MessageType::call:
      return rendezvous_.call(pe, frame.header.sequence, decode_call(frame.payload), Clock::now());
    case MessageType::abort:
      return rendezvous_.abort(pe, decode_text(frame.payload));
    case MessageType::close:
      rendezvous_.close(pe);
      by_pe_.erase(pe);
      connection.leaving = true;  // queued messages, such as the last result, are still sent
      connection.deadline = Clock::now() + kLeavingLimit;
      return;
    default:
      fail(Code::mismatch, "SHOAL-N155: it sent a message that only the root sends");
  }
}

void Root::drop(Connection& connection, const std::string& how) {
  if (connection.dropped) return;
  connection.dropped = true;
  if (connection.leaving) return;
  if (connection.pe >= 0) {
    by_pe_.erase(connection.pe);
    rendezvous_.lost(connection.pe, how);
  } else {
    const auto level = n_strangers_ < kMaxStrangersLogged ? log::Level::warn : log::Level::debug;
    log::print(level, "the bootstrap at {} turned away a stranger from {}: {}",
               address_.to_string(), connection.peer, how);
    if (++n_strangers_ == kMaxStrangersLogged)
      log::warn("SHOAL-N147: the bootstrap at {} does not report further strangers",
                address_.to_string());
  }
}

void Root::check_deadlines(Clock::time_point now) {
  for (const auto& connection : connections_)
    if (now >= connection->deadline) drop(*connection, "it did not greet in time");
  if (now >= rendezvous_.deadline()) rendezvous_.set_remark(remark());
  rendezvous_.tick(now);
}

std::string Root::remark() const {
  std::string text;
  if (const std::size_t strangers = n_strangers_ + unproven(); strangers > 0)
    text = fmt::format(
        "{} connection{} came without proof of the key: strangers, or PEs with another key",
        strangers, strangers == 1 ? "" : "s");
  if (!accept_error_.empty())
    text += fmt::format("{}The root could not accept connections: {}", text.empty() ? "" : ". ",
                        accept_error_);
  return text;
}

void Root::deliver() {
  // A connection that breaks here is a lost PE, which may queue new messages.
  while (true) {
    for (auto& message : rendezvous_.take_messages())
      if (const auto found = by_pe_.find(message.to); found != by_pe_.end())
        found->second->outbox.add(message.type, message.about, message.sequence,
                                  std::move(message.payload));
    bool broken = false;
    for (const auto& connection : connections_) {
      if (connection->dropped) continue;
      try {
        connection->outbox.flush(connection->fd.get());
        if (connection->leaving && connection->outbox.empty()) connection->dropped = true;
      } catch (const Error&) {
        drop(*connection, "ended without closing");
        broken = true;
      }
    }
    if (!broken) return;
  }
}

namespace {

/// All roots of this process. Its destructor runs at exit: it ends and joins the running roots.
class Registry {
 public:
  std::shared_ptr<Root> start(Fd listener, const Key& key, std::chrono::milliseconds grace) {
    auto root = std::make_shared<Root>(std::move(listener), key, grace);
    const std::lock_guard lock(mutex_);
    std::erase_if(roots_, [](const auto& known) { return known->done(); });
    roots_.push_back(root);
    return root;
  }
  ~Registry() {
    for (const auto& root : roots_) root->stop();
  }

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<Root>> roots_;
};

struct Handle {
  explicit Handle(std::shared_ptr<Root> started) : root(std::move(started)) {}
  ~Handle() { root->release(); }
  std::shared_ptr<Root> root;
};

}  // namespace

StartedRoot start_root(Fd listener, const Key& key, std::chrono::milliseconds grace) {
  static Registry registry;
  auto root = registry.start(std::move(listener), key, grace);
  const Address address = root->address();
  return {std::make_shared<Handle>(std::move(root)), address};
}

}  // namespace shoal::bootstrap
