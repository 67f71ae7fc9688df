// SPDX-License-Identifier: Apache-2.0
// network.hpp: RDMA verbs as the network of a message core. A connection is a reliable queue pair;
// a PE has SHOAL_VERBS_QUEUE_PAIRS of them for each peer and port.
//
// Data travel as RDMA writes and reads, single words too: NICs place an aligned word by one store.
// Devices in software (soft-RoCE) do not; words to and from them are messages.
// Messages travel as RDMA writes into rings, completed by an RDMA atomic (ring.hpp). Atomics and
// signals on words of the heap are messages: the target's processor applies them, so they agree
// with those of PEs that share memory with the target, whatever the atomicity of its NIC.
//
// Data of heaps in GPU memory travel alike where the ports can register them
// (heap_registration.hpp).
//
// Order of a message after writes. On one queue pair it follows by itself in every ordering tier,
// because the atomic after it waits until all earlier writes are placed. A message after writes on
// other queue pairs waits for their completions.
//
// Bounds. A send queue has SHOAL_VERBS_DEPTH requests, a completion queue as many entries as
// requests may be in flight on its port, a ring kSlots messages. A call that finds no room polls.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "transport/message/engine.hpp"
#include "transport/message/network.hpp"
#include "transport/module.hpp"
#include "transport/verbs/heap_registration.hpp"
#include "transport/verbs/kernel_queues.hpp"
#include "transport/verbs/port/pages.hpp"
#include "transport/verbs/port/queue_pair.hpp"
#include "transport/verbs/ring.hpp"

namespace shoal::transport::verbs {

using message::After;
using message::Batch;
using message::Direction;
using message::Kind;
using message::Message;
using message::Payload;
using message::Peer;
using message::Transfer;

class Network final : public message::Network {
 public:
  static constexpr const char* kName = "verbs";
  static constexpr std::size_t kMaxRails = kMaxConnections;

  /// Opens the ports and creates all queue pairs. Throws Error{unsupported}.
  Network(message::Engine& engine, const Context& context);
  ~Network() override;

  const message::Traits& traits() const noexcept override { return traits_; }
  std::vector<std::byte> address() override;
  void open(Peer& peer, std::span<const std::byte> bytes) override;

  bool send(Peer& peer, const Message& message, const Payload& payload, After after) override;
  bool transfer(Peer& peer, const Transfer& transfer) override;
  std::size_t request_bytes(const Peer& peer, const Transfer& transfer) const override;
  message::HeapRegistration* heap_registration() noexcept override {
    return heap_ ? &*heap_ : nullptr;
  }
  const DeviceQueues* device_queues() const noexcept override {
    return kernel_queues_ ? &*kernel_queues_ : nullptr;
  }
  bool poll() override;
  void close() noexcept override;

  bool writing(const Peer& peer) const noexcept override { return peer.writes != 0; }
  bool needs_acknowledgement(const Peer& /*peer*/) const noexcept override { return false; }
  std::uint64_t newest(const Peer& /*peer*/) const noexcept override { return 0; }
  bool is_complete(Peer& peer, std::uint64_t newest) override;
  std::vector<std::string> shortfalls(const Peer& peer, std::span<const Load> loads) const override;
  void abandon(Batch& batch) noexcept override;
  void drop(Peer& peer) noexcept override;

  /// The queue pairs of the port with this label.
  std::vector<QueuePairReport> queue_pairs(const std::string& port) const;

  std::string description() const override;
  std::string route(const Peer& peer) const override;

 private:
  /// Purpose of a request in a send queue.
  struct Posted {
    enum class Use : std::uint8_t { write, read, message, probe, other };
    Use use = Use::other;
    Batch* batch = nullptr;
    std::byte* bounce = nullptr;  ///< stands for the caller's memory
    std::byte* target = nullptr;  ///< of a bounced read
    std::size_t bytes = 0;
  };
  /// Requests that have a completion of their own. `due`: one in every so many.
  enum class Completion : std::uint8_t { none, due, own };

