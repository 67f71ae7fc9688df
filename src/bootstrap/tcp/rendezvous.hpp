// SPDX-License-Identifier: Apache-2.0
// rendezvous.hpp: the state machine of the root of a TCP bootstrap. It has no socket and no clock:
// events go in, messages come out.
//
// PEs join until all are present. Then every collective call is gathered and its result sent. The
// first failure (an abort, a PE that ended, a mismatch, a deadline) is final and is sent to every
// PE. A PE that connects after a failure is refused with that failure.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bootstrap/round.hpp"
#include "bootstrap/tcp/socket.hpp"
#include "bootstrap/wire.hpp"

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

  /// After a failure, the root stays for `grace`, so that PEs that have not connected yet receive
  /// the failure too.
  explicit Rendezvous(std::chrono::milliseconds grace) : grace_(grace) {}

  /// A PE has proven that it knows the key. Returns the reason if it is refused. Otherwise it has
  /// joined, and the functions below accept its index.
  std::optional<Failure> join(Pe pe, const Hello& hello, Clock::time_point now);
  void call(Pe pe, std::uint64_t sequence, Call call, Clock::time_point now);
  void abort(Pe pe, const std::string& reason);
  /// The PE has left in order.
  void close(Pe pe);
  /// The PE's connection ended without close. `how` completes "PE 3 (pid 7 on host x) ...".
  void lost(Pe pe, const std::string& how);
  /// The root's process is ending.
  void stop(const std::string& why);
  /// A sentence for the error about PEs that did not connect, such as what the root has seen of
  /// strangers.
  void set_remark(std::string remark) { remark_ = std::move(remark); }
  /// Acts on the deadlines that have passed. Call it after every batch of events.
  void tick(Clock::time_point now);
  /// The next deadline; time_point::max() when there is none.
  Clock::time_point deadline() const;

  /// The messages to send, in order.
  std::vector<Message> take_messages();
  /// True if a PE has ever joined.
  bool begun() const { return n_pes_ > 0; }
  /// Number of PEs that have not joined yet; 0 while the number of PEs is unknown.
  std::size_t missing() const { return static_cast<std::size_t>(n_pes_ - n_joined_); }
  /// True if a PE has left in order.
  bool ending() const { return n_closed_ > 0; }
  /// True if all PEs have joined and left, or no other PE is expected.
  bool over() const;

 private:
  enum class Presence { absent, present, closed, gone };
  struct PeState {
    Presence presence = Presence::absent;
    Hello hello;
  };

  std::string describe(Pe pe) const;
  std::optional<Failure> check(Pe pe, const Hello& hello);
  void fail(Failure failure);
  void leave(Pe pe, Presence how);
  void broadcast(MessageType type, Pe about, std::uint64_t sequence, const SharedBytes& payload);
  void send_result();
  std::vector<Pe> pes_in(Presence presence) const;

  std::chrono::milliseconds grace_;
  std::int32_t n_pes_ = 0;
  std::int32_t n_joined_ = 0;
  std::int32_t n_present_ = 0;
  std::int32_t n_closed_ = 0;
  std::int32_t n_refused_late_ = 0;
  std::vector<PeState> states_;
  std::optional<Round> round_;
  std::uint64_t sequence_ = 1;  // of the current round
  std::chrono::milliseconds limit_{0};
  Clock::time_point deadline_ = Clock::time_point::max();
  std::optional<Failure> failure_;
  bool awaiting_latecomers_ = false;
  std::string last_refusal_;
  std::string remark_;
  std::vector<Message> messages_;
};

}  // namespace shoal::bootstrap
