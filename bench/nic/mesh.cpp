// SPDX-License-Identifier: Apache-2.0
#include "nic/mesh.hpp"

#include <algorithm>
#include <utility>

#include "engine/big_endian.hpp"

namespace shoal::bench::nic {
namespace {

using emulator::Opcode;
using emulator::TraceEvent;

}  // namespace

Mesh::Mesh(const MeshOptions& options)
    : options_(options),
      queues_(std::size_t{options.pes} * options.pes * options.lanes),
      arrivals_(queues_.size()),
      places_(options.pes),
      network_([&] {
        emulator::NetworkOptions network = options.network;
        network.nics = options.pes;
        network.nic.timing_only = true;
        network.nic.trace = [this](const TraceEvent& event) { observe(event); };
        return network;
      }()),
      entries_(options.pes) {
  for (std::uint32_t pe = 0; pe < options.pes; ++pe) create(pe);
  for (std::uint32_t pe = 0; pe < options.pes; ++pe) connect(pe);
}

void Mesh::create(std::uint32_t pe) {
  emulator::Nic& nic = network_.nic(pe);
  completions_.push_back(
      nic.create_completion_queue(
             {.entries = entries_[pe].data(), .size = 1, .collapsed = true, .ignore_overrun = true})
          .object);
  const std::uint32_t n = options_.pes;
  places_[pe].push_back({});  // queue pairs are numbered from 1
  for (std::uint32_t i = 0; i < n * options_.lanes; ++i) {
    const std::uint32_t peer = options_.order == CreationOrder::rotated ? (i + 1 + pe) % n : i % n;
    const std::uint32_t lane = i / n;
    if (peer == pe) continue;
    auto queue = std::make_unique<Queue>();
    queue->ring.resize(std::size_t{options_.depth} * emulator::kBlockBytes);
    queue->pair = nic.create_queue_pair({.send_completions = completions_[pe],
                                         .ring = {queue->ring.data(), options_.depth},
                                         .doorbell_record = queue->record.data()})
                      .object;
    queue->writer = std::make_unique<emulator::RequestWriter>(queue->ring.data(), options_.depth,
                                                              queue->pair->number());
    places_[pe].push_back({peer, lane});
    queues_[index(pe, peer, lane)] = std::move(queue);
  }
}

void Mesh::connect(std::uint32_t pe) {
  for (std::uint32_t peer = 0; peer < options_.pes; ++peer) {
    for (std::uint32_t lane = 0; lane < options_.lanes && peer != pe; ++lane) {
      const emulator::Connection connection{
          .remote_lid = static_cast<std::uint16_t>(peer + 1),
          .remote_qp = queues_[index(peer, pe, lane)]->pair->number(),
          .ack_timeout = options_.ack_timeout,
          .access = ~0U,
          .ordering = options_.ordering};
      emulator::QueuePair& pair = *queues_[index(pe, peer, lane)]->pair;
      for (const auto state : {emulator::QpState::init, emulator::QpState::ready_to_receive,
                               emulator::QpState::ready_to_send})
        (void)pair.modify(state, connection);
    }
  }
}

void Mesh::observe(const TraceEvent& event) {
  if (event.kind != TraceEvent::Kind::executed) return;
  const std::uint32_t to = event.nic - 1U;
  if (to >= places_.size() || event.qp_number >= places_[to].size()) return;
  const Place& place = places_[to][event.qp_number];
  Arrival& arrival = arrivals_[index(place.peer, to, place.lane)];
  if (event.packet == emulator::PacketKind::write) {
    arrival.last_data = event.time;
    arrival.bytes += event.bytes;
  } else if (event.packet == emulator::PacketKind::atomic_request && arrival.signal == Time{0}) {
    arrival.signal = event.time;
    ++signals_arrived_;
  }
}

void Mesh::write(std::uint32_t pe, std::uint32_t peer, std::uint32_t lane, std::uint32_t bytes) {
  Queue& queue = *queues_[index(pe, peer, lane)];
  queue.writer->start(Opcode::write, {}).remote(0, 0).data(0, bytes, 0);
  queue.writer->finish();
  queue.rung = false;
}

void Mesh::signal(std::uint32_t pe, std::uint32_t peer, std::uint32_t lane) {
  Queue& queue = *queues_[index(pe, peer, lane)];
  const emulator::AtomicOperands add{.opcode = Opcode::fetch_add, .swap_or_add = 1};
  queue.writer->start(add.opcode, {.signalled = true}).remote(0, 0).atomic(add).data(0, 8, 0);
  queue.writer->finish();
  queue.rung = false;
  ++signals_posted_;
}

void Mesh::ring(std::uint32_t pe, const std::vector<std::uint32_t>& peers) {
  for (const std::uint32_t peer : peers) {
    for (std::uint32_t lane = 0; lane < options_.lanes && peer != pe; ++lane) {
      Queue& queue = *queues_[index(pe, peer, lane)];
      if (std::exchange(queue.rung, true)) continue;
      emulator::store_be(queue.record.data() + 4, std::uint32_t{queue.writer->posted()});
      network_.doorbell(pe, queue.pair->number());
    }
  }
}

const Mesh::Arrival& Mesh::arrival(std::uint32_t from, std::uint32_t to, std::uint32_t lane) const {
  return arrivals_[index(from, to, lane)];
}

void Mesh::count_failures() {
  failed_pairs_ = static_cast<std::uint64_t>(std::count_if(
      queues_.begin(), queues_.end(),
      [](const auto& queue) { return queue && queue->pair->state() == emulator::QpState::error; }));
}

}  // namespace shoal::bench::nic
