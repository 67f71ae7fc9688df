// SPDX-License-Identifier: Apache-2.0
// Faults of the queues by which kernels of low-latency mode send: every rank reports within its
// deadline, and names the peer, the queue pair and the cause. The kernels run on a fake GPU, the
// NIC is emulated.
// @traits polls, fake_gpu, emulated_nic
// @waiting LowLatencyNicFaults.*
#include "fake_gpu/fake_gpu.hpp"
//
#include <gtest/gtest.h>

#include "threads/ep/nic_fault_errors.hpp"
#include "unit/ep/low_latency_ranks.hpp"

namespace shoal::ep::cuda {
namespace {

using test::fake_gpu::expect_parts;
using test::fake_gpu::NicCase;

/// A send posts more requests than a queue has slots: rows are too far apart to share a put.
struct Size {
  std::int32_t experts = 4, top_k = 2, tokens = 3;
  std::int64_t hidden = 256;
};
const Size kFullRing{.experts = 2, .top_k = 1, .tokens = 360, .hidden = 640};

class LowLatencyNicFaults : public NicFaults {
 protected:
  const FaultReport& report(std::int32_t rank) override { return ranks_->report(rank); }
  const char* timeout_setting() const override { return "SHOAL_TIMEOUT_MS"; }

  /// A dispatch that works, then `body`.
  void run(const Size& size, const std::function<void()>& body, bool gives_up_soon = false) {
    const Case c{.ranks = 2,
                 .experts = size.experts,
                 .top_k = size.top_k,
                 .hidden = size.hidden,
                 .tokens = {size.tokens, size.tokens},
                 .blocks = 1,
                 .node_size = 1};
    const NicCase nic{.pes = 2,
                      .bytes = Ranks::memory_of(c),
                      .ordering = "adaptive",
                      .fails = true,
                      .gives_up_soon = gives_up_soon};
    const std::string why_not =
        test::fake_gpu::with_nic_worlds(nic, [&](const std::vector<NicWorld>& worlds) {
          test::fake_gpu::run_concurrently();
          worlds_ = worlds;
          Ranks ranks(c, worlds);
          ranks_ = &ranks;
          ranks.set_timeout(kNever);
          ranks.dispatch();
          ranks.set_timeout(kDeadline);
          body();
        });
    if (!why_not.empty()) GTEST_SKIP() << why_not;
  }

