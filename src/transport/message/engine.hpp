// SPDX-License-Identifier: Apache-2.0
// engine.hpp: the message core of a network transport: numbered messages and RMA requests in flight
// to every peer, under one lock.
//
// Threads. A caller that waits polls the network itself. A progress thread polls while no caller
// does, so that requests of peers are applied while this PE computes.
//
// Bounds. To one peer, at most SHOAL_NETWORK_DEPTH requests without acknowledgement and as many RMA
// requests are in flight; a call that finds no room polls until there is some or its deadline
// passes. Replies and acknowledgements are bounded by the windows of the peers.
//
// Order. Requests to a peer are applied in the order of the calls. A signal asks its network to
// deliver it after earlier writes (After::writes). Writes are not ordered among each other: the
// first write after a fence waits until everything before it is complete.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "transport/message/lock.hpp"
#include "transport/message/network.hpp"
#include "transport/message/peer.hpp"
#include "transport/polled.hpp"
#include "transport/transport.hpp"

namespace shoal::transport::message {

using Clock = std::chrono::steady_clock;

/// An operation as error messages name it: "put of 5000 bytes", "quiet".
struct Operation {
  const char* name;
  std::size_t bytes = 0;
};

/// Time at which the sender asks for the acknowledgement of a request: within half a window, or at
/// once unless one is on its way already, which spares a following quiet one round trip.
enum class Ask : std::uint8_t { later, now };

/// A request to send.
struct Request {
  Message message{};
  Payload payload{};
  After after = After::nothing;
  Ask ask = Ask::later;
  bool counted = true;  ///< a quiet waits for it
  Expected reply{};     ///< kinds with a reply
};

class Engine {
 public:
  /// `rails`: the most that a PE of this network has.
  Engine(const Context& context, std::size_t rails);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  /// Call this once, before anything else.
  void attach(std::unique_ptr<Network> network);

  // Startup.
  std::vector<std::byte> address();
  /// Accepts a peer by its address. Throws Error where the two PEs do not fit together.
  void add_peer(Pe pe, std::span<const std::byte> bytes);
  /// After the last add_peer and before the first poll.
  void listen();

  // Progress.
  Lock& lock() noexcept { return lock_; }
  /// Polls the network, applies requests, sends replies. Lock held. False: nothing to do.
  bool poll();
  /// Takes the lock if it is free, and polls. For a PE that waits for memory to change.
  bool progress() noexcept;
  int polls_per_yield() const noexcept { return polls_per_yield_; }
  /// Changes whenever a caller polls: the progress thread may rest meanwhile.
  std::uint32_t caller_polls() const noexcept {
    return caller_polls_.load(std::memory_order_relaxed);
  }

  // Operations on connected peers. Throw Error{timeout} and Error{peer_failed}.
  /// Sends a request once the window has room.
  void request(const Operation& operation, Pe pe, const Request& request);
  /// Starts RMA, in requests of the length that the network wants. `whole.batch` counts what uses
  /// the local memory; nullptr: only quiet waits for it.
  void transfer(const Operation& operation, Pe pe, const Transfer& whole, Ask ask = Ask::later);
  /// Waits until nothing of the batch is pending. A call that throws must abandon its batch.
  void finish(const Operation& operation, Pe pe, Batch& batch);
  void abandon(Batch& batch) noexcept;
  void fence(Pe pe);
  void quiet();
  /// True if a request and a transfer to the peer would start now; true where it has failed.
  bool has_room(Pe pe);
  /// PolledOperations::reached. Polls once.
  bool reached(Pe pe, PolledOperations::Point& point);
  /// Completes what is in flight, within a second, and says goodbye to the peers.
  void leave() noexcept;

  std::span<const Transport::Ended> ended() noexcept;
  std::vector<std::string> shortfalls(Pe pe, std::span<const Load> loads);
  const DeviceQueues* device_queues() const noexcept { return network_->device_queues(); }
  std::size_t most_in_flight() const noexcept {
    return most_in_flight_.load(std::memory_order_relaxed);
  }

