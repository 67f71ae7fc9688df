// SPDX-License-Identifier: Apache-2.0
#include "wire/virtual_network.hpp"

#include <algorithm>
#include <utility>

namespace shoal::emulator {

/// A NIC, its link to the switch, and the switch's port to it.
class VirtualNetwork::Port : public Wire {
 public:
  Port(VirtualNetwork& network, std::uint32_t index)
      : network_(network), index_(index), nic_(options_of(network, index), *this) {}

  Time now() const override { return network_.now_; }
  bool ready() const override { return link_free <= network_.now_; }
  void send(Packet&& packet) override { network_.send(index_, std::move(packet)); }
  Nic& nic() { return nic_; }

  Time link_free{0};    ///< NIC to switch
  Time port_free{0};    ///< switch to NIC
  Time timer = kNever;  ///< for which an event is scheduled
  bool wakes = false;   ///< an event is scheduled for link_free

 private:
  static NicOptions options_of(const VirtualNetwork& network, std::uint32_t index) {
    NicOptions options = network.options_.nic;
    options.lid = static_cast<std::uint16_t>(index + 1);
    options.seed = network.options_.seed + index;
    return options;
  }

  VirtualNetwork& network_;
  std::uint32_t index_;
  Nic nic_;
};

VirtualNetwork::VirtualNetwork(const NetworkOptions& options)
    : options_(options), random_(options.seed) {
  for (std::uint32_t i = 0; i < options.nics; ++i)
    ports_.push_back(std::make_unique<Port>(*this, i));
}

VirtualNetwork::~VirtualNetwork() = default;

Nic& VirtualNetwork::nic(std::uint32_t index) {
  return ports_.at(index)->nic();
}

Time VirtualNetwork::serialisation(std::size_t bytes) const {
  return Time(static_cast<std::int64_t>(static_cast<double>(bytes) / options_.bytes_per_ns) + 1);
}

bool VirtualNetwork::happens(double probability) {
  return probability > 0 && std::uniform_real_distribution<>()(random_) < probability;
}

void VirtualNetwork::schedule(Time time, Event::Kind kind, std::uint32_t nic,
                              std::uint32_t packet) {
  events_.push({time, event_number_++, kind, nic, packet});
}

std::uint32_t VirtualNetwork::store(Packet&& packet) {
  if (free_packets_.empty()) {
    packets_.push_back(std::move(packet));
    return static_cast<std::uint32_t>(packets_.size() - 1);
  }
  const std::uint32_t slot = free_packets_.back();
  free_packets_.pop_back();
  packets_[slot] = std::move(packet);
  return slot;
}

void VirtualNetwork::send(std::uint32_t from, Packet&& packet) {
  Port& port = *ports_[from];
  ++statistics_.packets;
  port.link_free = std::max(port.link_free, now_) + serialisation(packet.wire_bytes());
  if (!port.wakes) {
    port.wakes = true;
    schedule(port.link_free, Event::Kind::link_free, from);
  }
  if (happens(options_.duplication)) {
    ++statistics_.duplicated;
    launch(from, Packet(packet));
  }
  launch(from, std::move(packet));
}

void VirtualNetwork::launch(std::uint32_t from, Packet&& packet) {
  if (happens(options_.loss) || (drop_if_ && drop_if_(packet)) || packet.target == 0 ||
      packet.target > ports_.size()) {
    ++statistics_.lost;
    return;
  }
  const std::uint32_t paths = std::max(1U, options_.paths);
  const auto path = static_cast<std::uint32_t>((packet.any_path ? random_() : packet.path) % paths);
  Time delay = options_.latency / 2 + path * options_.path_skew;
  if (packet.any_path && options_.jitter.count() > 0)
    delay += Time(
        static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(options_.jitter.count())));
  schedule(ports_[from]->link_free + delay, Event::Kind::at_switch, packet.target - 1U,
           store(std::move(packet)));
}

void VirtualNetwork::handle(const Event& event) {
  Port& port = *ports_[event.nic];
  switch (event.kind) {
    case Event::Kind::link_free:
      port.wakes = false;
      if (port.link_free > now_) {  // more was sent meanwhile
        port.wakes = true;
        schedule(port.link_free, Event::Kind::link_free, event.nic);
        return;
      }
      return progress(event.nic);
    case Event::Kind::at_switch: {
      const std::size_t bytes = packets_[event.packet].wire_bytes();
      const Time start = std::max(now_, port.port_free);
      const auto queued = static_cast<std::uint64_t>(static_cast<double>((start - now_).count()) *
                                                     options_.bytes_per_ns);
      statistics_.most_queued = std::max(statistics_.most_queued, queued);
      if (options_.port_bytes != 0 && queued + bytes > options_.port_bytes) {
        ++statistics_.overflowed;
        free_packets_.push_back(event.packet);
        return;
      }
      port.port_free = start + serialisation(bytes);
      return schedule(port.port_free + options_.latency / 2, Event::Kind::at_nic, event.nic,
                      event.packet);
    }
    case Event::Kind::at_nic: {
      Packet packet = std::move(packets_[event.packet]);
      free_packets_.push_back(event.packet);
      port.nic().receive(std::move(packet));
      return progress(event.nic);
    }
    case Event::Kind::timer:
      if (port.timer != now_) return;  // a later event replaced this one
      port.timer = kNever;
      return progress(event.nic);
  }
}

void VirtualNetwork::progress(std::uint32_t nic) {
  Port& port = *ports_[nic];
  port.nic().progress();
  const Time timer = port.nic().next_timer();
  if (timer == port.timer) return;
  port.timer = timer;
  if (timer != kNever) schedule(std::max(timer, now_), Event::Kind::timer, nic);
}

void VirtualNetwork::doorbell(std::uint32_t nic, std::uint32_t qp_number) {
  ports_.at(nic)->nic().doorbell(qp_number);
  progress(nic);
}

bool VirtualNetwork::run_until(const std::function<bool()>& done, Time limit) {
  while (!done()) {
    if (events_.empty() || events_.top().time > limit) {
      if (limit != kNever) now_ = std::max(now_, limit);
      return done();
    }
    const Event event = events_.top();
    events_.pop();
    now_ = std::max(now_, event.time);
    handle(event);
  }
  return true;
}

}  // namespace shoal::emulator
