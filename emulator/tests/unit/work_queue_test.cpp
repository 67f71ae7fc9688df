// SPDX-License-Identifier: Apache-2.0
// Work queues that their owner drives by memory alone (mlx5/work_queue.hpp), on the emulated
// NIC: formats as the NIC decodes them, order of request, record and doorbell, wraps, owner bits,
// collapsed queues, errors.
// @traits one_thread
#include "shoal/device/detail/mlx5/work_queue.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "rig.hpp"

namespace shoal::emulator::test {
namespace {

/// Memory in which nothing reaches the NIC by itself. A record carries with it what was stored
/// before; order_record() lets both arrive; a doorbell that overtakes them finds the old record.
class WeakBus {
 public:
  explicit WeakBus(std::uint32_t blocks)
      : ring(std::size_t{blocks} * 4), shown(ring.size()), pending_(ring.size()) {}

  void store_record(std::uint32_t* word, std::uint32_t value) {
    if (word != &record.sends) {
      *word = value;  // of the completion queue
      return;
    }
    record.sends = value;
    pending_ = ring;
    pending_record_ = value;
  }
  void order_record() {
    shown = pending_;
    shown_record.sends = pending_record_;
  }
  void ring_number(VirtualNetwork& network, std::uint32_t number) {
    network_ = &network;
    number_ = number;
  }
  void ring_doorbell(std::uint64_t last) {
    control = last;
    ++rings;
    network_->doorbell(0, number_);
  }
  std::uint32_t load_entry(const std::uint32_t* word) const { return *word; }

  std::vector<mlx5::Segment> ring, shown;
  mlx5::DoorbellRecord record{}, shown_record{};
  std::uint64_t control = 0;
  int rings = 0;

 private:
  std::vector<mlx5::Segment> pending_;
  std::uint32_t pending_record_ = 0, number_ = 0;
  VirtualNetwork* network_ = nullptr;
};

/// Names the functions of a bus as publish() calls them.
struct Bus {
  WeakBus& memory;
  void store_record(std::uint32_t* word, std::uint32_t value) { memory.store_record(word, value); }
  void order_record() { memory.order_record(); }
  void ring(std::uint64_t*, std::uint64_t value) { memory.ring_doorbell(value); }
  std::uint32_t load_entry(const std::uint32_t* word) const { return memory.load_entry(word); }
};

struct Shape {
  std::uint32_t blocks = 64, log_entries = 6;
  bool collapsed = false;
};

/// A client of such queues on NIC 0, and a peer with memory on NIC 1.
class Client {
 public:
  explicit Client(const Shape& shape, const NetworkOptions& options = {})
      : network(options),
        peer(network, 1),
        memory(shape.blocks),
        local(4096),
        entries(std::size_t{1} << shape.log_entries),
        bus{memory} {
    std::memset(static_cast<void*>(entries.data()), mlx5::kUnusedEntry,
                entries.size() * sizeof entries[0]);
    Nic& nic = network.nic(0);
    key = nic.keys().create({.domain = 1,
                             .address = 0x1000,
                             .length = local.size() * 8,
                             .memory = reinterpret_cast<std::byte*>(local.data()),
                             .access = kAllAccess});
    const auto queue = nic.create_completion_queue(
        {.entries = reinterpret_cast<std::byte*>(entries.data()),
         .size = 1U << shape.log_entries,
         .doorbell_record = reinterpret_cast<std::byte*>(&completion_record),
         .collapsed = shape.collapsed,
         .ignore_overrun = shape.collapsed});
    pair = nic.create_queue_pair(
                  {.domain = 1,
                   .send_completions = queue.object,
                   .ring = {reinterpret_cast<std::byte*>(memory.shown.data()), shape.blocks},
                   .doorbell_record = reinterpret_cast<std::byte*>(&memory.shown_record)})
               .object;
    Connection connection{.remote_lid = 2,
                          .remote_qp = peer.pair->number(),
                          .reads_and_atomics = 16,
                          .remote_reads_and_atomics = 16,
                          .access = kAllAccess};
    for (const QpState state : {QpState::init, QpState::ready_to_receive, QpState::ready_to_send})
      EXPECT_EQ(pair->modify(state, connection), Status::ok);
    connection.remote_lid = 1;
    connection.remote_qp = pair->number();
    for (const QpState state : {QpState::init, QpState::ready_to_receive, QpState::ready_to_send})
      EXPECT_EQ(peer.pair->modify(state, connection), Status::ok);
    memory.ring_number(network, pair->number());
    sends = {memory.ring.data(), shape.blocks, pair->number(), &memory.record.sends, nullptr};
    completions = {entries.data(), shape.log_entries, &completion_record.consumed};
  }

