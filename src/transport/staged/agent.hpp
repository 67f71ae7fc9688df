// SPDX-License-Identifier: Apache-2.0
// agent.hpp: the serving side of a PE: a thread that applies requests of other PEs to its heap.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/service_thread.hpp"
#include "transport/staged/layout.hpp"
#include "transport/transport.hpp"

namespace shoal::transport::staged {

class Agent {
 public:
  /// Serves these PEs until it is destroyed. `own` is used only by this thread.
  Agent(const Context& context, const Layout& layout, Transport& own, std::span<const Pe> peers);

 private:
  struct Peer {
    Pe pe;
    std::uint64_t done = 0;
    std::uint64_t value = 0;  ///< before the last atomic
    bool lost = false;        ///< replies do not reach it any more
  };
  using Requests = std::vector<Request>;

  static std::vector<Peer> peers_of(std::span<const Pe> pes);

  void activate();
  ServiceThread::Polled serve_all();
  bool serve(Peer& peer);
  void apply(Peer& peer, const Requests& requests);
  void fetch_and_store(const Peer& peer, const Requests& puts);
  void load_and_send(const Peer& peer, const Requests& gets);
  void complete(const Peer& peer, std::uint64_t number);
  void refuse(const Peer& peer, std::uint64_t number, const std::string& reason);
  /// Reads request `number` of `from`; false: it has not arrived yet.
  bool read_request(Pe from, std::uint64_t number, Request& request) const noexcept;
  std::size_t chunk(std::size_t i) const noexcept { return area_ + layout_.served_chunk(i); }

  const Layout layout_;
  const std::shared_ptr<memory::Segment> segment_;
  const std::shared_ptr<memory::DeviceHeap> heap_;
  const std::size_t area_;
  const Pe my_pe_;
  const std::function<Transport&(Pe)> host_route_;
  Transport& own_;
  std::vector<Peer> peers_;
  ServiceThread thread_;
};

}  // namespace shoal::transport::staged
