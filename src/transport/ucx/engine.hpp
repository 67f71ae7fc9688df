// SPDX-License-Identifier: Apache-2.0
// engine.hpp: one PE's UCX worker with its peers, its lock and its progress thread.
//
// One lock guards the worker and everything about peers; UCX runs our callbacks inside its own
// calls, so they hold it too. The progress thread applies messages of peers while this PE computes;
// a caller that waits makes progress itself.
//
// Bounds: to each peer at most SHOAL_NETWORK_DEPTH messages that are not acknowledged and RMA
// requests together, one flush, and one acknowledgement; answers are bounded by the depth of who
// asked. Callers wait for room.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/backoff.hpp"
#include "base/deadline.hpp"
#include "transport/scoped_timeout.hpp"
#include "transport/transport.hpp"
#include "transport/ucx/library.hpp"
#include "transport/ucx/peer.hpp"

namespace shoal::transport::ucx {

using Clock = std::chrono::steady_clock;

/// What a caller wants, for errors: "put of 5000 bytes".
struct Operation {
  const char* name;
  std::size_t bytes = 0;
};

class Engine {
 public:
  explicit Engine(const Context& context);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Held by a caller for one operation; let go for a moment in waits.
  class Lock {
   public:
    explicit Lock(Engine& engine) : engine_(engine) { acquire(); }
    ~Lock() { release(); }
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;
    void acquire();
    void release() { engine_.mutex_.unlock(); }

   private:
    Engine& engine_;
  };

  const Context& context() const noexcept { return context_; }
  /// The longest transfer that goes as a message.
  std::size_t message_bytes() const noexcept { return std::min(kPayloadBytes, chunk_); }
  /// Throws Error where `pe` is not connected or has ended.
  Peer& open_peer(Pe pe, const Operation& operation);
  std::vector<Peer>& peers() noexcept { return peers_; }

  // handshake.cpp
  std::vector<std::byte> address() const;
  void connect(Lock& lock, std::span<const std::vector<std::byte>> addresses);

  // messages.cpp: with the lock held.
  /// A message to fill, once there is room for it in the peer's window. post follows without
  /// letting go of the lock.
  Message& begin_message(Lock& lock, Peer& peer, Kind kind, const Operation& operation);
  /// Sends after fenced RMA, and after transfer `after`, have been flushed.
  void post(Message& message, std::uint64_t after = 0);
  /// As post, for messages that are answered; returns the number of the request.
  std::uint64_t post_request(Message& message, Request request, std::uint64_t after = 0);
  /// The value of the answer.
  std::uint64_t await(Lock& lock, Peer& peer, std::uint64_t number, const Operation& operation);
  void ask_for_acknowledgement(Peer& peer);

  // transfers.cpp: RMA, with the lock held.
  void put(Lock& lock, Peer& peer, std::size_t offset, const void* source, std::size_t bytes,
           bool blocking);
  void get(Lock& lock, Peer& peer, std::size_t offset, void* target, std::size_t bytes,
           bool blocking);
  /// Starts a flush where there is something to flush and none is under way.
  void flush(Peer& peer);
  void quiet(Lock& lock);

  /// Makes progress until `ready`. Throws Error{peer_failed} when `peer` ends, Error{timeout} after
  /// SHOAL_TIMEOUT_MS.
  template <typename Ready>
  void wait(Lock& lock, Peer& peer, const Operation& operation, Ready&& ready) {
    if (ready()) return;
    const Waiting waiting(*this);
    Deadline deadline(wait_deadline(context_.settings->timeout));
    auto next_question = Clock::now() + kPatience;
    Backoff backoff;
    for (std::int64_t polls = 0;; ++polls) {
      if (progress()) backoff.reset();
      if (ready()) return;
      if (peer.ended) throw_ended(peer, operation);
      if (polls % 64 == 63) {
        const auto now = Clock::now();
        if (deadline.passed(now)) throw_timeout(peer, operation);
        if (now > next_question) {
          ask_world(lock, peer);
          next_question = now + kPatience;
        }
      }
      let_others(lock, polls, backoff);
    }
  }
  /// Ends the peer where the world knows that it failed: UCX may not notice.
  void ask_world(Lock& lock, Peer& peer);
  /// Lets others have the lock and the core for a moment.
  void let_others(Lock& lock, std::int64_t polls, Backoff& backoff);
  bool progress();
  /// The same by a PE that waits; where another thread has the lock, that one makes progress.
  bool drive() noexcept;
  void end_peer(Peer& peer, std::string reason);
  /// Those that ended since their handshake. Takes the lock itself.
  std::span<const Transport::Ended> ended() noexcept;

