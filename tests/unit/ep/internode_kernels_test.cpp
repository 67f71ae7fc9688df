// SPDX-License-Identifier: Apache-2.0
// Normal mode between nodes on fake GPUs, bit by bit: every rank is a thread with a GPU that runs
// one block at a time, and puts between nodes are delayed and reordered.
// @traits fake_gpu
#include "fake_gpu/fake_gpu.hpp"
//
#include <gtest/gtest.h>

#include "unit/ep/internode_ranks.hpp"

namespace shoal::ep::cuda {
namespace {

void run(const Case& c) {
  SCOPED_TRACE(c.describe());
  Ranks(c).run();
}

TEST(EpInternodeKernels, TwoNodesOfOneRank) {
  run({.nodes = 2, .size = 1, .max_tokens = 31, .seed = 1});
}
TEST(EpInternodeKernels, TwoNodesOfTwoRanks) {
  run({.nodes = 2, .size = 2, .seed = 2});
}
TEST(EpInternodeKernels, TwoNodesOfFourRanks) {
  run({.nodes = 2, .size = 4, .max_tokens = 9, .chunk = 500, .blocks = 2, .warps = 1, .seed = 3});
}
TEST(EpInternodeKernels, FourNodesOfTwoRanks) {
  run({.nodes = 4, .size = 2, .max_tokens = 9, .chunk = 500, .blocks = 2, .warps = 1, .seed = 4});
}

TEST(EpInternodeKernels, ExpertMajor) {
  run({.local_experts = 4, .top_k = 5, .alignment = 4, .seed = 5});
  run({.nodes = 3, .size = 1, .top_k = 3, .scales = 3, .alignment = 1, .seed = 6});
}

// More top-k slots, ranks and nodes of a token than a warp has lanes.
TEST(EpInternodeKernels, ManySlots) {
  for (const std::int32_t alignment : {0, 2}) {
    run({.local_experts = 10, .top_k = 33, .max_tokens = 7, .chunk = 2000, .alignment = alignment});
    run({.local_experts = 40,
         .top_k = 128,
         .max_tokens = 5,
         .chunk = 5000,
         .scales = 3,
         .alignment = alignment,
         .seed = 22});
  }
  run({.local_experts = 20, .top_k = 64, .max_tokens = 5, .chunk = 5000, .summed = true});
  run({.local_experts = 20,
       .top_k = 64,
       .hidden = 96,
       .max_tokens = 5,
       .chunk = 5000,
       .biased = true,
       .quantize = Quantize::fp8});
  run({.nodes = 18, .size = 2, .local_experts = 1, .top_k = 36, .max_tokens = 3, .seed = 23});
}

TEST(EpInternodeKernels, SumsOfTopkSlots) {
  run({.hidden = 1040, .max_tokens = 4, .chunk = 5000, .summed = true, .seed = 14});
}

// The sums of nodes travel encoded, that of the source's own node passes through the encoding.
TEST(EpInternodeKernels, EncodedSums) {
  for (const Quantize quantize : {Quantize::fp8, Quantize::mxfp8}) {
    run({.hidden = 1056, .max_tokens = 5, .chunk = 3000, .biased = true, .quantize = quantize});
    run({.nodes = 3, .size = 1, .hidden = 96, .alignment = 2, .seed = 20, .quantize = quantize});
    run({.hidden = 160, .max_tokens = 6, .summed = true, .seed = 21, .quantize = quantize});
  }
}

TEST(EpInternodeKernels, ScalesAndBiases) {
  run({.nodes = 3,
       .size = 2,
       .top_k = 2,
       .weighted = false,
       .biased = true,
       .scales = 5,
       .seed = 7});
}

// Chunks with room for one token, and rings that an operation does not fill.
TEST(EpInternodeKernels, SmallAndLargeChunks) {
  run({.chunk = 1, .blocks = 2, .seed = 8});
  run({.chunk = 1 << 14, .depth = 5, .blocks = 1, .warps = 4, .seed = 9});
}

TEST(EpInternodeKernels, RanksWithoutTokens) {
  run({.empty = true, .seed = 10});
  run({.nodes = 3, .size = 1, .alignment = 2, .empty = true, .seed = 11});
}

// Nodes and ranks with different numbers of experts, and without any. Expert-major rows of a rank
// have to fit into its arena.
TEST(EpInternodeKernels, UnevenExperts) {
  for (const std::int32_t alignment : {0, 2}) {
    run({.top_k = 5, .alignment = alignment, .seed = 15, .first_expert = {0, 3, 6, 8, 10}});
    run({.top_k = 3, .alignment = alignment, .seed = 16, .first_expert = {0, 1, 2, 3, 3}});
    run({.top_k = 2, .alignment = alignment, .seed = 17, .first_expert = {0, 3, 6, 6, 6}});
    run({.nodes = 3,
         .size = 1,
         .top_k = 2,
         .max_tokens = 40,
         .alignment = alignment,
         .seed = 18,
         .first_expert = {0, 0, 4, 8}});
  }
  run({.seed = 19, .first_expert = {0, 2, 9, 9, 9}});
}

// One row for each token and remote node, and a notice for each remote rank.
TEST(EpInternodeKernels, InternodeBytes) {
  const Case c{.nodes = 3, .size = 2, .seed = 12};
  Ranks ranks(c);
  ranks.first_dispatch();
  std::size_t rows = 0;
  for (std::int32_t me = 0; me < c.ranks(); ++me)
    for (std::int32_t node = 0; node < c.nodes; ++node)
      if (node != me / c.size) rows += static_cast<std::size_t>(ranks.rank(me).node_counts[node]);
  const detail::RailToken message(static_cast<std::uint32_t>(c.hidden) * 2, 0, 4, true);
  const std::size_t notice =
      sizeof(detail::DeviceNotice) +
      static_cast<std::size_t>(c.ranks() + c.local_experts) * sizeof(std::int32_t);
  EXPECT_EQ(ranks.network().bytes,
            rows * message.total + static_cast<std::size_t>(c.ranks() * 4) * notice);
  ranks.stop_network();
}

// A rank that receives nothing reports a timeout; its rail peer, which waits for tokens, reports
// that or the word of the first.
TEST(EpInternodeKernels, ALostRankEndsTheWaits) {
  const Case c{.nodes = 2, .size = 1, .seed = 13};
  Ranks ranks(c);
  ranks.lose(1);
  for (std::int32_t me = 0; me < 2; ++me) {
    const FaultReport& report = ranks.rank(me).report[0];
    const auto fault = static_cast<Fault>(report.fault);
    EXPECT_TRUE(fault == Fault::timeout || (me == 0 && fault == Fault::peer_failed));
    EXPECT_EQ(std::int32_t{report.rank}, 1 - me);
    EXPECT_EQ(std::uint64_t{report.epoch}, 2U);
  }
  EXPECT_TRUE(ranks.rank(1).report[0].phase == Phase::dispatch_notify);
  EXPECT_TRUE(ranks.rank(0).report[0].phase == Phase::dispatch_rail);
}

// A rank whose network refuses to send to another one says so, and the other ranks give up with it.
TEST(EpInternodeKernels, ARefusedPutIsReported) {
  const Case c{.nodes = 2, .size = 2, .seed = 15};
  Ranks ranks(c);
  ranks.first_dispatch();
  // The other node learns nothing of it.
  for (std::int32_t me = 2; me < 4; ++me) ranks.set_timeout(me, std::chrono::milliseconds(500));
  ranks.network().refused_pe = 3;
  ranks.each([&](std::int32_t me) { ranks.dispatch_only(me, true); });
  for (std::int32_t me = 0; me < 2; ++me) {
    const FaultReport& report = ranks.rank(me).report[0];
    const auto fault = static_cast<Fault>(report.fault);
    EXPECT_TRUE(fault == Fault::network || fault == Fault::peer_failed) << report.fault;
    if (fault == Fault::network) EXPECT_EQ(std::int32_t{report.rank}, 3);
  }
  for (std::int32_t me = 2; me < 4; ++me)
    EXPECT_NE(static_cast<Fault>(ranks.rank(me).report[0].fault), Fault::none);
  ranks.stop_network();
}

/// The group of low-latency mode, as a rank of normal mode sees it.
class LowLatencyMode {
 public:
  LowLatencyMode(Rank& rank, std::int32_t me, std::int32_t ranks)
      : block_(layout_.failed + static_cast<std::size_t>(ranks) * detail::kLine) {
    group_.layout = layout_;
    group_.memory = memory_.data();
    group_.me = me;
    group_.block[me] = block_.data();
    rank.memory[0].other_mode = &group_;
  }

