// SPDX-License-Identifier: Apache-2.0
// mesh.hpp: PEs with an emulated NIC each, fully connected, in virtual time.
//
// Messages move no bytes; only their packets and their times are simulated.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "engine/nic.hpp"
#include "engine/request_writer.hpp"
#include "wire/virtual_network.hpp"

namespace shoal::bench::nic {

using emulator::Time;

/// Order in which a PE creates its queue pairs; their numbers ascend in this order.
enum class CreationOrder : std::uint8_t {
  naive,    ///< PE 0 first, on every PE
  rotated,  ///< endpoint i belongs to PE (i + 1 + me) mod n, its slot is i / n
};

struct MeshOptions {
  std::uint32_t pes = 8;
  std::uint32_t lanes = 1;  ///< queue pairs between two PEs
  CreationOrder order = CreationOrder::rotated;
  emulator::Ordering ordering = emulator::Ordering::strict;
  std::uint32_t depth = 64;               ///< requests of a send queue, a power of two
  std::uint8_t ack_timeout = 4;           ///< 4.096 us * 2^ack_timeout
  emulator::NetworkOptions network = {};  ///< `nics` is set to `pes`
};

class Mesh {
 public:
  explicit Mesh(const MeshOptions& options);

  emulator::VirtualNetwork& network() { return network_; }
  const MeshOptions& options() const { return options_; }
  /// Appends requests for `peer`; ring() makes them visible.
  void write(std::uint32_t pe, std::uint32_t peer, std::uint32_t lane, std::uint32_t bytes);
  void signal(std::uint32_t pe, std::uint32_t peer, std::uint32_t lane);
  /// Rings the doorbells of all queue pairs of `pe` with new requests, in the order of `peers`.
  void ring(std::uint32_t pe, const std::vector<std::uint32_t>& peers);

  /// Arrivals at a PE from another one by a lane.
  struct Arrival {
    Time last_data{0};  ///< of the last packet of a write that arrived
    Time signal{0};     ///< of the signal; 0: none
    std::uint64_t bytes = 0;
  };
  const Arrival& arrival(std::uint32_t from, std::uint32_t to, std::uint32_t lane) const;
  std::uint64_t signals_posted() const { return signals_posted_; }
  std::uint64_t signals_arrived() const { return signals_arrived_; }
  std::uint64_t failed_pairs() const { return failed_pairs_; }
  void count_failures();

 private:
  struct Queue {
    std::vector<std::byte> ring;
    alignas(8) std::array<std::byte, 8> record{};
    std::shared_ptr<emulator::QueuePair> pair;
    std::unique_ptr<emulator::RequestWriter> writer;
    bool rung = true;
  };
  /// A queue pair seen from its NIC: (peer, lane) by number.
  struct Place {
    std::uint32_t peer = 0, lane = 0;
  };

  std::size_t index(std::uint32_t pe, std::uint32_t peer, std::uint32_t lane) const {
    return (std::size_t{pe} * options_.pes + peer) * options_.lanes + lane;
  }
  void observe(const emulator::TraceEvent& event);
  void create(std::uint32_t pe);
  void connect(std::uint32_t pe);

  MeshOptions options_;
  std::vector<std::unique_ptr<Queue>> queues_;
  std::vector<Arrival> arrivals_;
  std::vector<std::vector<Place>> places_;
  std::uint64_t signals_posted_ = 0, signals_arrived_ = 0, failed_pairs_ = 0;
  emulator::VirtualNetwork network_;
  std::vector<std::shared_ptr<emulator::CompletionQueue>> completions_;
  std::vector<std::array<std::byte, 64>> entries_;
};

}  // namespace shoal::bench::nic
