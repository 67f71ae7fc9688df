// SPDX-License-Identifier: Apache-2.0
// fabric.hpp: the transports of this PE, and which of them reaches which PE.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "fabric/connectivity.hpp"
#include "pe/memory.hpp"
#include "pe/placement.hpp"
#include "pe/routes.hpp"
#include "shoal/settings.hpp"
#include "transport/heap_transport.hpp"
#include "transport/polled.hpp"
#include "transport/transport.hpp"

namespace shoal {
class WaitPoint;
}

namespace shoal::detail {

class BlobWriter;

using transport::HeapRoute;

/// Two sets of transports: those that reach the segments (host memory), and, where the heap is in
/// GPU memory, those that reach the heaps. One transport of each set serves a pair of PEs.
class Fabric final : public Routes {
 public:
  using Blobs = std::vector<std::vector<std::byte>>;

  Fabric(const Placement& placement, const Memory& memory)
      : placement_(placement), memory_(memory) {}

  // Startup. A method that takes a BlobWriter writes this PE's contribution to an all-gather; the
  // method after it uses the contributions of all PEs. Implemented in start.cpp and nics.cpp.
  void start_transports(const transport::Context& context, BlobWriter& mine);
  void connect_transports(const Blobs& all);
  /// Capabilities of every transport towards every PE.
  void describe_connections(const Settings& settings, BlobWriter& mine);
  void choose_connections(const Settings& settings, const Blobs& all);
  /// The network that the next round of startup has to try; empty: none, all pairs are served.
  const std::string& network() const noexcept { return network_; }
  /// The NICs of this PE by the NIC plan of its host, which all jobs on the host share.
  void choose_nics(const Settings& settings, BlobWriter& mine);
  /// Throws Error{unsupported} where the NICs of a rail cannot reach each other.
  void check_nics(const Blobs& all);
  void start_network(transport::Context context, BlobWriter& mine);
  void open_network(const Blobs& all);
  /// Connects the network, and tries every connection (trial.hpp) for at most `trial_limit`.
  void connect_network(std::chrono::milliseconds trial_limit);
  /// Releases the transports.
  void release() noexcept;

  transport::Transport& route(Pe pe) const noexcept override {
    return *transports_[host_map_.transport_of[static_cast<std::size_t>(pe)]];
  }
  /// The transport to the heap of `pe`. Makes the GPU's context current where the heap is in GPU
  /// memory. Throws Error{unsupported} where no transport has the capabilities `needed`.
  HeapRoute heap_route(Pe pe, transport::Capabilities needed) const {
    if (memory_.heap_on_gpu()) [[unlikely]]
      return gpu_heap_route(pe, needed);
    return {route(pe), memory_.layout().bytes()};
  }
  /// The heap_route of `pe` for all operations, as the proxy needs it.
  transport::PolledRoute polled_route(Pe pe) const {
    const HeapRoute route = heap_route(pe, transport::capability::all_operations);
    return {route.transport.polled(), route.start};
  }
  /// Start of the heap of `pe` where loads and stores reach it, else nullptr.
  std::byte* peer_base(Pe pe) const noexcept {
    const auto i = static_cast<std::size_t>(pe);
    return i < peer_bases_.size() ? peer_bases_[i] : nullptr;
  }
  /// Why loads and stores do not reach the heap of `pe`. Only where peer_base is nullptr.
  std::string why_out_of_reach(Pe pe) const;
  /// Start of the segment of `pe` where loads and stores reach it, else nullptr.
  std::byte* host_base(Pe pe) const noexcept;
  /// Indexed by PE: equal numbers where loads and stores reach the segment. See heap_domains.
  std::vector<std::int32_t> host_domains() const { return load_store_domains(host_map_); }
  /// Indexed by PE: equal numbers where loads and stores reach the heap, numbered by first
  /// appearance; the same on all PEs.
  std::vector<std::int32_t> heap_domains() const { return load_store_domains(heap_map()); }
  /// Describes, for reports, how data of the heap of `pe` in GPU memory travel; may be empty.
  std::string heap_note(Pe pe) const;
  /// Queues that lead this PE's kernels to the heap of `pe` in GPU memory, where its loads and
  /// stores do not; nullptr where SHOAL_GDA is off or no network has them.
  const transport::DeviceQueues* device_queues(Pe pe) const noexcept;
  // Growth of heaps in GPU memory, which networks may access: add_heap's results, by PE, go to
  // connect_heap. Empty where no network is in use. As transport/heap_rma.hpp.
  std::vector<std::byte> add_heap(std::size_t offset, std::size_t bytes);
  void connect_heap(const Blobs& all);
  void roll_back_heap(std::size_t offset) noexcept;

