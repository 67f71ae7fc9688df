// SPDX-License-Identifier: Apache-2.0
// rendezvous.hpp: what the root of a TCP bootstrap decides. No socket and no clock of its own:
// events go in, messages come out.
//
// PEs join until all have come; then every collective call is gathered and answered; the first
// failure (an abort, a PE that ended, a mismatch, a deadline) is told to every PE and is final. A
// PE that comes after a failure is refused with that failure.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bootstrap/round.hpp"
#include "bootstrap/tcp/socket.hpp"
#include "bootstrap/tcp/wire.hpp"

namespace shoal::bootstrap {

class Rendezvous {
 public:
  struct Message {
    Pe to;
    MessageType type;
    Pe about;
    std::uint64_t sequence;
    SharedBytes payload;
  };

  /// After a failure, PEs that have not come yet are awaited for `latecomers`, to be told.
  explicit Rendezvous(std::chrono::milliseconds latecomers) : latecomers_(latecomers) {}

  /// A PE has proven the key. Returns why it is refused, or nullopt: it has joined, and the calls
  /// below may name it.
  std::optional<Failure> join(Pe pe, const Hello& hello, Clock::time_point now);
  void call(Pe pe, std::uint64_t sequence, Call call, Clock::time_point now);
  void abort(Pe pe, const std::string& reason);
  /// The PE has left in order.
  void close(Pe pe);
  /// The PE's connection has ended, or was ended, without close; `how` completes "PE 3 (pid 7 on
  /// host x) ...".
  void lost(Pe pe, const std::string& how);
  /// The root's process is ending.
  void stop(const std::string& why);
  /// Acts on the deadlines that have passed. To be called after every batch of events.
  void tick(Clock::time_point now);
  /// The next deadline; time_point::max() when there is none.
  Clock::time_point deadline() const;

  /// What is to be sent, in order.
  std::vector<Message> take_messages();
  /// Whether some PE has ever joined.
  bool begun() const { return n_pes_ > 0; }
  /// Whether some PE has left in order.
  bool ending() const { return n_closed_ > 0; }
  /// Whether all PEs have come and gone, or nobody else is awaited.
  bool over() const;

 private:
  enum class Presence { absent, present, closed, gone };
  struct Member {
    Presence presence = Presence::absent;
    Hello hello;
  };

  std::string describe(Pe pe) const;
  std::optional<Failure> check(Pe pe, const Hello& hello);
  void fail(Failure failure);
  void leave(Pe pe, Presence how);
  void broadcast(MessageType type, Pe about, std::uint64_t sequence, const SharedBytes& payload);
  void answer();
  std::vector<Pe> pes_in(Presence presence) const;

  std::chrono::milliseconds latecomers_;
  std::int32_t n_pes_ = 0;
  std::int32_t n_joined_ = 0;
  std::int32_t n_present_ = 0;
  std::int32_t n_closed_ = 0;
  std::int32_t n_told_late_ = 0;
  std::vector<Member> members_;
  std::optional<Round> round_;
  std::uint64_t sequence_ = 1;  // of the current round
  std::chrono::milliseconds limit_{0};
  Clock::time_point deadline_ = Clock::time_point::max();
  std::optional<Failure> failure_;
  bool awaiting_latecomers_ = false;
  std::string last_refusal_;
  std::vector<Message> messages_;
};

}  // namespace shoal::bootstrap
