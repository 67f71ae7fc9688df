// SPDX-License-Identifier: Apache-2.0
// root.hpp: the root of a TCP bootstrap: one thread, one listening socket, one connection per PE.
//
// A connection is unproven until its hello shows that it knows the key of the world. Unproven
// connections have a deadline and a bounded number, so strangers (port scanners, other jobs, silent
// clients) cannot keep PEs out. Rendezvous decides what the PEs receive; Root handles sockets and
// time.
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

/// The root's thread. It ends when the world has ended. If no PE ever joins, it ends `grace` after
/// the last handle is released.
class Root {
 public:
  Root(Fd listener, const Key& key, std::chrono::milliseconds grace);
  ~Root();
  Root(const Root&) = delete;
  Root& operator=(const Root&) = delete;

  const Address& address() const { return address_; }
  bool done() const { return done_; }
  /// This process holds no copy of the unique id any more.
  void release();
  /// Ends the thread. If PEs are already leaving, they get a short time to leave in order first.
  void stop();

 private:
  struct Connection {
    explicit Connection(Fd socket) : fd(std::move(socket)) {}
    Fd fd;
    std::string peer;
    Inbox inbox{Direction::to_root, kMaxGreeting};
    Outbox outbox{Direction::from_root};
    Nonce nonce{};
    Pe pe = -1;            // -1: unproven
    bool leaving = false;  // close when the outbox is empty
    Clock::time_point accepted{};
    Clock::time_point deadline = Clock::time_point::max();  // for the hello, or for leaving
    bool dropped = false;
  };

  void run() noexcept;
  bool finished(Clock::time_point now);
  void poll_once();
  void accept_waiting();
  void add_connection(Fd fd, const Address& from);
  void read(Connection& connection);
  void greet(Connection& connection, const Frame& frame);
  void handle(Connection& connection, Frame frame);
  void drop(Connection& connection, const std::string& how);
  void check_deadlines(Clock::time_point now);
  void deliver();
  std::size_t unproven() const;
  std::size_t max_unproven() const;
  /// Drops the oldest unproven connection, to make room for another one. If that one has not had
  /// kFairChance to prove itself yet, postpones accepting until then and returns false.
  bool drop_oldest_unproven();
  /// Observation of the root that may explain why a PE did not connect; empty if nothing.
  std::string remark() const;
  Clock::time_point next_deadline() const;
  void wake() const;

  Fd listener_;
  Fd wake_;
  Address address_;
  Key key_;
  std::chrono::milliseconds grace_;
  Rendezvous rendezvous_;
  std::vector<std::unique_ptr<Connection>> connections_;  // oldest first
  std::map<Pe, Connection*> by_pe_;
  std::size_t n_strangers_ = 0;  // unproven connections that were dropped
  std::string accept_error_;     // of the last accept that failed
  Clock::time_point accept_again_ = Clock::time_point::min();
  std::optional<std::chrono::milliseconds> ending_grace_;
  Clock::time_point give_up_ = Clock::time_point::max();
  std::atomic<bool> released_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> done_{false};
  int creator_;
  std::thread thread_;
};

/// A root that runs until its world has ended or this process exits. A UniqueId keeps the handle.
struct StartedRoot {
  std::shared_ptr<void> handle;
  Address address;
};
StartedRoot start_root(Fd listener, const Key& key, std::chrono::milliseconds grace);

}  // namespace shoal::bootstrap
