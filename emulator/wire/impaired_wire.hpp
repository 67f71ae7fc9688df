// SPDX-License-Identifier: Apache-2.0
// impaired_wire.hpp: loss, duplication, delay and reordering on a wire in real time.
#pragma once

#include <cstdint>
#include <memory>
#include <queue>
#include <random>
#include <vector>

#include "wire/live_wire.hpp"

namespace shoal::emulator {

/// Impairments of the packets that one NIC sends. The seed fixes which packets are affected, as far
/// as the NIC sends the same packets in the same order.
struct Impairments {
  double loss = 0, duplication = 0;  ///< probabilities
  /// Probability that a packet which may take any path is overtaken by later ones. Packets that
  /// keep to one path keep their order.
  double reordering = 0;
  Time delay{0};  ///< of every packet
  std::uint64_t seed = 1;

  bool any() const { return loss > 0 || duplication > 0 || reordering > 0 || delay > Time(0); }
};

class ImpairedWire final : public LiveWire {
 public:
  ImpairedWire(std::unique_ptr<LiveWire> wire, const Impairments& impairments);

  bool ready() const override { return wire_->ready(); }
  void send(Packet&& packet) override;
  bool poll(std::size_t most, const Deliver& deliver) override;
  bool flush() override { return wire_->flush(); }
  Time next_event() const override;
  bool busy() const override { return !held_.empty() || wire_->busy(); }
  bool sleep(Time longest) override { return wire_->sleep(longest); }
  void wake() override { wire_->wake(); }

 private:
  struct Held {
    Time due{};
    std::uint64_t number = 0;  ///< order of packets that are due at one time
    std::shared_ptr<Packet> packet;
    bool operator>(const Held& other) const {
      return due != other.due ? due > other.due : number > other.number;
    }
  };

  bool happens(double probability);
  void launch(Packet&& packet);

  std::unique_ptr<LiveWire> wire_;
  const Impairments impairments_;
  std::mt19937_64 random_;
  std::priority_queue<Held, std::vector<Held>, std::greater<>> held_;
  std::uint64_t number_ = 0;
};

}  // namespace shoal::emulator