  const std::vector<std::byte*>& peer_bases() const noexcept { return peer_bases_; }
  /// Indexed by PE: the WaitPoint of the segment, nullptr where loads and stores do not reach it.
  std::vector<WaitPoint*> wait_points() const;

  // One-sided operations on ranges that the caller has checked.

  /// Starts a get. `target` stays in use until quiet.
  void get_nbi(void* target, RemoteAddress source, std::size_t bytes);
  void put(RemoteAddress target, const void* source, std::size_t bytes);
  /// Returns when all earlier operations are complete at their targets. After a throw, incomplete
  /// ones may access their local memory until the transports are gone.
  void quiet() {
    for (const auto& transport : gpu_transports_) transport->quiet();
    quiet_segments();
  }
  /// The same for the transports to segments.
  void quiet_segments() {
    for (const auto& transport : transports_)
      if (transport) transport->quiet();
  }
  /// Orders earlier puts and atomics to each PE before later ones.
  void fence() const;
  /// True if a network transport is in use, which needs progress() while this PE waits.
  bool uses_network() const noexcept;
  bool progress() noexcept override;
  /// The smallest number of the networks; 1 without any.
  int polls_per_yield() const noexcept;
  /// Keeps memory that a network may still access, until the transports are gone.
  void keep(std::shared_ptr<const void> memory) noexcept { kept_.push_back(std::move(memory)); }

  std::span<const std::unique_ptr<transport::Transport>> transports() const noexcept override {
    return transports_;
  }
  /// The choice for segments.
  const Connectivity& host_map() const noexcept { return host_map_; }
  /// The choice for heaps: host_map() where they are on the host.
  const Connectivity& heap_map() const noexcept {
    return memory_.heap_on_gpu() ? gpu_map_ : host_map_;
  }
  /// The choice for heaps in GPU memory; empty where they are on the host.
  const Connectivity& gpu_map() const noexcept { return gpu_map_; }
  std::string other_transports(Pe pe) const override;
  /// The NICs of this PE; nullopt where no pair of PEs needs a network.
  const std::optional<std::vector<std::string>>& nics() const noexcept { return nics_; }

 private:
  /// A network that was tried.
  struct Network {
    std::string name;
    std::string obstacle{};                  ///< why it has no transport
    bool started = false;                    ///< on some PE
    std::vector<std::string> failed_trials;  ///< by PE: why its first operations failed, or empty
  };

  /// The transports of networks_. nullptr: not available, or not used by any pair.
  std::span<const std::unique_ptr<transport::Transport>> networks() const noexcept {
    return transports().subspan(transport::factories().size());
  }
  HeapRoute gpu_heap_route(Pe pe, transport::Capabilities needed) const;
  void use_connections(const Settings& settings);
  /// Why this PE has no active RDMA port; empty where it has one, or where the order of networks
  /// does not matter.
  std::string rdma_obstacle(const Settings& settings) const;
  void log_networks(const Settings& settings) const;
  void describe_network(const Settings& settings, BlobWriter& mine) const;
  /// Runs a step of the network's start. Where it throws, the network has no transport.
  template <typename Step>
  void guarded(Step&& step);
  /// Capabilities of transport number `transport` of host_map_ for `pe`, after its trial.
  transport::Reach reach(std::size_t transport, Pe pe) const;
  std::byte* find_peer_base(Pe pe) const;

  const Placement& placement_;
  const Memory& memory_;
  std::string network_;
  std::vector<Pe> wanted_;   ///< the PEs that it has to connect
  Blobs network_addresses_;  ///< by PE
  std::vector<Network> networks_;
  std::optional<std::vector<std::string>> nics_;
  std::vector<std::string> rdma_obstacles_;  ///< by PE; empty before they are known
  // Declared before the transports, hence destroyed after them.
  std::vector<std::shared_ptr<const void>> kept_;
  std::vector<std::unique_ptr<transport::Transport>> transports_;
  Connectivity host_map_;
  std::vector<std::unique_ptr<transport::HeapTransport>> gpu_transports_;
  Connectivity gpu_map_;
  std::vector<std::byte*> peer_bases_;
};

}  // namespace shoal::detail