  mlx5::Memory remote(std::uint64_t offset) { return {peer.address(offset), peer.key}; }
  mlx5::Memory own(std::uint64_t offset) const { return {0x1000 + offset, key}; }
  bool has_room(std::uint32_t blocks) const { return posted - completed + blocks <= sends.blocks; }
  mlx5::Posted add_one(mlx5::Flags flags) {
    const auto last =
        mlx5::write_atomic(sends, posted, mlx5::Opcode::fetch_add, remote(0), 1, 0, own(0), flags);
    posted = last.next;
    return last;
  }
  mlx5::Posted write_inline(std::uint32_t bytes, mlx5::Flags flags) {
    const std::vector<std::byte> data(bytes, std::byte{0x77});
    const auto last = mlx5::write_inline(sends, posted, remote(64), data.data(), bytes, flags);
    posted = last.next;
    return last;
  }
  void publish(const mlx5::Posted& last) { mlx5::publish(sends, last, bus); }
  /// Waits in virtual time for the next completion and accounts it.
  bool wait(mlx5::Completion& completion) {
    const bool any =
        network.run_until([&] { return mlx5::next(completions, consumed, bus, completion); });
    if (!any) return false;
    mlx5::release(completions, consumed, bus);
    completed = mlx5::completed_after(sends, completed, posted, completion.index);
    return true;
  }
  std::uint64_t sum() { return peer.memory[0]; }

