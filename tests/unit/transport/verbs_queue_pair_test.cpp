// SPDX-License-Identifier: Apache-2.0
// Queue pairs of the verbs transport on the emulated NIC, by libibverbs and by device commands: the
// same operations, limits and errors.
// @traits polls
// @soak *.IndicesWrap/*_over_roce
#include <gtest/gtest.h>
#ifdef SHOAL_WITH_EMULATED_VERBS
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <ostream>
#include <set>
#include <thread>
#include <vector>

#include "support/expect_error.hpp"
#include "support/wait_for.hpp"
#include "support/world/verbs.hpp"
#include "transport/verbs/devx/path.hpp"
#include "transport/verbs/open_port.hpp"
#include "transport/verbs/port/queue_pair.hpp"

namespace shoal::test {
namespace {

using namespace transport::verbs;

/// A port with memory and two queue pairs that are connected to each other.
struct Rig {
  explicit Rig(const Settings& settings, std::size_t completions = 1024)
      : opened(open_port(load_library(settings.verbs_library), {"mlx5_0", 1, true}, settings,
                         completions)),
        limits(QueueLimits::of(port, settings, 2)),
        memory(1 << 16),
        region(port.register_memory(memory.data(), memory.size() * 8, Peers::access)),
        a(port.make_queue_pair(limits, {0, 1, 0, 1}, 0)),
        b(port.make_queue_pair(limits, {1, 0, 0, 1}, 1)) {}
  void connect() {
    a->connect(port.path(), {b->number(), b->first_packet(), 0});
    b->connect(port.path(), {a->number(), a->first_packet(), 0});
  }
  std::uint64_t address(std::size_t word) const {
    return reinterpret_cast<std::uintptr_t>(memory.data() + word);
  }
  /// A request between words of the memory; `bytes` 0: no data.
  ibv_send_wr request(ibv_wr_opcode opcode, std::size_t from, std::size_t to, std::uint32_t bytes,
                      std::uint64_t id) {
    sources.push_back(std::make_unique<ibv_sge>(ibv_sge{address(from), bytes, region.local_key()}));
    ibv_send_wr made{};
    made.wr_id = id;
    made.opcode = opcode;
    made.sg_list = sources.back().get();
    made.num_sge = bytes == 0 ? 0 : 1;
    made.send_flags = IBV_SEND_SIGNALED;
    made.wr.rdma.remote_addr = address(to);
    made.wr.rdma.rkey = region.remote().key;
    return made;
  }
  ibv_send_wr add(std::size_t to, std::uint64_t value, std::uint64_t id) {
    ibv_send_wr made = request(IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 0, 8, id);
    made.wr.atomic.remote_addr = address(to);
    made.wr.atomic.rkey = region.remote().key;
    made.wr.atomic.compare_add = value;
    return made;
  }
  /// The next completion. Fails the test after a while.
  ibv_wc wait() {
    ibv_wc completion{};
    const auto polled = [&] { return port.poll({&completion, 1}) != 0; };
    // Most completions come at once, and thousands are awaited.
    for (int look = 0; look < 1000; ++look) {
      if (polled()) return completion;
      std::this_thread::yield();
    }
    if (!test::wait_for(polled)) {
      ADD_FAILURE() << "nothing completes";
      completion.status = IBV_WC_GENERAL_ERR;
    }
    return completion;
  }

