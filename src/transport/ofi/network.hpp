// SPDX-License-Identifier: Apache-2.0
// network.hpp: libfabric as the network of a message core: one or more endpoints ("rails") of one
// provider.
//
// Messages stay in order (FI_ORDER_SAS) on the home rail of a pair, the same for both PEs. Long
// transfers are spread over all rails.
//
// Order of a message after writes. Where the provider promises that messages follow writes
// (FI_ORDER_SAW) and there is one rail, a message is sent at once, and a write is known to be
// complete when a later message is acknowledged. Otherwise writes ask for FI_DELIVERY_COMPLETE, and
// a message waits for the writes that its rail does not order.
//
// Local memory. The library may access the memory of a request as long as the endpoint is open, and
// cannot cancel a request. When a blocking call gives up, its caller may free or reuse that memory.
// Blocking calls therefore transfer through buffers that this class owns: all reads, and writes of
// up to 64 KiB. A longer write that is given up must find its memory mapped, or the peer is lost.
// The segment and the heap in GPU memory need no buffers: they outlive the network.
//
// Bounds. All requests and buffers come from pools; a call that finds none free polls. A receiver
// posts 2 * window buffers for each peer, and kSpareMessages for messages without a number: its own
// requests and those of the peer each cause at most one message back.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "transport/message/engine.hpp"
#include "transport/message/network.hpp"
#include "transport/ofi/heap_registration.hpp"
#include "transport/ofi/rail.hpp"

namespace shoal::transport::ofi {

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
  static constexpr const char* kName = "ofi";
  static constexpr std::size_t kMaxRails = ofi::kMaxRails;

  /// Opens the rails. Throws what choose_provider and Rail throw.
  Network(message::Engine& engine, const Context& context);
  ~Network() override;

  const message::Traits& traits() const noexcept override { return traits_; }
  std::vector<std::byte> address() override;
  void open(Peer& peer, std::span<const std::byte> bytes) override;
  void listen(std::span<const Peer> peers) override;

  bool send(Peer& peer, const Message& message, const Payload& payload, After after) override;
  bool transfer(Peer& peer, const Transfer& transfer) override;
  std::size_t request_bytes(const Peer& peer, const Transfer& transfer) const override;
  bool poll() override;
  message::HeapRegistration* heap_registration() noexcept override {
    return heap_ ? &*heap_ : nullptr;
  }

  bool writing(const Peer& peer) const noexcept override;
  bool needs_acknowledgement(const Peer& peer) const noexcept override;
  std::uint64_t newest(const Peer& /*peer*/) const noexcept override { return 0; }
  bool is_complete(Peer& peer, std::uint64_t /*newest*/) override { return peer.writes == 0; }
  void abandon(Batch& batch) noexcept override;

  std::string description() const override { return "provider " + provider_; }
  std::string route(const Peer& peer) const override;

 private:
  /// Request to which a completion belongs.
  struct Request {
    enum class Use : std::uint8_t { receive, write, read, send };
    fi_context2 context;  // first: libfabric hands its address back
    Use use;
    bool probe;
    std::uint8_t rail;
    Pe pe;
    Batch* batch;
    Request* bounce;    ///< whose registered buffer stands for the caller's memory
    std::byte* buffer;  ///< of a message, of `bounce`, or `copy`
    void* target;       ///< of a bounced or copied read
    std::size_t bytes;
    Request* next;
    std::unique_ptr<std::byte[]> copy;  ///< stands for the caller's memory
  };
  class FreeList {
   public:
    bool empty() const noexcept { return first_ == nullptr; }
    Request* take() noexcept {
      Request* const request = first_;
      if (request != nullptr) first_ = request->next;
      return request;
    }
    void give(Request* request) noexcept {
      request->next = first_;
      first_ = request;
    }

   private:
    Request* first_ = nullptr;
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
    std::vector<Request*> unposted;  ///< receives that the provider has not taken yet
  };
  /// One peer as the rails reach it.
  struct Link {
    struct OnRail {
      fi_addr_t address = FI_ADDR_UNSPEC;
      RemoteMemory segment;
      RemoteMemory scratch;
      std::uint32_t writes = 0;  ///< in flight
    };
    std::vector<OnRail> rails;
    bool written = false;  ///< no later request covers the writes by its acknowledgement
  };

  static std::array<Registered*, 5> regions(Line& line) noexcept {
    return {&line.segment, &line.scratch, &line.messages_region, &line.outgoing_region,
            &line.bounces_region};
  }
  /// net: the tcp provider of libfabric 1.18, in 1.17.
  bool over_tcp() const noexcept {
    return provider_.starts_with("tcp") || provider_.starts_with("net");
  }
  /// True if the receive queue of an endpoint grows beyond its attribute.
  bool grows() const noexcept {
    return over_tcp() && provider_.find("ofi_rxm") == std::string::npos;
  }
  bool completes_reads_twice() const noexcept;
  void open_rails(const Context& context);
  void make_pools();
  void register_heap(const Context& context);
  void post_receive(Line& line, Request& request);
  void handle(Line& line, const fi_cq_msg_entry& entry);
  void handle_fault(std::size_t rail);
  void complete(Request& request);
  void fail(Peer& peer, long code, std::size_t rail);
  /// True if the local memory is in the heap in GPU memory, which processors do not read.
  bool in_heap(const Transfer& transfer) const noexcept {
    return heap_ && heap_->contains(transfer.local);
  }
  const Registered& local_region(const Line& line, std::size_t rail,
                                 const Transfer& transfer) const noexcept;
  RemoteMemory remote_memory(const Peer& peer, std::size_t rail,
                             const Transfer& transfer) const noexcept;
  bool bounces(const Transfer& transfer) const noexcept;
  bool copies(const Transfer& transfer) const noexcept;
  bool follows_writes(const Peer& peer) const noexcept;
  Link& link(const Peer& peer) noexcept { return links_[static_cast<std::size_t>(peer.pe)]; }
  const Link& link(const Peer& peer) const noexcept {
    return links_[static_cast<std::size_t>(peer.pe)];
  }

  message::Engine& engine_;
  message::Traits traits_;
  std::string provider_;
  std::size_t message_bytes_ = 0;    ///< longest message
  bool ordered_ = false;             ///< messages follow writes of the same rail
  bool delivery_ = false;            ///< writes ask for FI_DELIVERY_COMPLETE
  bool local_registration_ = false;  ///< buffers of local operations must be registered
  std::vector<Request> requests_;    ///< of RMA
  FreeList free_;
  std::size_t reading_ = 0;               ///< reads in flight
  std::vector<Link> links_;               ///< by PE
  std::vector<Line> lines_;               ///< they use the memory above
  std::optional<HeapRegistration> heap_;  ///< in GPU memory; after the rails that it uses
  std::vector<std::byte> heap_address_;   ///< of its first step
};

}  // namespace shoal::transport::ofi
