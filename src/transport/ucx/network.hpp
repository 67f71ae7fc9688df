// SPDX-License-Identifier: Apache-2.0
// network.hpp: UCX as the network of a message core: one worker, an endpoint per peer.
//
// Messages are active messages. UCX promises no order among them, nor between them and RMA, so the
// engine sorts requests by number (Traits::reorders), and this class holds a request that must
// follow writes until a flush is complete, with all requests after it. A completed
// ucp_ep_flush_nbx means that earlier RMA is complete at its target.
//
// Bounds: to each peer one flush and one acknowledgement are in flight at a time.
//
// UCX runs its callbacks inside its own functions, so they have the engine's lock too. What times
// out leaves its local buffers in use until the world is closed.
//
// An assertion of UCX that fails, as after the death of a peer, would end this PE as well. Instead
// all connections of this network fail, and UCX is not called again.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "transport/message/engine.hpp"
#include "transport/message/network.hpp"
#include "transport/ucx/library.hpp"

namespace shoal::transport::ucx {

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
  static constexpr const char* kName = "ucx";
  static constexpr std::size_t kMaxRails = 1;

  /// Throws what Library and Memory throw.
  Network(message::Engine& engine, const Context& context);
  ~Network() override;

  const message::Traits& traits() const noexcept override { return traits_; }
  std::vector<std::byte> address() override;
  void open(Peer& peer, std::span<const std::byte> address) override;

  bool send(Peer& peer, const Message& message, const Payload& payload, After after) override;
  bool transfer(Peer& peer, const Transfer& transfer) override;
  std::size_t request_bytes(const Peer& /*peer*/, const Transfer& /*transfer*/) const override {
    return chunk_;
  }
  bool poll() override;
  void close() noexcept override;

  bool writing(const Peer& peer) const noexcept override;
  bool needs_acknowledgement(const Peer& /*peer*/) const noexcept override { return false; }
  std::uint64_t newest(const Peer& peer) const noexcept override;
  bool is_complete(Peer& peer, std::uint64_t newest) override;
  void abandon(Batch& batch) noexcept override;
  void drop(Peer& peer) noexcept override;

  std::string description() const override { return library_.selection(); }
  std::string route(const Peer& peer) const override;

 private:
  struct Link;
  struct Outgoing;
  struct Rma;
  struct Callbacks;

  Link& link(const Peer& peer) noexcept { return *links_[static_cast<std::size_t>(peer.pe)]; }
  const Link& link(const Peer& peer) const noexcept {
    return *links_[static_cast<std::size_t>(peer.pe)];
  }
  void finish(Rma& rma, ucs_status_t status);
  void abandon_ucx(const std::string& reason);
  bool close_endpoints();
  void create_endpoint(Link& link, const std::vector<std::byte>& worker);
  Outgoing& take_outgoing(Link& link);
  void transmit(Outgoing& outgoing);
  void send_held(Link& link);
  void flush(Link& link);
  template <typename Done>
  void poll_until(Done&& done);
  void fail(Link& link, const char* what, ucs_status_t status);
  template <typename Call>
  auto call_ucx(Call&& call, decltype(call()) otherwise) -> decltype(call());

  message::Engine& engine_;
  const std::size_t chunk_;
  message::Traits traits_;
  bool received_ = false;  ///< a message, in this poll
  Library library_;
  Memory segment_, scratch_;
  std::vector<std::unique_ptr<Link>> links_;  ///< by PE
  std::vector<std::unique_ptr<Outgoing>> outgoing_;
  std::vector<Outgoing*> free_outgoing_;
  std::vector<std::unique_ptr<Rma>> rma_;
  std::vector<Rma*> free_rma_;
};

}  // namespace shoal::transport::ucx