  std::unique_ptr<Port> opened;
  Port& port = *opened;
  QueueLimits limits;
  std::vector<std::uint64_t> memory;
  MemoryRegion region;
  std::unique_ptr<QueuePair> a, b;
  std::vector<std::unique_ptr<ibv_sge>> sources;
};

/// An interface, and the wire of the NIC: InfiniBand, or RoCE over UDP.
struct Variant {
  const char *name, *interface;
  bool ethernet;
};

void PrintTo(const Variant& variant, std::ostream* to) {
  *to << variant.name;
}

class VerbsQueuePair : public WithVerbs, public testing::WithParamInterface<Variant> {
 protected:
  void SetUp() override {
    WithVerbs::SetUp();
    if (GetParam().ethernet) use_udp();
  }
  static bool uses_devx() { return GetParam().interface == std::string("devx"); }
  static Settings settings() {
    Settings chosen = verbs_settings();
    chosen.verbs_interface = GetParam().interface;
    chosen.verbs_depth = 16;
    return chosen;
  }
};

TEST_P(VerbsQueuePair, UsesTheChosenInterface) {
  const Rig rig(settings());
  EXPECT_EQ(dynamic_cast<const devx::CommandPort*>(&rig.port) != nullptr, uses_devx());
}

TEST_P(VerbsQueuePair, WritesReadsAndChangesWords) {
  Rig rig(settings());
  rig.connect();
  for (std::size_t i = 0; i < 64; ++i) rig.memory[i] = i * 1'000'003;
  ibv_send_wr write = rig.request(IBV_WR_RDMA_WRITE, 1, 1000, 500, 1);
  ibv_send_wr small = rig.request(IBV_WR_RDMA_WRITE, 2, 2000, 100, 2);
  small.send_flags |= IBV_SEND_INLINE;
  ibv_send_wr read = rig.request(IBV_WR_RDMA_READ, 3000, 1, 400, 3);
  ibv_send_wr add = rig.add(4000, 5, 4);
  ibv_send_wr swap = rig.add(4001, 0, 5);
  swap.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
  swap.wr.atomic.swap = 77;
  ibv_send_wr empty = rig.request(IBV_WR_RDMA_WRITE, 0, 0, 0, 6);
  empty.send_flags |= IBV_SEND_FENCE;
  write.next = &small;
  small.next = &read;
  read.next = &add;
  add.next = &swap;
  swap.next = &empty;
  rig.memory[4000] = 37;
  ASSERT_EQ(rig.a->post(write), 0);
  for (std::uint64_t id = 1; id <= 6; ++id) {
    const ibv_wc completion = rig.wait();
    EXPECT_EQ(completion.status, IBV_WC_SUCCESS);
    EXPECT_EQ(completion.wr_id, id);
    EXPECT_EQ(completion.qp_num, rig.a->number());
  }
  EXPECT_TRUE(std::equal(&rig.memory[1], &rig.memory[63], &rig.memory[1000]));
  EXPECT_TRUE(std::equal(&rig.memory[2], &rig.memory[14], &rig.memory[2000]));
  EXPECT_TRUE(std::equal(&rig.memory[1], &rig.memory[51], &rig.memory[3000]));
  EXPECT_EQ(rig.memory[4000], 42u);
  EXPECT_EQ(rig.memory[4001], 77u);
}

// Requests beyond the depth are refused until completions have been read.
TEST_P(VerbsQueuePair, AFullQueueRefuses) {
  Rig rig(settings());
  rig.connect();
  std::uint64_t posted = 0;
  const auto post = [&] {
    ibv_send_wr add = rig.add(100, 1, posted);
    return rig.a->post(add);
  };
  for (int lap = 0; lap < 5; ++lap) {
    int code = 0;
    std::uint64_t first = posted;
    while ((code = post()) == 0 && posted - first < 1000) ++posted;
    EXPECT_EQ(code, ENOMEM);
    EXPECT_GE(posted - first, 16u);
    EXPECT_LE(posted - first, 64u);
    for (; first != posted; ++first) ASSERT_EQ(rig.wait().wr_id, first);
    EXPECT_EQ(rig.memory[100], posted);
  }
}

// More requests than indices of 16 bits, of one to three blocks, with few completions.
TEST_P(VerbsQueuePair, IndicesWrap) {
  Rig rig(settings());
  rig.connect();
  constexpr std::uint64_t kChains = 9000;
  for (std::uint64_t i = 0; i < kChains; ++i) {
    std::vector<ibv_send_wr> chain;
    for (std::uint64_t k = 0; k < 8; ++k) {
      chain.push_back(k % 2 == 0 ? rig.request(IBV_WR_RDMA_WRITE, 1, 500,
                                               static_cast<std::uint32_t>(8 + (i * 8 + k) % 120), k)
                                 : rig.add(100, 1, i));
      chain.back().send_flags = k == 7 ? IBV_SEND_SIGNALED : k % 2 == 0 ? IBV_SEND_INLINE : 0;
    }
    for (std::size_t k = 0; k < 7; ++k) chain[k].next = &chain[k + 1];
    ASSERT_EQ(rig.a->post(chain[0]), 0) << i;
    const ibv_wc completion = rig.wait();
    ASSERT_EQ(completion.status, IBV_WC_SUCCESS) << i;
    ASSERT_EQ(completion.wr_id, i);
    ASSERT_EQ(rig.memory[100], 4 * (i + 1));
    rig.sources.clear();
  }
}

// The first request that fails has the reason, those behind it are flushed.
TEST_P(VerbsQueuePair, ErrorsHaveTheSameStatus) {
  const auto expect = [&](ibv_wc_status status, auto&& spoil) {
    Rig rig(settings());
    rig.connect();
    ibv_send_wr bad = rig.request(IBV_WR_RDMA_WRITE, 1, 1000, 64, 7);
    bad.send_flags = 0;
    ibv_send_wr behind = rig.add(100, 1, 8);
    bad.next = &behind;
    spoil(rig, bad);
    ASSERT_EQ(rig.a->post(bad), 0);
    const ibv_wc first = rig.wait(), second = rig.wait();
    EXPECT_EQ(first.status, status);
    EXPECT_EQ(first.wr_id, 7u);
    EXPECT_EQ(second.status, IBV_WC_WR_FLUSH_ERR);
    EXPECT_EQ(second.wr_id, 8u);
    EXPECT_EQ(rig.memory[100], 0u);
  };
  expect(IBV_WC_REM_ACCESS_ERR, [](Rig&, ibv_send_wr& bad) { bad.wr.rdma.rkey ^= 0x100; });
  expect(IBV_WC_REM_ACCESS_ERR, [](Rig& rig, ibv_send_wr& bad) {
    bad.wr.rdma.remote_addr = rig.address(rig.memory.size()) - 8;
  });
  expect(IBV_WC_LOC_PROT_ERR, [](Rig&, ibv_send_wr& bad) { bad.sg_list->lkey ^= 0x100; });
  expect(IBV_WC_REM_INV_REQ_ERR, [](Rig& rig, ibv_send_wr& bad) {
    ibv_send_wr* const behind = bad.next;
    bad = rig.add(101, 1, 7);
    bad.wr.atomic.remote_addr += 4;  // not aligned
    bad.next = behind;
  });
}

TEST_P(VerbsQueuePair, APeerThatIsGoneIsNoticed) {
  Settings chosen = settings();
  chosen.verbs_timeout = 8;  // 1 ms
  chosen.verbs_retries = 2;
  Rig rig(chosen);
  rig.connect();
  rig.b.reset();
  ibv_send_wr add = rig.add(100, 1, 3);
  ASSERT_EQ(rig.a->post(add), 0);
  EXPECT_EQ(rig.wait().status, IBV_WC_RETRY_EXC_ERR);
}

TEST_P(VerbsQueuePair, StoppingFlushes) {
  Rig rig(settings());
  rig.connect();
  rig.a->stop();
  ibv_send_wr add = rig.add(100, 1, 3);
  const int code = rig.a->post(add);
  if (code == 0) EXPECT_EQ(rig.wait().status, IBV_WC_WR_FLUSH_ERR);
}

// Completions of a queue pair that is gone are not delivered; others are.
TEST_P(VerbsQueuePair, ForgetsDestroyedQueuePairs) {
  Rig rig(settings());
  rig.connect();
  ibv_send_wr one = rig.add(100, 1, 1), two = rig.add(101, 1, 2);
  ASSERT_EQ(rig.b->post(one), 0);
  ASSERT_TRUE(test::wait_for([&] { return std::atomic_ref(rig.memory[100]).load() != 0; }));
  ASSERT_EQ(rig.a->post(two), 0);
  ASSERT_TRUE(test::wait_for([&] { return std::atomic_ref(rig.memory[101]).load() != 0; }));
  const ibv_wc first = rig.wait();
  rig.b.reset();
  const ibv_wc second = first.wr_id == 2 ? first : rig.wait();
  EXPECT_EQ(second.wr_id, 2u);
  EXPECT_EQ(second.status, IBV_WC_SUCCESS);
}

TEST_P(VerbsQueuePair, StatesThatAreRefusedNameTheReason) {
  Rig rig(settings());
  PathAddress path = rig.port.path();
  path.mtu = 0;
  const bool devx = uses_devx();
  expect_error(Code::unsupported,
               devx ? "does not change to RTR: INIT2RTR_QP: bad parameter (status 0x3, syndrome "
                      "0x0); path MTU"
                    : "does not change to RTR: Invalid argument; path MTU",
               [&] { rig.a->connect(path, {rig.b->number(), 0, 0}); });
}

TEST_P(VerbsQueuePair, IsOnTheWireOfItsVariant) {
  const Rig rig(settings());
  EXPECT_EQ(rig.port.is_ethernet(), GetParam().ethernet);
  EXPECT_EQ(rig.port.routed(), GetParam().ethernet);
}

INSTANTIATE_TEST_SUITE_P(Interfaces, VerbsQueuePair,
                         testing::Values(Variant{"verbs", "verbs", false},
                                         Variant{"devx", "devx", false},
                                         Variant{"verbs_over_roce", "verbs", true},
                                         Variant{"devx_over_roce", "devx", true}),
                         [](const auto& instance) { return std::string(instance.param.name); });

class VerbsDevx : public WithVerbs {
 protected:
  static Settings settings() {
    Settings chosen = verbs_settings();
    chosen.verbs_interface = "devx";
    return chosen;
  }
};

TEST_F(VerbsDevx, LibrariesThatLackItAreNamed) {
  Settings chosen = settings();
  const auto refused = [&](const char* text) {
    expect_error(Code::unsupported, text, [&] { Rig rig(chosen); });
  };
  chosen.verbs_mlx5_library = "libmlx5-is-not-here.so";
  refused("libmlx5 cannot be loaded: libmlx5-is-not-here.so");
  chosen.verbs_mlx5_library = "libm.so.6";
  refused(
      "libm.so.6 is no libmlx5 with device commands (rdma-core 24 or newer): it lacks "
      "mlx5dv_is_supported. Settings: SHOAL_VERBS_INTERFACE, SHOAL_VERBS_MLX5_LIBRARY");
}

// A device of another libibverbs.
TEST_F(VerbsDevx, ADeviceWithoutItIsNamed) {
  Settings chosen = settings();
  chosen.verbs_mlx5_library =
      std::filesystem::path(kEmulatedIbverbs).replace_filename("libmlx5.so.1");
  expect_error(Code::unsupported, "fake_0 is no mlx5 device for " + chosen.verbs_mlx5_library,
               [&] { open_port(load_library(kFakeIbverbs), {"fake_0", 1, true}, chosen, 16); });
}

// Its targets serve requests when they poll, so senders announce what they send.
TEST(VerbsLibrary, TheEmulatedNicIsToldFromOthers) {
  EXPECT_TRUE(load_library(kEmulatedIbverbs)->emulated);
  EXPECT_FALSE(load_library(kFakeIbverbs)->emulated);
}

// On RoCE the command needs the MAC address of the peer.
TEST_F(VerbsDevx, AnAddressThatCannotBeResolvedIsNamedWithThePeer) {
  use_udp();
  Rig rig(settings());
  const auto refused = [&](const PathAddress& path, const char* text) {
    expect_error(Code::unsupported, text, [&] { rig.a->connect(path, {rig.b->number(), 0, 0}); });
    EXPECT_EQ(rig.a->state(), "INIT");
  };
  PathAddress path = rig.port.path();
  path.gid[12] = 203, path.gid[14] = 113;  // 203.0.113.1: no route from the loopback interface
  refused(path,
          "queue pair 1 of 1 for PE 1 on mlx5_0:1 (PE 0) does not change to RTR: the MAC address "
          "of GID ::ffff:203.0.113.1 cannot be resolved: ");
  path.gid[10] = 0;
  refused(path,
          "cannot be resolved: Invalid argument; path MTU 4096 (port: 4096), remote LID 0, "
          "GID index 0");
  rig.connect();
}

// Whatever the lower 14 bits of a port are, it is one of RoCE v2; different queue pairs have
// different ones, so that switches spread them over paths.
TEST(VerbsDevxPath, UdpSourcePortsDiffer) {
  std::set<std::uint16_t> ports;
  for (std::uint32_t number = 0x40; number < 0x140; ++number)
    ports.insert(devx::udp_source_port(number, number ^ 0x40000));
  EXPECT_GE(*ports.begin(), 0xc000);
  EXPECT_GT(ports.size(), 200u);
}

TEST_F(VerbsDevx, LimitsAreNamedWithTheSettings) {
  Settings chosen = settings();
  chosen.verbs_inline = 1024;
  expect_error(Code::unsupported,
               "SHOAL_VERBS_INLINE is 1024; requests of mlx5_0:1 hold at most 972",
               [&] { Rig rig(chosen); });
  chosen.verbs_inline = 128;
  chosen.verbs_depth = 32768;
  expect_error(Code::unsupported,
               "32768 requests with 128 inline bytes need 131072 blocks; queue pairs of mlx5_0:1 "
               "have at most 32768. Settings: SHOAL_VERBS_DEPTH, SHOAL_VERBS_INLINE",
               [&] { Rig rig(chosen); });
  emulate("MAX_QP", "1");
  expect_error(Code::unsupported, "queue pairs are needed", [&] {
    chosen.verbs_depth = 16;
    Rig rig(chosen);
  });
}

TEST_F(VerbsDevx, RefusedCommandsAreNamedWithTheirStatus) {
  emulate("MAX_QP", "2");
  Rig rig(settings());
  expect_error(Code::unsupported,
               "queue pair 3 of 4 for PE 9 on mlx5_0:1 (PE 0) cannot be created: CREATE_QP: limit "
               "exceeded (status 0x8, syndrome 0x0); 2 others exist (device: at most 2)",
               [&] { rig.port.make_queue_pair(rig.limits, {0, 9, 2, 4}, 2); });
}

}  // namespace
}  // namespace shoal::test
#endif
