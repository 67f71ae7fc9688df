// SPDX-License-Identifier: Apache-2.0
// engine.hpp: rails, peers and everything that is in flight between them, under one lock.
//
// Order (requirement C1). A signal must be seen after the data that was put before it. Where the
// provider promises that messages follow writes (FI_ORDER_SAW) and there is one rail, the signal's
// message is sent at once, and a write is known to be complete when a later message was
// acknowledged. Otherwise writes ask for FI_DELIVERY_COMPLETE and the signal waits for the writes
// that its rail does not order. No order of two writes is relied on: after a fence, a write waits
// until what was before it is complete.
//
// Nothing grows: requests and messages come from pools, a pair has at most SHOAL_NETWORK_DEPTH of
// either in flight, and a call that finds none free polls until there is one, or its deadline
// passes.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "transport/ofi/lock.hpp"
#include "transport/ofi/peer.hpp"
#include "transport/ofi/rail.hpp"
#include "transport/transport.hpp"

namespace shoal::transport::ofi {

using Clock = std::chrono::steady_clock;

inline constexpr std::size_t kBounceBytes = std::size_t{64} << 10;

class Engine {
 public:
  /// Opens the rails. Throws what choose_provider and Rail throw.
  explicit Engine(const Context& context);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  std::vector<std::byte> address();
  /// Takes a peer in by its address; messages of it are answered from then on. Throws where they do
  /// not fit together.
  void add_peer(Pe pe, std::span<const std::byte> bytes);
  /// Posts the buffers for messages of all peers: after the last add_peer, before the first poll.
  void post_receives();
  const Peer& peer(Pe pe) const { return peers_[static_cast<std::size_t>(pe)]; }
  std::size_t segment_bytes() const noexcept { return segment_bytes_; }

  /// Reads completions, applies messages, sends answers. Called with the lock held; false when
  /// there was nothing.
  bool poll();
  Lock& lock() noexcept { return lock_; }
  /// As poll, by a PE that waits; where another thread has the lock, that one polls.
  bool drive() noexcept;
  /// Changes with every drive(): while it does, the progress thread need not have a core.
  std::uint32_t driven() const noexcept { return driven_.load(std::memory_order_relaxed); }

  // Operations on connected peers. They throw Error{timeout} and Error{peer_failed}.

  /// Sends a request in order. `after_writes`: it is applied after the data of earlier writes.
  /// `payload`: of Kind::data. Kind::fetch: the value goes to `target` (`width` bytes), counted in
  /// `batch` if any.
  void request(const char* operation, Pe pe, Message message, bool after_writes,
               const void* payload = nullptr, void* target = nullptr, Batch* batch = nullptr);
  /// `batch`: counts what still uses the local memory; nullptr: nobody waits for it but quiet.
  /// `eager`: asks for its acknowledgement, unless one is on its way, so that a quiet after it need
  /// not.
  void write(const char* operation, Pe pe, std::size_t offset, const void* source,
             std::size_t bytes, Batch* batch, bool eager = false);
  void read(const char* operation, void* target, Pe pe, std::size_t offset, std::size_t bytes,
            Batch* batch);
  /// Waits for a batch. A call that throws while one is in use must abandon it.
  void finish(const char* operation, Pe pe, Batch& batch);
  void abandon(Batch& batch) noexcept;
  void fence(Pe pe);
  void quiet();

  std::span<const Transport::Ended> ended() noexcept;
  std::size_t most_in_flight() const noexcept {
    return most_in_flight_.load(std::memory_order_relaxed);
  }

 private:
  friend class Handshake;
  std::atomic<std::uint32_t> driven_{0};

