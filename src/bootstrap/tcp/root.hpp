// SPDX-License-Identifier: Apache-2.0
// root.hpp: the root of a TCP bootstrap: one thread, one listening socket, one connection per PE.
//
// A connection has a few seconds to prove that it knows the key; those that do not are closed with
// a warning and change nothing for the PEs. What the PEs are told is decided by Rendezvous; here
// are sockets and time.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bootstrap/tcp/channel.hpp"
#include "bootstrap/tcp/rendezvous.hpp"

namespace shoal::bootstrap {

/// The thread. It ends when the world has ended, or `patience` after the last RootHandle is gone
/// when nobody has ever come.
class Root {
 public:
  Root(Fd listener, const Key& key, std::chrono::milliseconds patience);
  ~Root();
  Root(const Root&) = delete;
  Root& operator=(const Root&) = delete;

  const Address& address() const { return address_; }
  bool done() const { return done_; }
  /// No copy of the id is left in this process.
  void release();
  /// Ends the thread: at once, or, when the world is ending already, after the PEs had a moment to
  /// leave in order.
  void stop();

 private:
  struct Connection {
    explicit Connection(Fd socket) : fd(std::move(socket)) {}
    Fd fd;
    std::string peer;
    Inbox inbox{Direction::to_root, kMaxGreeting};
    Outbox outbox{Direction::from_root};
    Nonce nonce{};
    Pe pe = -1;                                             // once joined
    bool leaving = false;                                   // to be closed when the outbox is empty
    Clock::time_point deadline = Clock::time_point::max();  // of greeting or leaving
    bool dropped = false;
  };

  void run() noexcept;
  bool finished(Clock::time_point now);
  void poll_once();
  void accept_waiting();
  void read(Connection& connection);
  void greet(Connection& connection, const Frame& frame);
  void handle(Connection& connection, Frame frame);
  void drop(Connection& connection, const std::string& how);
  void check_deadlines(Clock::time_point now);
  void deliver();
  std::size_t unproven() const;
  Clock::time_point next_deadline() const;
  void wake() const;

  Fd listener_;
  Fd wake_;
  Address address_;
  Key key_;
  std::chrono::milliseconds patience_;
  Rendezvous rendezvous_;
  std::vector<std::unique_ptr<Connection>> connections_;
  std::map<Pe, Connection*> by_pe_;
  std::size_t n_strangers_ = 0;
  Clock::time_point accept_again_ = Clock::time_point::min();
  std::optional<std::chrono::milliseconds> grace_;
  Clock::time_point give_up_ = Clock::time_point::max();
  std::atomic<bool> released_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> done_{false};
  int creator_;
  std::thread thread_;
};

/// Starts a root that lives on by itself: until its world has ended or this process exits. The
/// handle is what a UniqueId keeps.
struct StartedRoot {
  std::shared_ptr<void> handle;
  Address address;
};
StartedRoot start_root(Fd listener, const Key& key, std::chrono::milliseconds patience);

}  // namespace shoal::bootstrap
