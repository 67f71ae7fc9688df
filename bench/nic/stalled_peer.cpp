// SPDX-License-Identifier: Apache-2.0
// stalled_peer.cpp: receives that several queue pairs share, against receives of their own.
#include <algorithm>
#include <array>
#include <deque>
#include <memory>

#include "engine/big_endian.hpp"
#include "nic/studies.hpp"

namespace shoal::bench::nic {
namespace {

using emulator::QpState;
using emulator::ReceiveQueue;
using emulator::ReceiveQueueAttributes;

constexpr std::uint32_t kReceives = 256, kStride = 32;

/// Receives of a PE, posted again as they are used up.
struct Receives {
  explicit Receives(bool shared)
      : queue(std::make_shared<ReceiveQueue>(
            1, ReceiveQueueAttributes{.memory = ring.data(),
                                      .size = kReceives,
                                      .stride = kStride,
                                      .doorbell_record = record.data(),
                                      .shared = shared})) {
    for (std::uint32_t i = 0; i < kReceives; ++i)
      emulator::store_be(ring.data() + std::size_t{i} * kStride + 2,
                         static_cast<std::uint16_t>((i + 1) % kReceives));
  }
  void post(std::uint32_t count) {
    posted += count;
    emulator::store_be(record.data(), posted & 0xffff);
  }
  std::array<std::byte, kReceives * kStride> ring{};
  alignas(8) std::array<std::byte, 8> record{};
  std::uint32_t posted = 0;
  std::shared_ptr<ReceiveQueue> queue;
};

struct Sender {
  std::vector<std::byte> ring;
  alignas(8) std::array<std::byte, 8> record{};
  std::array<std::byte, 64> sent_entry{}, received_entry{};
  std::shared_ptr<emulator::CompletionQueue> sent, received;
  std::shared_ptr<emulator::QueuePair> source, target;
  std::uint64_t handled = 0;
};

struct Lids {
  std::uint16_t source, target;
};

/// Creates and connects the queue pairs of a sender, and writes its messages.
void start(Sender& pair, emulator::Nic& from, emulator::Nic& to, const Lids& lids,
           const Receives& receives, std::uint32_t messages) {
  const auto depth = std::bit_ceil(messages + 1);
  pair.ring.resize(std::size_t{depth} * emulator::kBlockBytes);
  const auto queue = [](emulator::Nic& nic, auto& entry) {
    return nic
        .create_completion_queue(
            {.entries = entry.data(), .size = 1, .collapsed = true, .ignore_overrun = true})
        .object;
  };
  pair.sent = queue(from, pair.sent_entry);
  pair.received = queue(to, pair.received_entry);
  pair.source = from.create_queue_pair({.send_completions = pair.sent,
                                        .ring = {pair.ring.data(), depth},
                                        .doorbell_record = pair.record.data()})
                    .object;
  pair.target =
      to.create_queue_pair({.receive_completions = pair.received, .receives = receives.queue})
          .object;
  const auto connect = [](emulator::QueuePair& end, std::uint16_t lid, std::uint32_t number) {
    const emulator::Connection connection{
        .remote_lid = lid, .remote_qp = number, .min_rnr_timer = 1};
    for (const auto state : {QpState::init, QpState::ready_to_receive, QpState::ready_to_send})
      (void)end.modify(state, connection);
  };
  connect(*pair.source, lids.target, pair.target->number());
  connect(*pair.target, lids.source, pair.source->number());
  emulator::RequestWriter writer(pair.ring.data(), depth, pair.source->number());
  for (std::uint32_t m = 0; m < messages; ++m) {
    writer.start(emulator::Opcode::send, {}).data(0, 4096, 0);
    writer.finish();
  }
  emulator::store_be(pair.record.data() + 4, std::uint32_t{writer.posted()});
}

}  // namespace

nlohmann::json stalled_peer(bool shared, std::uint32_t senders, std::uint32_t messages) {
  emulator::NetworkOptions network_options;
  network_options.nics = senders + 1;
  network_options.nic.timing_only = true;
  emulator::VirtualNetwork network(network_options);
  emulator::Nic& target_nic = network.nic(senders);
  // The same number of posted receives in all.
  std::deque<Receives> receives;
  for (std::uint32_t i = 0; i < (shared ? 1 : senders); ++i) receives.emplace_back(shared);
  const std::uint32_t each = kReceives / senders;
  for (Receives& one : receives) one.post(shared ? each * senders : each);

  std::deque<Sender> pairs(senders);
  for (std::uint32_t i = 0; i < senders; ++i) {
    Sender& pair = pairs[i];
    start(pair, network.nic(i), target_nic,
          {static_cast<std::uint16_t>(i + 1), static_cast<std::uint16_t>(senders + 1)},
          receives[shared ? 0 : i], messages);
    network.doorbell(i, pair.source->number());
  }

  // The thread that handles PE 0's messages has stalled: their receives are not posted again.
  const auto handle = [&] {
    bool done = true;
    for (std::uint32_t i = 1; i < senders; ++i) {
      Sender& pair = pairs[i];
      const std::uint64_t fresh = pair.received->produced() - pair.handled;
      pair.handled += fresh;
      if (fresh != 0) receives[shared ? 0 : i].post(static_cast<std::uint32_t>(fresh));
      done = done && pair.handled == messages;
    }
    return done;
  };
  constexpr Time kLimit = std::chrono::milliseconds(20);
  const bool done = network.run_until(handle, kLimit);
  std::uint64_t least = messages, pauses = 0;
  for (std::uint32_t i = 1; i < senders; ++i) {
    least = std::min(least, pairs[i].handled);
    pauses += pairs[i].source->counters().receiver_not_ready;
  }
  return {{"receives", shared ? "shared" : "independent"},
          {"senders", senders},
          {"messages", messages},
          {"others_complete", done},
          {"others_complete_us",
           done ? nlohmann::json(static_cast<double>(network.now().count()) / 1000)
                : nlohmann::json(nullptr)},
          {"fewest_messages_of_another_peer", least},
          {"pauses_of_other_peers", pauses}};
}

}  // namespace shoal::bench::nic