  void send(std::int32_t rank) { ranks_->send(rank); }
  void receive(std::int32_t rank) { ranks_->receive(rank); }
  void send_combine(std::int32_t rank) { ranks_->send_combine(rank); }
  void receive_combine(std::int32_t rank) { ranks_->receive_combine(rank); }
  Ranks* ranks_ = nullptr;
};

TEST_F(LowLatencyNicFaults, ARevokedKeyIsNamedByTheRankThatWaits) {
  run({}, [&] {
    ranks_->draw();
    test::fake_gpu::revoke_key(world(0), 1);
    send(0);  // posts alone
    receive(1);
    send(1);
    receive(0);
    expect_parts(error(1), {"low_latency_dispatch (epoch 2) timed out after 400 ms on "
                            "PE 1 of 2: waiting for rows from PE 0",
                            "Setting: SHOAL_TIMEOUT_MS."});
    expect_parts(error(0), {"low_latency_dispatch (epoch 2) timed out after 400 ms on PE 0 of 2: "
                            "waiting for rows from PE 1",
                            "the network of this PE: " + queue_pair(0) + " has ended: request ",
                            "(RDMA write) ended with remote access error (syndrome 0x13"});
  });
}

/// A full ring: the send meets the error itself.
TEST_F(LowLatencyNicFaults, ARevokedKeyEndsTheSend) {
  run(kFullRing, [&] {
    ranks_->draw();
    test::fake_gpu::revoke_key(world(0), 1);
    send(0);
    receive(1);
    expect_parts(error(0), {"on PE 0 of 2: the network did not take what kernels send to PE 1, "
                            "phase send: " +
                                queue_pair(0) + " has ended: request ",
                            "(RDMA write) ended with remote access error (syndrome 0x13"});
    expect_parts(error(1), {"waiting for rows from PE 0"});
  });
}

TEST_F(LowLatencyNicFaults, AQueuePairInErrorIsNamed) {
  run({}, [&] {
    ranks_->draw();
    test::fake_gpu::end_queue_pairs(world(1), 0);
    send(0);
    receive(1);
    send(1);
    receive(0);
    expect_parts(error(0), {queue_pair(0) + " has ended: request ",
                            "Work Request Flushed Error (syndrome 0x5",
                            "the peer or an earlier error has ended the queue pair"});
    // Its queue had ended before the operation.
    expect_parts(error(1), {"the network", queue_pair(1) + " has ended", "remote access error"});
  });
}

/// The NIC behaves as after a lost link: it repeats its packets, then gives up.
TEST_F(LowLatencyNicFaults, APeerThatDoesNotAnswerIsNamed) {
  const auto body = [&] {
    ranks_->draw();
    test::fake_gpu::silence_queue_pairs(world(1), 0);
    send(0);
    receive(1);
    send(1);
    receive(0);
    expect_parts(error(0), {"on PE 0 of 2: ", queue_pair(0) + " has ended: request ",
                            "ended with transport retry counter exceeded (syndrome 0x15",
                            "the peer or the link is lost; settings: SHOAL_VERBS_RETRIES, "
                            "SHOAL_VERBS_TIMEOUT"});
    expect_parts(error(1), {"PE 1 of 2", queue_pair(1) + " has ended: request ",
                            "local protection error (syndrome 0x4"});
  };
  run({}, body, true);
}

TEST_F(LowLatencyNicFaults, ALostDoorbellIsNamed) {
  run({}, [&] {
    ranks_->draw();
    test::fake_gpu::lose_doorbells(world(0), 1);
    send(0);
    send(1);
    receive(1);  // gives up, and tells rank 0
    receive(0);
    expect_parts(error_without_network(1), {"on PE 1 of 2: waiting for rows from PE 0"});
    send(0);
    receive(0);
    expect_parts(error(0), {"failed on PE 0 of 2: waiting for rows from PE 1",
                            "the network of this PE: " + queue_pair(0) + ": the NIC has completed ",
                            "it lost the doorbell, or the PE does not acknowledge them"});
  });
}

/// The ring fills up, and its deadline ends the queue.
TEST_F(LowLatencyNicFaults, ALostDoorbellEndsTheSend) {
  run(kFullRing, [&] {
    ranks_->draw();
    test::fake_gpu::set_queue_timeout(world(0), kDeadline);
    test::fake_gpu::lose_doorbells(world(0), 1);
    send(0);
    expect_parts(error(0), {"the network did not take what kernels send to PE 1, phase "
                            "send: " +
                                queue_pair(0) + " has ended: request ",
                            "waited too long for room in the queue; setting: "
                            "SHOAL_TIMEOUT_MS"});
  });
}

/// The queues work, so that the message has nothing about them.
TEST_F(LowLatencyNicFaults, APeerThatNeverGrantsIsNamed) {
  run({}, [&] {
    ranks_->draw();
    for (int i = 0; i < 2; ++i) {  // both halves are free
      send(0);
      send(1);
      receive(0);
      ASSERT_EQ(error(0), "");
      ranks_->draw();
    }
    send(0);
    expect_parts(error_without_network(0), {"timed out after 400 ms on PE 0 of 2: waiting for its "
                                            "acknowledgement of read rows from PE 1",
                                            "phase send"});
  });
}

/// Rows of a combine travel back by the same queues.
TEST_F(LowLatencyNicFaults, ARevokedKeyEndsACombine) {
  run({}, [&] {
    ranks_->draw_outputs();
    test::fake_gpu::revoke_key(world(0), 1);
    send_combine(0);
    receive_combine(1);
    send_combine(1);
    receive_combine(0);
    expect_parts(error(1), {"low_latency_combine (epoch 1) timed out after 400 ms on PE 1 of 2: "
                            "waiting for ",
                            " from PE 0", "Setting: SHOAL_TIMEOUT_MS."});
    expect_parts(error(0), {"low_latency_combine (epoch 1) ", "PE 0 of 2",
                            "the network of this PE: " + queue_pair(0) + " has ended: request ",
                            "(RDMA write) ended with remote access error (syndrome 0x13"});
  });
}

TEST_F(LowLatencyNicFaults, AQueuePairInErrorEndsACombine) {
  run({}, [&] {
    ranks_->draw_outputs();
    test::fake_gpu::end_queue_pairs(world(1), 0);
    send_combine(0);
    receive_combine(1);
    send_combine(1);
    receive_combine(0);
    expect_parts(error(0), {queue_pair(0) + " has ended: request ",
                            "the peer or an earlier error has ended the queue pair"});
    expect_parts(error(1), {"low_latency_combine (epoch 1) ", queue_pair(1) + " has ended"});
  });
}

TEST_F(LowLatencyNicFaults, ALostDoorbellEndsACombine) {
  run({}, [&] {
    ranks_->draw_outputs();
    test::fake_gpu::lose_doorbells(world(0), 1);
    send_combine(0);
    send_combine(1);
    receive_combine(1);
    receive_combine(0);
    expect_parts(error_without_network(1),
                 {"low_latency_combine (epoch 1) timed out after 400 ms on PE 1 of 2: waiting for ",
                  " from PE 0"});
  });
}

}  // namespace
}  // namespace shoal::ep::cuda