 private:
  /// A caller that makes progress: the progress thread need not have the core meanwhile.
  class Waiting {
   public:
    explicit Waiting(Engine& engine) : engine_(engine) {
      engine_.waiting_.fetch_add(1, std::memory_order_relaxed);
    }
    ~Waiting() { engine_.waiting_.fetch_sub(1, std::memory_order_relaxed); }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    Engine& engine_;
  };

  static constexpr std::chrono::milliseconds kPatience{20};  // between questions to the world

  friend struct Callbacks;  // what UCX calls
  struct Transfer;
  struct RmaTarget {
    std::uint64_t address;
    ucp_rkey_h key;
  };
  enum class Direction { put, get };

  [[noreturn]] void throw_ended(const Peer& peer, const Operation& operation) const;
  [[noreturn]] void throw_timeout(const Peer& peer, const Operation& operation) const;

  void run();
  void start_thread();
  void bind_thread();
  void say_goodbye();
  void close_endpoints();
  template <typename Done>
  void progress_until(Clock::time_point deadline, Done&& done);

  // handshake.cpp
  struct Description;
  struct Greeting;
  struct DeleteGreeting {
    void operator()(Greeting* greeting) const;
  };
  void greet(Greeting& greeting, const std::vector<std::byte>& blob);
  void advance(Greeting& greeting);
  void create_endpoint(Peer& peer, const Description& description);
  bool hello_is_good(const Peer& from) const;
  void answer_hello(Peer& peer);

  // messages.cpp
  Slot& take_slot(Peer& peer, Kind kind);
  void give_slot(Slot& slot);
  void number(Slot& slot);
  void transmit(Slot& slot);
  void send_held(Peer& peer);
  void send_acknowledgement(Peer& peer);
  void receive(const std::byte* data, std::size_t bytes);
  void receive_numbered(Peer& peer, const Header& header, const std::byte* data, std::size_t bytes);
  void apply(Peer& peer, const Header& header, const std::byte* payload);
  void answer(Peer& peer, const Header& question, std::uint64_t value);
  void take_answer(Peer& peer, const Header& header, const std::byte* payload);

  // transfers.cpp
  void transfer(Lock& lock, Peer& peer, Direction direction, std::size_t offset, std::byte* local,
                std::size_t bytes, bool blocking);
  void await_fenced(Lock& lock, Peer& peer, const Operation& operation);
  /// A transfer of the handshake: one request, not waited for.
  void probe(Peer& peer, Direction direction, RmaTarget target, void* local, std::size_t bytes);
  void issue(Transfer& transfer, Direction direction, RmaTarget target, std::byte* local,
             std::size_t bytes);

  Context context_;
  std::vector<Peer> peers_;
  std::uint64_t world_ = 0;
  std::size_t depth_ = 1;
  std::size_t chunk_ = 0;

  std::unique_ptr<Library> library_;
  std::vector<std::array<std::uint64_t, 8>> scratch_;  // by PE: what it puts here in the handshake
  std::unique_ptr<Memory> segment_memory_, scratch_memory_;
  std::vector<std::unique_ptr<Greeting, DeleteGreeting>>
      greetings_;  // those that failed stay: UCX may still use their memory

  std::vector<std::unique_ptr<Slot>> slots_;
  std::vector<Slot*> free_slots_;

  std::vector<Transport::Ended> ended_;
  std::vector<Transport::Ended> ended_reported_;
  std::atomic<std::size_t> n_ended_{0};

  std::mutex mutex_;
  std::atomic<std::uint32_t> driven_{0};  // counts drive()
  std::atomic<int> callers_{0};  // that want the lock: the progress thread leaves it to them
  std::atomic<int> waiting_{0};  // that make progress themselves
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

/// The functions that UCX calls back.
struct Callbacks {
  static ucs_status_t on_message(void* engine, const void* header, std::size_t header_bytes,
                                 void* data, std::size_t bytes, const ucp_am_recv_param_t* param);
  static void on_sent(void* request, ucs_status_t status, void* user_data);
  static void on_transferred(void* request, ucs_status_t status, void* user_data);
  static void on_flushed(void* request, ucs_status_t status, void* user_data);
  static void on_error(void* user_data, ucp_ep_h endpoint, ucs_status_t status);
};

}  // namespace shoal::transport::ucx
