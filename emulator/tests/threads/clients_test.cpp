// SPDX-License-Identifier: Apache-2.0
// Clients of the emulated NIC in threads of their own: they share only rings, doorbell records and
// completion queues with the thread that runs the engine. ThreadSanitizer checks that this is
// enough.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <deque>
#include <thread>
#include <vector>

#include "engine/big_endian.hpp"
#include "engine/nic.hpp"
#include "engine/request_writer.hpp"

namespace shoal::emulator::test {
namespace {

/// Delivers at once to a NIC of the same thread, in real time.
class LoopbackWire : public Wire {
 public:
  Time now() const override { return std::chrono::steady_clock::now().time_since_epoch(); }
  bool ready() const override { return true; }
  void send(Packet&& packet) override { packets.push_back(std::move(packet)); }
  std::deque<Packet> packets;
};

void store_shared_be32(std::byte* to, std::uint32_t value) {
  std::atomic_ref<std::uint32_t>(*reinterpret_cast<std::uint32_t*>(to))
      .store(swap_bytes(value), std::memory_order_release);
}

constexpr std::uint32_t kBlocks = 64, kCompletions = 64, kRequests = 20000;

/// One client: its rings and its memory. Its thread alone touches `counter` and `result`.
struct Client {
  alignas(64) std::array<std::byte, kBlocks * kBlockBytes> ring{};
  alignas(64) std::array<std::byte, kCompletions * kCqeBytes> entries{};
  alignas(8) std::array<std::byte, 8> record{}, queue_record{};
  alignas(8) std::array<std::byte, 8> result{};
  std::shared_ptr<CompletionQueue> queue;
  std::shared_ptr<QueuePair> pair;
  std::uint32_t key = 0;
};

bool poll(Client& client, std::uint32_t consumed) {
  std::byte* const entry = client.entries.data() + consumed % kCompletions * kCqeBytes;
  const std::uint32_t word =
      std::atomic_ref<std::uint32_t>(*reinterpret_cast<std::uint32_t*>(entry + 60))
          .load(std::memory_order_acquire);
  const std::uint32_t last = word >> 24;
  if (last >> 4 == 15 || (last & 1) != (consumed / kCompletions & 1)) return false;
  EXPECT_EQ(last >> 4, 0U) << "syndrome " << static_cast<int>(entry[55]);
  store_shared_be32(client.queue_record.data(), (consumed + 1) & kPsnMask);
  return true;
}

/// Adds 1 to the word at `target` kRequests times, as many at once as the queue takes.
void add_many(Client& client, std::uint64_t target, std::uint32_t target_key,
              std::atomic<bool>& stop) {
  RequestWriter writer(client.ring.data(), kBlocks, client.pair->number());
  const AtomicOperands add{.opcode = Opcode::fetch_add, .swap_or_add = 1};
  std::uint32_t posted = 0, done = 0;
  std::uint64_t before = 0;
  while (done < kRequests && !stop) {
    if (posted < kRequests && posted - done < kBlocks) {
      writer.start(Opcode::fetch_add, {.signalled = true}).remote(target, target_key);
      writer.atomic(add).data(reinterpret_cast<std::uint64_t>(client.result.data()), 8, client.key);
      writer.finish();
      store_shared_be32(client.record.data() + 4, writer.posted());
      ++posted;
      continue;
    }
    if (!poll(client, done)) {
      std::this_thread::yield();
      continue;
    }
    if (++done == posted) {  // the result belongs to this thread until the next request
      std::uint64_t now = 0;
      std::memcpy(&now, client.result.data(), sizeof now);
      EXPECT_GE(now, before);
      before = now;
    }
  }
  EXPECT_EQ(done, kRequests);
}

TEST(EmulatorClients, PostAndPollWhileTheEngineRuns) {
  constexpr std::size_t kClients = 3;
  std::array<LoopbackWire, 2> wires;
  NicOptions first, second;
  second.lid = 2;
  Nic source(first, wires[0]), target(second, wires[1]);
  alignas(8) std::array<std::byte, 8> counter{};
  const auto counter_address = reinterpret_cast<std::uint64_t>(counter.data());
  const std::uint32_t counter_key =
      target.keys().create({.address = counter_address,
                            .length = 8,
                            .memory = counter.data(),
                            .access = Access::remote_atomic | Access::local_write});
  std::vector<Client> clients(kClients);
  for (Client& client : clients) {
    for (std::size_t i = 0; i < kCompletions; ++i)
      client.entries[i * kCqeBytes + 63] = std::byte{0xf0};
    client.key =
        source.keys().create({.address = reinterpret_cast<std::uint64_t>(client.result.data()),
                              .length = 8,
                              .memory = client.result.data(),
                              .access = Access::local_write});
    client.queue = source
                       .create_completion_queue({.entries = client.entries.data(),
                                                 .size = kCompletions,
                                                 .doorbell_record = client.queue_record.data()})
                       .object;
    client.pair = source
                      .create_queue_pair({.send_completions = client.queue,
                                          .ring = {client.ring.data(), kBlocks},
                                          .doorbell_record = client.record.data()})
                      .object;
    const auto peer = target.create_queue_pair({}).object;
    const auto connect = [](QueuePair& pair, std::uint16_t lid, std::uint32_t number) {
      const Connection connection{.remote_lid = lid, .remote_qp = number, .access = ~0U};
      for (const QpState state : {QpState::init, QpState::ready_to_receive, QpState::ready_to_send})
        ASSERT_EQ(pair.modify(state, connection), Status::ok);
    };
    connect(*client.pair, 2, peer->number());
    connect(*peer, 1, client.pair->number());
  }
  std::atomic<bool> stop = false;
  std::atomic<std::size_t> running = kClients;
  std::vector<std::thread> threads;
  for (Client& client : clients)
    threads.emplace_back([&] {
      add_many(client, counter_address, counter_key, stop);
      --running;
    });
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(90);
  while (running != 0 && !stop) {
    for (Client& client : clients) source.doorbell(client.pair->number());
    for (int side = 0; side < 2; ++side) {
      (side == 0 ? source : target).progress();
      std::deque<Packet>& packets = wires[side].packets;
      for (; !packets.empty(); packets.pop_front())
        (side == 0 ? target : source).receive(std::move(packets.front()));
    }
    if (std::chrono::steady_clock::now() > deadline) stop = true;
    std::this_thread::yield();
  }
  for (std::thread& thread : threads) thread.join();
  std::uint64_t sum = 0;
  std::memcpy(&sum, counter.data(), sizeof sum);
  EXPECT_EQ(sum, kClients * kRequests);
}

}  // namespace
}  // namespace shoal::emulator::test
