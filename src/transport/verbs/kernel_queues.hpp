// SPDX-License-Identifier: Apache-2.0
// kernel_queues.hpp: queue pairs of a port that kernels drive, SHOAL_GDA_QUEUE_PAIRS for each peer.
// They exist in addition to the network's own, which stay the path of the host and of the proxy.
//
// Creation. Device commands make each queue pair with a completion queue of its own, after all
// queue pairs of the network and in the same order of peers (order.hpp). A PE that cannot make them
// announces none, and its peers leave theirs unconnected.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "transport/device_queues.hpp"
#include "transport/verbs/devx/queue_pair.hpp"
#include "transport/verbs/heap_registration.hpp"

namespace shoal::transport::verbs {

class KernelQueues final : public DeviceQueues {
 public:
  struct Options {
    const Settings& settings;
    const Port& port;              ///< the first of the network
    const HeapRegistration& heap;  ///< whose port 0 is `port`
    QueueLimits limits;            ///< of the network's queue pairs
    Pe my_pe;
    Pe n_pes;
    const std::vector<bool>& wanted;  ///< by PE
    std::size_t existing;             ///< queue pairs of the port
    mlx5::Memory sink;                ///< DeviceQueues::Route::sink
  };

  /// Throws Error{unsupported} where SHOAL_GDA is on and the queue pairs cannot be made. Where it
  /// is automatic, there are none then.
  explicit KernelQueues(const Options& options);

  /// Queue pairs for each peer; 0: none could be made.
  std::size_t each() const noexcept { return each_; }
  /// each() of PE 0, then of PE 1, ...
  std::vector<QueueAddress> addresses() const;
  /// Connects those for `pe` with `theirs`, whose number is each() unless the PEs differ. Throws
  /// Error{unsupported} where SHOAL_GDA is on and there is no way to `pe`.
  void connect(Pe pe, const PathAddress& path, std::span<const QueueAddress> theirs);

  std::vector<Range> memory() const override;
  Route route(Pe pe) const override;
  std::string describe(Pe pe) const override;

 private:
  struct Line {
    std::unique_ptr<devx::CompletionQueue> completions;
    std::unique_ptr<devx::CommandQueuePair> queue;
  };
  struct Peer {
    std::vector<Line> lines;
    bool connected = false;
    std::string obstacle;
  };

  void create(const Options& options, std::size_t each);
  std::string obstacle(Pe pe) const;
  Peer& peer(Pe pe) noexcept { return peers_[static_cast<std::size_t>(pe)]; }
  const Peer& peer(Pe pe) const noexcept { return peers_[static_cast<std::size_t>(pe)]; }

  const bool required_;
  const devx::CommandPort* const port_;  ///< nullptr: without device commands
  const HeapRegistration& heap_;
  const mlx5::Memory sink_;
  std::size_t each_ = 0;
  std::string obstacle_;  ///< why there are none
  std::vector<Peer> peers_;
};

}  // namespace shoal::transport::verbs