  GroupMemory& memory() { return memory_[0]; }
  void give_up(std::int32_t rank, std::uint64_t word) {
    *reinterpret_cast<std::uint64_t*>(block_.data() + layout_.failed +
                                      static_cast<std::size_t>(rank) * detail::kLine) = word;
  }

 private:
  const detail::DeviceLayout layout_{detail::Shape{}};
  Array<std::byte> block_;
  Array<GroupMemory> memory_{1};
  DeviceGroup group_{};
};

// A rank that gives low-latency mode up because another one is in normal mode ends the waits there.
TEST(EpInternodeKernels, EndWhereARankHasGivenUpInLowLatencyMode) {
  const Case c{.nodes = 2, .size = 1, .seed = 17};
  Ranks ranks(c);
  LowLatencyMode low_latency(ranks.rank(0), 0, c.ranks());
  low_latency.memory().dispatches_sent = 5;
  low_latency.memory().combines_sent = 4;
  ranks.start_network();
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    low_latency.give_up(1, detail::failed_word(0, false, true));
  });
  ranks.each([&](std::int32_t me) {
    if (me == 0) ranks.dispatch_only(me, false);
  });
  later.join();
  EXPECT_EQ(static_cast<Fault>(ranks.rank(0).report[0].fault), Fault::peer_failed);
  EXPECT_EQ(std::int32_t{ranks.rank(0).report[0].rank}, 1);
  ranks.stop_network();
  const detail::DeviceLayout layout = ranks.layout();
  const auto& notice = *reinterpret_cast<const detail::DeviceNotice*>(
      ranks.rank(1).block.data() + layout.notices +
      static_cast<std::size_t>(c.ranks()) * layout.notice_bytes);
  EXPECT_EQ(notice.dispatches_sent, 5U);
  EXPECT_EQ(notice.combines_sent, 4U);
}

}  // namespace
}  // namespace shoal::ep::cuda
