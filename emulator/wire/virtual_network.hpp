// SPDX-License-Identifier: Apache-2.0
// virtual_network.hpp: NICs and a switched network in virtual time.
//
// Every NIC has a link to one switch and back. A packet is serialised on its NIC's link, crosses
// the fabric on one of several paths with different delays, waits at the switch's output port for
// its target, and is serialised again. Packets with any_path take a random path; others take the
// path of their queue pair, so they keep their order. A run with the same calls and seed repeats
// itself.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <queue>
#include <random>
#include <vector>

#include "engine/nic.hpp"

namespace shoal::emulator {

struct NetworkOptions {
  std::uint32_t nics = 2;    ///< their LIDs are 1, 2, ...
  double bytes_per_ns = 50;  ///< of a link: 50 is 400 Gb/s
  Time latency{1000};        ///< from NIC to NIC, without serialisation and queues
  std::uint32_t paths = 1;
  Time path_skew{0};                 ///< delay that each path has more than the one before it
  Time jitter{0};                    ///< largest random delay of a packet on its path
  double loss = 0, duplication = 0;  ///< probabilities
  std::uint64_t port_bytes = 0;      ///< buffer of a switch port; more is dropped; 0: no limit
  std::uint64_t seed = 1;
  NicOptions nic = {};  ///< of every NIC, except lid and seed
};

class VirtualNetwork {
 public:
  explicit VirtualNetwork(const NetworkOptions& options);
  ~VirtualNetwork();

  Nic& nic(std::uint32_t index);
  Time now() const { return now_; }
  /// Rings the doorbell of a queue pair, and lets its NIC send.
  void doorbell(std::uint32_t nic, std::uint32_t qp_number);
  /// Runs until `done` holds, nothing is left to happen, or virtual time reaches `limit`. Returns
  /// done().
  bool run_until(const std::function<bool()>& done, Time limit = kNever);
  /// Loss from now on, of packets that `pick` selects, in addition to random loss.
  void drop_if(std::function<bool(const Packet&)> pick) { drop_if_ = std::move(pick); }

  struct Statistics {
    std::uint64_t packets = 0, lost = 0, duplicated = 0, overflowed = 0;
    std::uint64_t most_queued = 0;  ///< bytes at one port
  };
  const Statistics& statistics() const { return statistics_; }

 private:
  class Port;
  struct Event {
    enum class Kind : std::uint8_t { link_free, at_switch, at_nic, timer };
    Time time{};
    std::uint64_t number = 0;  ///< order of events at one time
    Kind kind = Kind::link_free;
    std::uint32_t nic = 0;
    std::uint32_t packet = 0;
    bool operator>(const Event& other) const {
      return time != other.time ? time > other.time : number > other.number;
    }
  };

  void send(std::uint32_t from, Packet&& packet);
  void launch(std::uint32_t from, Packet&& packet);
  void schedule(Time time, Event::Kind kind, std::uint32_t nic, std::uint32_t packet = 0);
  void handle(const Event& event);
  void progress(std::uint32_t nic);
  std::uint32_t store(Packet&& packet);
  Time serialisation(std::size_t bytes) const;
  bool happens(double probability);

  NetworkOptions options_;
  Time now_{0};
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<Port>> ports_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::uint64_t event_number_ = 0;
  std::vector<Packet> packets_;
  std::vector<std::uint32_t> free_packets_;
  std::function<bool(const Packet&)> drop_if_;
  Statistics statistics_;
};

}  // namespace shoal::emulator