  VirtualNetwork network;
  End peer;
  WeakBus memory;
  std::vector<std::uint64_t> local;
  std::vector<mlx5::CompletionEntry> entries;
  mlx5::CompletionRecord completion_record{};
  Bus bus;
  std::uint32_t key = 0;
  std::shared_ptr<QueuePair> pair;
  mlx5::SendQueue sends;
  mlx5::CompletionQueue completions;
  std::uint32_t posted = 0, completed = 0, consumed = 0;
};

/// A ring alone, and what the NIC decodes from it.
struct Ring {
  explicit Ring(std::uint32_t blocks)
      : segments(std::size_t{blocks} * 4),
        queue{segments.data(), blocks, 0x123456, nullptr, nullptr} {}
  WorkRequest decoded(std::uint32_t index) {
    WorkRequest request;
    const SendRing ring{reinterpret_cast<std::byte*>(segments.data()), queue.blocks};
    EXPECT_EQ(decode(ring, queue.number, static_cast<std::uint16_t>(index), request),
              Syndrome::none);
    EXPECT_EQ(request.blocks, mlx5::blocks_at(queue, index));
    return request;
  }
  std::vector<mlx5::Segment> segments;
  mlx5::SendQueue queue;
};

constexpr mlx5::Memory kRemote{0x1122334455667788, 0x99aabbcc}, kLocal{0x8877665544332211, 0x7654};

TEST(WorkQueue, DataRequestsOfEverySizeAtEveryPlaceOfTheRing) {
  Ring ring(16);
  for (std::uint32_t index = 65500; index < 65570; ++index)
    for (std::uint32_t count = 0; count <= 30; ++count) {
      std::vector<mlx5::Part> parts;
      for (std::uint32_t i = 0; i < count; ++i)
        parts.push_back({{kLocal.address + i, kLocal.key + i}, 100 + i});
      const bool read = count % 2 == 1;
      const auto posted = mlx5::write_data(
          ring.queue, index, read ? mlx5::Opcode::read : mlx5::Opcode::write, kRemote, parts.data(),
          count, {.signalled = count % 3 == 0, .fenced = count % 5 == 0});
      const WorkRequest request = ring.decoded(index);
      ASSERT_EQ(request.opcode, read ? Opcode::read : Opcode::write);
      EXPECT_EQ(posted.next, index + request.blocks);
      EXPECT_EQ(request.signalled, count % 3 == 0);
      EXPECT_EQ(request.fenced, count % 5 == 0);
      EXPECT_EQ(request.remote_address, kRemote.address);
      EXPECT_EQ(request.remote_key, kRemote.key);
      ASSERT_EQ(request.data.size(), count);
      for (std::uint32_t i = 0; i < count; ++i) {
        EXPECT_EQ(request.data[i].address, kLocal.address + i);
        EXPECT_EQ(request.data[i].key, kLocal.key + i);
        EXPECT_EQ(request.data[i].length, 100 + i);
      }
    }
}

// A length of 0 in a request means 2^31.
TEST(WorkQueue, EmptyPartsAreLeftOut) {
  Ring ring(4);
  const mlx5::Part parts[] = {{kLocal, 0}, {kLocal, 8}, {kLocal, 0}};
  mlx5::write_data(ring.queue, 3, mlx5::Opcode::write, kRemote, parts, 3, {});
  ASSERT_EQ(ring.decoded(3).data.size(), 1u);
  EXPECT_EQ(ring.decoded(3).data[0].length, 8u);
}

TEST(WorkQueue, InlineRequestsOfEveryLength) {
  Ring ring(16);
  std::vector<std::byte> data(mlx5::kMostInline);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i * 7 + 1);
  for (std::uint32_t bytes = 0; bytes <= mlx5::kMostInline; ++bytes) {
    const std::uint32_t index = bytes * 11;
    const auto posted =
        mlx5::write_inline(ring.queue, index, kRemote, data.data(), bytes, {.signalled = true});
    const WorkRequest request = ring.decoded(index);
    ASSERT_EQ(request.inline_data.size(), bytes);
    EXPECT_TRUE(std::equal(request.inline_data.begin(), request.inline_data.end(), data.begin()));
    EXPECT_EQ(posted.next, index + request.blocks);
    EXPECT_TRUE(request.data.empty());
  }
}

TEST(WorkQueue, Atomics) {
  Ring ring(4);
  mlx5::write_atomic(ring.queue, 7, mlx5::Opcode::compare_swap, kRemote, 0x0102030405060708,
                     0x1112131415161718, kLocal, {});
  const WorkRequest request = ring.decoded(7);
  EXPECT_EQ(request.opcode, Opcode::compare_swap);
  EXPECT_EQ(request.atomic.swap_or_add, 0x0102030405060708U);
  EXPECT_EQ(request.atomic.compare, 0x1112131415161718U);
  EXPECT_EQ(request.data.at(0).address, kLocal.address);
  EXPECT_FALSE(request.signalled);
}

// The doorbell is the first 8 bytes of the last request.
TEST(WorkQueue, TheDoorbellIsTheLastRequestsControl) {
  Client client({});
  client.add_one({});
  const auto last = client.write_inline(100, {.signalled = true});
  client.publish(last);
  std::array<std::byte, 8> bytes;
  std::memcpy(bytes.data(), &client.memory.control, sizeof bytes);
  EXPECT_EQ(load_be<std::uint32_t>(bytes.data()), 1U << 8 | 0x08U);
  EXPECT_EQ(load_be<std::uint32_t>(bytes.data() + 4), client.pair->number() << 8 | 9U);
  EXPECT_EQ(client.memory.rings, 1);
}

// Each request reaches the NIC by its own doorbell: nothing but publish() lets it see memory.
TEST(WorkQueue, RequestThenRecordThenDoorbell) {
  Client client({});
  mlx5::Completion completion;
  for (std::uint64_t i = 1; i <= 200; ++i) {
    if (i % 3 == 0) client.write_inline(static_cast<std::uint32_t>(i), {});
    client.publish(client.add_one({.signalled = true}));
    ASSERT_TRUE(client.wait(completion)) << "request " << i << " was not executed";
    ASSERT_FALSE(completion.failed);
    ASSERT_EQ(client.sum(), i);
    ASSERT_EQ(client.completed, client.posted);
  }
}

TEST(WorkQueue, ACompletionFreesAllBlocksOfItsRequest) {
  Client client({});
  mlx5::Completion completion;
  for (int i = 0; i < 100; ++i) {
    client.publish(client.write_inline(200, {.signalled = true}));
    ASSERT_TRUE(client.wait(completion));
    ASSERT_EQ(client.completed, client.posted);
    ASSERT_EQ(client.posted, 4U * (i + 1));
  }
}

class Depths : public ::testing::TestWithParam<std::uint32_t> {};

// 70000 requests of one to four blocks: block numbers of 16 bits wrap, the ring many times.
TEST_P(Depths, IndicesWrap) {
  Client client({.blocks = GetParam(), .log_entries = 4});
  std::mt19937 random(4711);
  mlx5::Completion completion;
  std::uint64_t adds = 0;
  while (adds < 70000) {
    mlx5::Posted last;
    std::uint32_t in_chain = 0;
    const std::uint32_t chain = 1 + random() % std::min(GetParam() / 8, 4096U);
    for (; in_chain < chain && client.has_room(5); ++in_chain) {
      const std::uint32_t kind = random() % 4;
      if (kind == 0) client.write_inline(random() % 200, {});
      last = client.add_one({.signalled = in_chain + 1 == chain || !client.has_room(10)});
      ++adds;
    }
    if (in_chain == 0) FAIL() << "the room does not come back";
    last = client.add_one({.signalled = true});
    ++adds;
    client.publish(last);
    while (client.completed != client.posted) {
      ASSERT_TRUE(client.wait(completion)) << "after " << adds;
      ASSERT_FALSE(completion.failed) << static_cast<int>(completion.syndrome);
    }
    ASSERT_EQ(client.sum(), adds);
  }
}

INSTANTIATE_TEST_SUITE_P(Blocks, Depths, ::testing::Values(32, 1024, 32768));

// A full ring and a full completion queue, three laps and more: no entry is read twice or early.
TEST(WorkQueue, OwnerBitsTellLapsApart) {
  Client client({.blocks = 8, .log_entries = 3});
  mlx5::Completion completion;
  for (int lap = 0; lap < 20; ++lap) {
    mlx5::Posted last;
    while (client.has_room(1)) last = client.add_one({.signalled = true});
    client.publish(last);
    for (int i = 0; i < 8; ++i) {
      ASSERT_TRUE(client.wait(completion));
      ASSERT_EQ(completion.index, static_cast<std::uint16_t>(lap * 8 + i));
      ASSERT_EQ(completion.queue_pair, client.pair->number());
    }
    EXPECT_FALSE(mlx5::next(client.completions, client.consumed, client.bus, completion));
    EXPECT_EQ(client.completed, client.posted);
  }
}

// Entries are given back to the NIC: it stops a queue pair whose completions find no entry.
TEST(WorkQueue, EntriesAreReleased) {
  Client client({.blocks = 64, .log_entries = 1});
  mlx5::Completion completion;
  for (int i = 0; i < 40; ++i) {
    client.publish(client.add_one({.signalled = true}));
    ASSERT_TRUE(client.wait(completion)) << i;
  }
  EXPECT_EQ(mlx5::big(client.completion_record.consumed), 40U);
}

// The newest entry completes all requests before it, also where it has been seen already.
TEST(WorkQueue, ACollapsedQueueShowsTheNewest) {
  Client client({.blocks = 1024, .log_entries = 0, .collapsed = true});
  mlx5::Completion completion;
  EXPECT_FALSE(mlx5::newest(client.completions, client.bus, completion)) << "nothing is complete";
  std::mt19937 random(5);
  std::uint64_t adds = 0;
  while (adds < 70000) {
    const std::uint32_t chain = 1 + random() % 300;
    mlx5::Posted last;
    for (std::uint32_t i = 0; i < chain; ++i, ++adds) {
      if (i % 7 == 0) client.write_inline(50, {.signalled = true});
      last = client.add_one({.signalled = true});
    }
    // Still the entry of the chain before.
    if (mlx5::newest(client.completions, client.bus, completion)) {
      const std::uint32_t before = client.completed;
      EXPECT_EQ(mlx5::completed_after(client.sends, before, client.posted, completion.index),
                before);
    }
    client.publish(last);
    ASSERT_TRUE(client.network.run_until([&] {
      if (!mlx5::newest(client.completions, client.bus, completion)) return false;
      client.completed =
          mlx5::completed_after(client.sends, client.completed, client.posted, completion.index);
      return client.completed == client.posted;
    }));
    ASSERT_FALSE(completion.failed);
    ASSERT_EQ(client.sum(), adds);
  }
}

// An unsignalled request with a wrong key fails with its reason; those behind it are flushed.
TEST(WorkQueue, ErrorsComeWithTheirSyndrome) {
  Client client({});
  mlx5::Completion completion;
  client.add_one({});
  const std::uint32_t wrong = client.posted;
  mlx5::Memory bad = client.remote(0);
  bad.key ^= 0x100;
  const mlx5::Part part{client.own(0), 8};
  client.posted =
      mlx5::write_data(client.sends, client.posted, mlx5::Opcode::write, bad, &part, 1, {}).next;
  client.add_one({});
  client.publish(client.add_one({}));
  ASSERT_TRUE(client.wait(completion));
  EXPECT_TRUE(completion.failed);
  EXPECT_EQ(completion.syndrome, mlx5::Syndrome::remote_access);
  EXPECT_EQ(completion.index, static_cast<std::uint16_t>(wrong));
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(client.wait(completion));
    EXPECT_EQ(completion.syndrome, mlx5::Syndrome::flushed);
  }
  EXPECT_EQ(client.completed, client.posted);
  EXPECT_EQ(client.sum(), 1U);
}

TEST(WorkQueue, ACollapsedQueueKeepsErrorsVisible) {
  Client client({.log_entries = 0, .collapsed = true});
  mlx5::Completion completion;
  const mlx5::Part part{{0x1000, client.key ^ 0x100}, 8};
  client.posted = mlx5::write_data(client.sends, client.posted, mlx5::Opcode::write,
                                   client.remote(0), &part, 1, {})
                      .next;
  client.publish(client.add_one({}));
  ASSERT_TRUE(client.network.run_until(
      [&] { return mlx5::newest(client.completions, client.bus, completion); }));
  EXPECT_TRUE(completion.failed);
}

}  // namespace
}  // namespace shoal::emulator::test
