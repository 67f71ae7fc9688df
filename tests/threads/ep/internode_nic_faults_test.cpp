// SPDX-License-Identifier: Apache-2.0
// Faults of the queues by which kernels of normal mode send between nodes: every rank reports
// within its deadline, and names the peer, the queue pair and the cause. The kernels run on fake
// GPUs, the NIC is emulated.
// @traits polls, fake_gpu, emulated_nic
#include "fake_gpu/fake_gpu.hpp"
//
#include <gtest/gtest.h>

#include "threads/ep/nic_fault_errors.hpp"
#include "unit/ep/internode_ranks.hpp"

namespace shoal::ep::cuda {
namespace {

using test::fake_gpu::expect_parts;
using test::fake_gpu::NicCase;

enum class Operation { dispatch, combine };

class InternodeNicFaults : public NicFaults {
 protected:
  const FaultReport& report(std::int32_t rank) override { return ranks_->rank(rank).report[0]; }
  const char* timeout_setting() const override { return "GroupOptions.timeout"; }

  /// A dispatch that works, then `fault`, then `operation` of `ranks`.
  void run(const std::function<void()>& fault, const std::vector<std::int32_t>& ranks,
           const std::function<void()>& expect, Operation operation = Operation::dispatch) {
    const Case c{.nodes = 2, .size = 1, .seed = 21};
    const NicCase nic{.pes = 2,
                      .bytes = Ranks::memory_of(c),
                      .ordering = "adaptive",
                      .queue_pairs = 1,
                      .fails = true};
    const std::string why_not =
        test::fake_gpu::with_nic_worlds(nic, [&](const std::vector<NicWorld>& worlds) {
          worlds_ = worlds;
          for (NicWorld& world : worlds_)
            world.world.timeout_ns = std::chrono::nanoseconds(kDeadline).count();
          Ranks all(c, worlds_);
          ranks_ = &all;
          all.set_timeout(kNever);
          all.each([&](std::int32_t me) { all.dispatch(me, false); });
          for (std::int32_t me = 0; me < c.ranks(); ++me) all.write_expert_output(me);
          all.set_timeout(kDeadline);
          fault();
          all.each([&](std::int32_t me) {
            if (std::ranges::find(ranks, me) == ranks.end()) return;
            if (operation == Operation::dispatch)
              all.dispatch_only(me, true);
            else
              all.combine_only(me);
          });
          expect();
        });
    if (!why_not.empty()) GTEST_SKIP() << why_not;
  }

 private:
  Ranks* ranks_ = nullptr;
};

TEST_F(InternodeNicFaults, ARevokedKeyIsNamed) {
  run([&] { test::fake_gpu::revoke_key(world(0), 1); }, {0, 1},
      [&] {
        expect_parts(error(0), {"dispatch (epoch 2) failed on PE 0 of 2: the network did not take "
                                "what kernels send to PE 1, phase notify: " +
                                    queue_pair(0) + " has ended: request ",
                                "(RDMA write) ended with remote access error (syndrome 0x13"});
        // It has sent its notice before or after the queue pair ended.
        expect_parts(error(1), {"dispatch (epoch 2) ", " PE 1 of 2: ", "PE 0"});
      });
}

TEST_F(InternodeNicFaults, AQueuePairInErrorIsNamed) {
  run([&] { test::fake_gpu::end_queue_pairs(world(1), 0); }, {0, 1},
      [&] {
        expect_parts(error(0), {"the network did not take what kernels send to PE 1",
                                queue_pair(0) + " has ended: request ",
                                "Work Request Flushed Error (syndrome 0x5",
                                "the peer or an earlier error has ended the queue pair"});
        expect_parts(error(1), {"the network did not take what kernels send to PE 0",
                                queue_pair(1) + " has ended", "remote access error"});
      });
}

/// The wait for the notice's arrival ends with the deadline of the group, not of the world.
TEST_F(InternodeNicFaults, ALostDoorbellIsNamed) {
  run([&] { test::fake_gpu::lose_doorbells(world(0), 1); }, {0, 1},
      [&] {
        expect_parts(error(0), {"the network did not take what kernels send to PE 1, phase "
                                "notify: " +
                                    queue_pair(0) + ": the NIC has completed ",
                                "it lost the doorbell, or the PE does not acknowledge them"});
        expect_parts(error_without_network(1),
                     {"dispatch (epoch 2) timed out after 400 ms on PE 1 of "
                      "2: waiting for its counts from PE 0",
                      "Setting: GroupOptions.timeout."});
      });
}

/// The queues work, so that the message has nothing about them.
TEST_F(InternodeNicFaults, APeerThatDoesNotComeIsNamed) {
  run([] {}, {0},
      [&] {
        expect_parts(error_without_network(0),
                     {"dispatch (epoch 2) timed out after 400 ms on PE 0 of "
                      "2: waiting for its counts from PE 1"});
      });
}

/// Rows of a combine travel back by the same queues.
TEST_F(InternodeNicFaults, ARevokedKeyEndsACombine) {
  run([&] { test::fake_gpu::revoke_key(world(0), 1); }, {0, 1},
      [&] {
        expect_parts(error(0), {"combine (epoch 2) failed on PE 0 of 2: the network did not take "
                                "what kernels send to PE 1",
                                queue_pair(0) + " has ended: request ",
                                "(RDMA write) ended with remote access error (syndrome 0x13"});
        expect_parts(error(1), {"combine (epoch 2) ", " PE 1 of 2: ", "PE 0"});
      },
      Operation::combine);
}

TEST_F(InternodeNicFaults, ALostDoorbellEndsACombine) {
  run([&] { test::fake_gpu::lose_doorbells(world(0), 1); }, {0, 1},
      [&] {
        expect_parts(error(0), {"combine (epoch 2) ", "PE 0 of 2", queue_pair(0),
                                "it lost the doorbell, or the PE does not acknowledge them"});
        expect_parts(error_without_network(1),
                     {"combine (epoch 2) timed out after 400 ms on PE 1 of 2: waiting for ",
                      " from PE 0", "Setting: GroupOptions.timeout."});
      },
      Operation::combine);
}

TEST_F(InternodeNicFaults, APeerThatDoesNotCombineIsNamed) {
  run([] {}, {0},
      [&] {
        expect_parts(
            error_without_network(0),
            {"combine (epoch 2) timed out after 400 ms on PE 0 of 2: waiting for ", " from PE 1"});
      },
      Operation::combine);
}

}  // namespace
}  // namespace shoal::ep::cuda