  /// A port with this PE's memory on it.
  struct Line {
    std::size_t index;  ///< in lines_
    std::unique_ptr<Port> port{};
    QueueLimits limits{};
    RingLayout layout{0};
    Pages rings{}, bounces{};
    MemoryRegion segment{}, scratch{}, rings_region{}, bounces_region{};
    std::vector<std::byte*> free_bounces{};
    std::size_t queue_pairs = 0;
    std::size_t in_flight = 0;  ///< requests in its send queues
    std::string trouble{};      ///< of the port, by its newest event; empty: none
  };
  /// One queue pair with its ring.
  struct Connection {
    Line& line;
    Peer& peer;
    std::uint32_t id;   ///< index in connections_
    std::size_t index;  ///< among those of its line
    std::unique_ptr<QueuePair> queue{};
    bool open = false;
    RemoteMemory segment{}, scratch{};
    RemoteMemory ring{}, arrived{}, freed{};  ///< of the peer

    // The send queue. Requests are numbered; those from `completed` on are in flight.
    std::vector<Posted> posted{};  ///< by number modulo depth
    std::uint64_t issued = 0, completed = 0;
    std::uint32_t unsignalled = 0;  ///< the newest, without a completion of their own
    std::uint32_t writes = 0;       ///< in flight

    // Rings.
    std::uint64_t sent = 0;                  ///< messages to the peer
    std::uint64_t read = 0, freed_told = 0;  ///< messages from it; those it knows to be read
  };
  /// The connections of one peer.
  struct Link {
    std::vector<Connection*> all{};  ///< its rails
  };

  void open_ports(const Context& context, std::size_t n_peers);
  void check_demand(Line& line, std::size_t queue_pairs) const;
  void make_memory(Line& line, std::size_t connections);
  void register_heap(const Context& context);
  void create_queue_pairs(const Context& context);
  void create_kernel_queues(const Context& context);
  void connect(Connection& connection, const PortAddress& port, const QueueAddress& queue);
  bool read_ring(Connection& connection);
  void tell_freed(Connection& connection);
  bool read_completions(Line& line);
  void read_events(Line& line);
  void note_port_event(Line& line, const char* name, const char* text, bool active);
  void handle(Connection& connection, const ibv_wc& completion);
  void retire(Connection& connection, std::uint64_t end, bool failed);
  void finish(Connection& connection, const Posted& posted, bool failed);
  bool has_room(const Connection& connection, std::size_t requests) const noexcept;
  void add(Connection& connection, ibv_send_wr& request, const Posted& posted, Completion when);
  bool submit(Connection& connection, ibv_send_wr& first, std::size_t count);
  void settle(Link& link);
  void fill_atomic(const Connection& connection, ibv_send_wr& request, ibv_sge& sink,
                   RemoteMemory counter, std::uint64_t add) const noexcept;
  bool in_heap(const std::byte* local) const noexcept { return heap_ && heap_->contains(local); }
  std::uint32_t local_key(const Line& line, const Transfer& transfer) const noexcept;
  RemoteMemory target(const Connection& connection, const Transfer& transfer) const noexcept;
  bool follows_writes(const Peer& peer) const noexcept;
  std::uint64_t counter(const Connection& connection, std::size_t offset) const noexcept;
  Link& link(const Peer& peer) noexcept { return links_[static_cast<std::size_t>(peer.pe)]; }
  const Link& link(const Peer& peer) const noexcept {
    return links_[static_cast<std::size_t>(peer.pe)];
  }

  message::Engine& engine_;
  const Settings& settings_;
  const Pe n_pes_;
  const std::size_t queue_pairs_;  ///< per peer and port
  message::Traits traits_;
  std::uint32_t polls_ = 0;
  std::uint32_t interval_ = 1;  ///< a completion at least every so many requests
  std::shared_ptr<const Library> library_;
  std::vector<std::unique_ptr<Line>> lines_;
  std::optional<HeapRegistration> heap_;  ///< in GPU memory; after the ports that it uses
  std::vector<std::byte> heap_address_;   ///< of its first step
  std::vector<std::unique_ptr<Connection>> connections_;  ///< after the lines that they use
  std::vector<Link> links_;                               ///< by PE
  std::optional<KernelQueues> kernel_queues_;             ///< of the first port
};

}  // namespace shoal::transport::verbs
