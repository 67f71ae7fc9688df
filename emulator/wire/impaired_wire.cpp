// SPDX-License-Identifier: Apache-2.0
#include "wire/impaired_wire.hpp"

#include <algorithm>
#include <utility>

namespace shoal::emulator {
namespace {

/// Time for which a packet is held so that later ones overtake it.
constexpr Time kOvertaken = std::chrono::microseconds(30);

}  // namespace

ImpairedWire::ImpairedWire(std::unique_ptr<LiveWire> wire, const Impairments& impairments)
    : wire_(std::move(wire)), impairments_(impairments), random_(impairments.seed) {}

bool ImpairedWire::happens(double probability) {
  return probability > 0 && std::uniform_real_distribution<>()(random_) < probability;
}

void ImpairedWire::send(Packet&& packet) {
  if (happens(impairments_.duplication)) launch(Packet(packet));
  launch(std::move(packet));
}

void ImpairedWire::launch(Packet&& packet) {
  if (happens(impairments_.loss)) return;
  const bool overtaken = packet.any_path && happens(impairments_.reordering);
  const Time delay = impairments_.delay + (overtaken ? kOvertaken : Time(0));
  if (delay == Time(0)) return wire_->send(std::move(packet));
  held_.push({now() + delay, number_++, std::make_shared<Packet>(std::move(packet))});
}

bool ImpairedWire::poll(std::size_t most, const Deliver& deliver) {
  bool worked = false;
  while (!held_.empty() && held_.top().due <= now() && wire_->ready()) {
    wire_->send(std::move(*held_.top().packet));
    held_.pop();
    worked = true;
  }
  return wire_->poll(most, deliver) || worked;
}

Time ImpairedWire::next_event() const {
  return std::min(held_.empty() ? kNever : held_.top().due, wire_->next_event());
}

}  // namespace shoal::emulator