  /// What a completion belongs to.
  struct Request {
    enum class Kind : std::uint8_t { receive, write, read, send };
    fi_context2 context;  // first: libfabric hands its address back
    Kind kind;
    bool probe;
    std::uint8_t rail;
    Pe pe;
    Batch* batch;
    Request* bounce;    ///< whose buffer stands for the caller's memory
    std::byte* buffer;  ///< of a message, or of `bounce`
    void* target;       ///< of a read
    std::size_t bytes;
    Request* next;
  };
  /// Requests that are not in use.
  struct FreeList {
    Request* first = nullptr;
    Request* take() {
      Request* const request = first;
      if (request != nullptr) first = request->next;
      return request;
    }
    void give(Request* request) {
      request->next = first;
      first = request;
    }
  };
  /// A rail with this PE's memory on it.
  struct Line {
    std::unique_ptr<Rail> rail;
    std::vector<std::byte> messages;  ///< buffers that receive
    std::vector<std::byte> outgoing;  ///< buffers that send what is too long to inject
    std::vector<std::byte> bounces;   ///< for local memory that is not registered
    Registered segment, scratch, messages_region, outgoing_region, bounces_region;
    std::vector<Request> receiving, sending, bouncing;
    FreeList senders, bouncers;
    std::vector<Request*> unposted;  ///< receives that the provider did not take yet
  };
  /// A point in the stream of requests to a peer.
  struct Mark {
    bool set = false;
    std::uint32_t sequence = 0;
  };
  struct Transfer {
    const char* operation;
    bool write;
    bool eager;  ///< as of write()
    Batch* batch;
  };
  class Waiting;

  void open_rails(const Context& context);
  void make_pools();

  // With the lock held.
  void handle(std::size_t rail, const fi_cq_msg_entry& entry);
  void handle_fault(std::size_t rail);
  void complete(Request& request);
  void post_receive(Line& line, Request& request);
  void fail_peer(Pe pe, const std::string& text);
  void check_peer(const Peer& peer, const char* operation) const;
  [[noreturn]] void time_out(const char* operation, Pe pe) const;
  /// Without the lock: asks the world and the provider whether who is waited for (negative:
  /// anybody) lives.
  void suspect(Pe pe);

  void count_in_flight(std::uint32_t now) noexcept {
    if (now > most_in_flight_.load(std::memory_order_relaxed))
      most_in_flight_.store(now, std::memory_order_relaxed);
  }

  // rma.cpp
  void transfer(Transfer transfer, Pe pe, std::size_t offset, std::byte* local, std::size_t bytes);
  bool usable(const void* local, std::size_t bytes) const;
  std::size_t longest_piece(const void* local, std::size_t bytes) const;
  void ask_eagerly(Peer& peer);
  static std::size_t pick_rail(Peer& peer, std::size_t bytes);
  bool try_rma(Transfer& transfer, Peer& peer, std::size_t rail, std::size_t offset,
               std::byte* local, std::size_t bytes);
  bool writes_done(const Peer& peer) const;
  bool done(Peer& peer, Mark& mark);

  // messages.cpp, with the lock held.
  bool try_request(Peer& peer, Message message, const void* payload, void* target, Batch* batch);
  ssize_t post_message(Peer& peer, std::size_t rail, const Message& message, const void* payload,
                       std::size_t bytes);
  void take_message(std::size_t rail, const std::byte* buffer, std::size_t bytes);
  bool apply(Peer& peer, const Message& message, const std::byte* payload, std::size_t bytes);
  void take_reply(Peer& peer, const Message& message);
  void take_hello(Peer& peer, const Message& message);
  void answer_later(Peer& peer);
  void send_answers();
  bool send_answers(Peer& peer);
  void probe(Peer& peer);

  template <typename Ready>
  void wait(const char* operation, Pe pe, Ready&& ready);

  const Pe my_pe_;
  const Settings& settings_;
  const std::shared_ptr<memory::Segment> segment_;
  const std::size_t segment_bytes_;
  const std::function<std::string(Pe)> failure_;
  std::uint64_t world_ = 0;
  std::string provider_;
  std::size_t window_ = 1;  ///< that this PE grants
  bool ordered_ = false;    ///< messages are seen after writes of the same rail
  bool delivery_ = false;   ///< writes complete when they are at their target
  bool local_registration_ = false;

  Lock lock_;
  std::vector<std::byte> scratch_;  ///< of handshakes
  std::vector<Request> requests_;
  FreeList free_;
  std::vector<Peer> peers_;
  std::vector<Pe> answering_;             ///< those with answers to send
  std::vector<Line> lines_;               ///< after the memory that they use
  std::vector<Transport::Ended> failed_;  ///< as found, under the lock
  std::atomic<std::size_t> failures_{0};
  std::atomic<std::size_t> most_in_flight_{0};
  std::vector<Transport::Ended> ended_;  ///< as told; of the thread that asks
};

}  // namespace shoal::transport::ofi