  // For the network, with the lock held.
  Pe my_pe() const noexcept { return my_pe_; }
  const Settings& settings() const noexcept { return settings_; }
  memory::Segment& segment() const noexcept { return *segment_; }
  bool in_segment(const std::byte* local, std::size_t bytes) const noexcept {
    return local >= segment_->base() && local + bytes <= segment_->base() + segment_->size();
  }
  std::span<std::byte> scratch() noexcept { return scratch_; }
  Peer& peer(Pe pe) noexcept { return peers_[static_cast<std::size_t>(pe)]; }
  /// Fills in what a message says about its sender.
  void stamp(const Peer& peer, Message& message) const noexcept;
  /// The network has taken the stamped message.
  void sent(Peer& peer, const Message& message) const noexcept;
  void receive(const std::byte* data, std::size_t bytes);
  /// `gone`: the peer itself has ended, not the connection alone.
  void fail_peer(Peer& peer, std::string reason, bool gone = false);
  /// Sends replies and acknowledgements to the peer in the next poll.
  void reply_later(Peer& peer);

 private:
  friend class Handshake;

  template <typename Ready>
  void wait(const Operation& operation, Pe pe, Ready&& ready);
  template <typename Ready>
  void wait_for(const Operation& operation, Pe pe, Ready& ready);
  [[noreturn]] void throw_with_cause(const Error& error, Pe pe) const;
  void check_peer(const Peer& peer, const Operation& operation) const;
  std::string alternatives(const Peer& peer) const;
  [[noreturn]] void throw_lost(const Peer& peer, const Operation& operation) const;
  [[noreturn]] void throw_timeout(const Operation& operation, Pe pe, Clock::duration after) const;
  void check_alive(Pe pe);

  // With the lock held.
  bool try_request(Peer& peer, const Request& request);
  bool try_ask(Peer& peer);
  template <typename Newest>
  void complete(const Operation& operation, Newest&& newest);
  bool is_done(Peer& peer, PolledOperations::Point& point, std::uint32_t newest);
  bool is_busy(const Peer& peer, std::uint32_t newest) const noexcept;
  bool is_busy(const Peer& peer) const noexcept { return is_busy(peer, peer.sent); }
  void count_in_flight(std::uint32_t now) noexcept;
  void announce(Peer& peer);
  void announce_all(Clock::time_point now);
  bool poll(Clock::time_point now);

  // receive.cpp, with the lock held.
  void receive_request(Peer& peer, const Message& message, const std::byte* data,
                       std::size_t bytes);
  void apply_request(Peer& peer, const Message& message, const std::byte* payload,
                     std::size_t bytes);
  void receive_reply(Peer& peer, const Message& message, const std::byte* payload,
                     std::size_t bytes);
  void receive_hello(Peer& peer, const Message& message);
  void send_reply(Peer& peer, const Message& message);
  bool try_reply(Peer& peer, const Message& message);
  bool send_replies(Peer& peer);

  const Pe my_pe_;
  const Settings& settings_;
  const std::shared_ptr<memory::Segment> segment_;
  const std::function<std::string(Pe)> failure_, alternatives_;
  std::uint64_t world_ = 0;
  std::uint32_t depth_ = 1;

  Lock lock_;
  const std::size_t scratch_rails_;
  std::vector<std::byte> scratch_;  ///< of handshakes
  std::vector<Peer> peers_;         ///< by PE
  std::vector<Pe> replying_;        ///< peers with replies or acknowledgements to send
  Clock::time_point next_announcement_{};
  std::atomic<std::uint32_t> caller_polls_{0};
  std::atomic<std::size_t> most_in_flight_{0};

  std::vector<Transport::Ended> failed_;  ///< as found, under the lock
  std::atomic<std::size_t> n_failed_{0};
  std::vector<Transport::Ended> ended_;  ///< as reported; of the thread that calls ended()

  // The network's traits, for every poll.
  bool hides_rma_ = false;
  int polls_per_yield_ = 1;
  std::unique_ptr<Network> network_;  ///< last: it uses the memory above
};

}  // namespace shoal::transport::message
