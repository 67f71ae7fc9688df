// SPDX-License-Identifier: Apache-2.0
// The NIC on a GPU (emulator/gpu/) in memory of this process: how requests and queue pairs fail,
// and what goes on beside them.
#include "unit/emulator/gpu_nic.hpp"
#include "unit/emulator/gpu_outcomes.hpp"

#include <algorithm>
#include <numeric>
#include <vector>

namespace shoal::emulator::test {
namespace {

TEST(GpuNicFailures, ASilentPeerIsGivenUp) {
  GpuShape shape;
  shape.timing.retry = 1'000'000;
  GpuNics nics(shape);
  RandomSteps steps(nics, 1);
  RandomClient client(steps);
  const gda::Queue queue = nics.a.queue();
  std::uint64_t ticket = 0;
  nics.a.end(gpu::Ended::peer_is_gone);
  for (int i = 0; i < 3; ++i)
    ASSERT_EQ(gda::signal(queue, {nics.a.at_peer(0), 1}, ~0ULL, client, ticket), gda::Outcome::ok);
  const std::uint64_t start = steps.clock;
  EXPECT_EQ(gda::wait(queue, ticket, ~0ULL, client), gda::Outcome::failed);
  EXPECT_GE(steps.clock - start, 1'000'000 - 10'000);
  const gda::Failure failure = gda::failure_of(queue, client);
  EXPECT_EQ(failure.syndrome, mlx5::Syndrome::retry_exceeded);
  EXPECT_EQ(failure.index, 0u);
  EXPECT_EQ(failure.opcode, mlx5::Opcode::fetch_add);
  EXPECT_EQ(nics.b.word(0), 0u);
}

// Nothing moves its data any more when a request is given up.
TEST(GpuNicFailures, AMessageUnderWayIsGivenUp) {
  GpuShape shape;
  shape.timing.retry = 100'000;
  shape.timing.byte_cost = 655360;  // 0.1 GB/s
  GpuNics nics(shape);
  std::fill(nics.a.memory.begin(), nics.a.memory.end(), 1U);
  RandomSteps steps(nics, 1);
  RandomClient client(steps);
  const gda::Queue queue = nics.a.queue();
  std::uint64_t ticket = 0;
  ASSERT_EQ(gda::put(queue, nics.a.from(0), nics.a.at_peer(0), 60000, ~0ULL, client, ticket),
            gda::Outcome::ok);
  ASSERT_TRUE(steps.run_until([&] { return nics.b.word(0) == 1; }));
  nics.a.end(gpu::Ended::peer_is_gone);
  EXPECT_EQ(gda::wait(queue, ticket, ~0ULL, client), gda::Outcome::failed);
  EXPECT_EQ(gda::failure_of(queue, client).syndrome, mlx5::Syndrome::retry_exceeded);
  const std::vector<std::uint64_t> then = nics.b.memory;
  EXPECT_EQ(then.back(), 0u);
  std::fill(nics.a.memory.begin(), nics.a.memory.end(), 2U);
  steps.run_until([] { return false; }, 1'000'000);
  EXPECT_TRUE(then == nics.b.memory);
}

// A request does not fail while workers still have jobs of it.
TEST(GpuNicFailures, NothingFailsWhileItsDataMove) {
  GpuShape shape;
  shape.timing.retry = 1000;
  GpuNics nics(shape);
  std::fill(nics.a.memory.begin(), nics.a.memory.end(), 1U);
  RequestWriter writer(nics.a.ring(), shape.blocks, GpuEnd::number(0));
  write_op(writer, {.opcode = Opcode::write, .bytes = 60000},
           {nics.a.address(), nics.b.address(), GpuEnd::key, GpuEnd::key, nics.a.bytes()});
  nics.a.ring_doorbell(writer.posted());
  std::uint64_t clock = 1;
  EnginePlatform platform;
  platform.clock = &clock;
  nics.a.start(platform);
  nics.a.dispatchers[0]->step();
  nics.a.end(gpu::Ended::peer_is_gone);
  for (int i = 0; i < 5; ++i, clock += 10'000) nics.a.dispatchers[0]->step();
  EXPECT_FALSE(nics.a.poll().has_value());
  while (nics.a.workers[0].step() == gpu::WorkerState::worked) {
  }
  nics.a.dispatchers[0]->step();
  const auto seen = nics.a.poll();
  ASSERT_TRUE(seen.has_value());
  EXPECT_EQ(nics.b.word(59992), 1u);
}

// A large write is under way when the peer refuses a later one.
TEST(GpuNicFailures, RequestsBeforeARefusedOneComplete) {
  for (const Ordering ordering : kOrderings) {
    for (const bool refused_is_large : {false, true}) {
      GpuShape shape{.ordering = ordering};
      shape.timing.byte_cost = 65536;  // 1 GB/s: in many turns
      GpuNics nics(shape);
      std::iota(nics.a.memory.begin(), nics.a.memory.end(), 1U);
      RequestWriter writer(nics.a.ring(), shape.blocks, GpuEnd::number(0));
      const Bases bases{nics.a.address(), nics.b.address(), GpuEnd::key, GpuEnd::key,
                        nics.a.bytes()};
      write_op(writer, {.opcode = Opcode::write, .bytes = 40000}, bases);
      write_op(writer,
               {.opcode = Opcode::write,
                .remote = 50000,
                .bytes = refused_is_large ? 5000U : 8U,
                .remote_key = 0x7700},
               bases);
      write_op(writer, {.opcode = Opcode::write, .remote = 50000, .bytes = 9000}, bases);
      RandomSteps steps(nics, 1);
      nics.a.ring_doorbell(writer.posted());
      std::vector<Syndrome> seen;
      ASSERT_TRUE(steps.run_until([&] {
        while (const auto completion = nics.a.poll()) seen.push_back(completion->syndrome);
        return seen.size() == 3;
      }));
      EXPECT_EQ(seen, (std::vector<Syndrome>{Syndrome::none, Syndrome::remote_access,
                                             Syndrome::flushed}));
      EXPECT_EQ(std::memcmp(nics.a.bytes(), nics.b.bytes(), 40000), 0);
      if (ordering == Ordering::strict) EXPECT_EQ(nics.b.word(50000), 0u);
    }
  }
}

// Requests of both ends: the peer that refuses one flushes its own.
TEST(GpuNicFailures, TheEndThatRefusesFlushesItsRequests) {
  GpuNics nics({});
  RandomSteps steps(nics, 1);
  RandomClient client(steps);
  std::uint64_t ticket = 0;
  const gda::Queue here = nics.a.queue(), there = nics.b.queue();
  ASSERT_EQ(gda::put(here, nics.a.from(0), {nics.b.address(), 0x9900}, 8, ~0ULL, client, ticket),
            gda::Outcome::ok);
  EXPECT_EQ(gda::wait(here, ticket, ~0ULL, client), gda::Outcome::failed);
  EXPECT_EQ(gda::failure_of(here, client).syndrome, mlx5::Syndrome::remote_access);
  ASSERT_TRUE(steps.run_until([&] { return nics.b.report().failed != 0; }));
  ASSERT_EQ(gda::signal(there, {nics.b.at_peer(0), 1}, ~0ULL, client, ticket), gda::Outcome::ok);
  EXPECT_EQ(gda::wait(there, ticket, ~0ULL, client), gda::Outcome::failed);
  EXPECT_EQ(gda::failure_of(there, client).syndrome, mlx5::Syndrome::flushed);
  EXPECT_EQ(nics.a.word(0), 0u);
}

TEST(GpuNicFailures, AFailedQueuePairLeavesOthersAlone) {
  GpuNics nics({}, 40);
  RandomSteps steps(nics, 1);
  RandomClient client(steps);
  std::uint64_t ticket = 0;
  const gda::Queue bad = nics.a.queue(33), good = nics.a.queue(39);
  ASSERT_EQ(gda::put(bad, nics.a.from(0), {nics.b.address(), 0x9900}, 8, ~0ULL, client, ticket),
            gda::Outcome::ok);
  EXPECT_EQ(gda::wait(bad, ticket, ~0ULL, client), gda::Outcome::failed);
  ASSERT_EQ(gda::signal(good, {nics.a.at_peer(0), 1}, ~0ULL, client, ticket), gda::Outcome::ok);
  EXPECT_EQ(gda::wait(good, ticket, ~0ULL, client), gda::Outcome::ok);
}

// A key that is removed while the NIC runs.
TEST(GpuNicFailures, RemovedKeysAreRefused) {
  GpuNics nics({});
  RandomSteps steps(nics, 1);
  RandomClient client(steps);
  std::uint64_t ticket = 0;
  const gda::Queue queue = nics.a.queue();
  constexpr int kBefore = 3;  // it is read once, then known
  for (int i = 0; i < kBefore; ++i) {
    ASSERT_EQ(gda::signal(queue, {nics.a.at_peer(0), 1}, ~0ULL, client, ticket), gda::Outcome::ok);
    ASSERT_EQ(gda::wait(queue, ticket, ~0ULL, client), gda::Outcome::ok);
  }
  nics.b.region().key = 0;
  nics.a.state().key_changes += 1;
  ASSERT_EQ(gda::signal(queue, {nics.a.at_peer(0), 1}, ~0ULL, client, ticket), gda::Outcome::ok);
  EXPECT_EQ(gda::wait(queue, ticket, ~0ULL, client), gda::Outcome::failed);
  EXPECT_EQ(gda::failure_of(queue, client).syndrome, mlx5::Syndrome::remote_access);
  EXPECT_EQ(nics.b.word(0), std::uint64_t{kBefore});
}

TEST(GpuNicFailures, KeysOfAnotherDomainAreRefused) {
  for (const bool here : {true, false}) {
    GpuNics nics({});
    (here ? nics.a : nics.b).region().domain = 2;
    RandomSteps steps(nics, 1);
    RandomClient client(steps);
    std::uint64_t ticket = 0;
    const gda::Queue queue = nics.a.queue();
    ASSERT_EQ(gda::put(queue, nics.a.from(0, false), nics.a.at_peer(0), 8, ~0ULL, client, ticket),
              gda::Outcome::ok);
    EXPECT_EQ(gda::wait(queue, ticket, ~0ULL, client), gda::Outcome::failed);
    EXPECT_EQ(gda::failure_of(queue, client).syndrome,
              here ? mlx5::Syndrome::local_protection : mlx5::Syndrome::remote_access);
  }
}

// The rest of a message lies in memory whose key is removed while the NIC has the request.
TEST(GpuNicFailures, APartWhoseKeyIsRemovedFails) {
  for (const Ordering ordering : kOrderings) {
    GpuShape shape{.ordering = ordering};
    shape.timing.delay = 100'000;
    GpuNics nics(shape);
    RequestWriter writer(nics.a.ring(), shape.blocks, GpuEnd::number(0));
    writer.start(Opcode::write, {.signalled = true}).remote(nics.b.address(), GpuEnd::key);
    writer.data(nics.a.address(), 4000, GpuEnd::key).data(nics.a.address(8000), 4000, GpuEnd::key);
    writer.finish();
    RandomSteps steps(nics, 1);
    nics.a.ring_doorbell(writer.posted());
    steps.run_until([] { return false; }, 50'000);
    nics.a.region().key = 0;
    nics.a.state().key_changes += 1;
    std::optional<Seen> seen;
    ASSERT_TRUE(steps.run_until([&] { return (seen = nics.a.poll()).has_value(); }));
    EXPECT_EQ(seen->syndrome, Syndrome::local_protection);
  }
}

// Two large writes are under way, of which the second has not begun, when the peer is gone.
TEST(GpuNicFailures, MessagesThatWaitForTheFirstAreGivenUp) {
  for (const Ordering ordering : kOrderings) {
    GpuShape shape{.ordering = ordering, .bytes = 1 << 20};
    shape.timing.retry = 100'000;
    shape.timing.byte_cost = 65536;  // 1 GB/s
    GpuNics nics(shape);
    std::fill(nics.a.memory.begin(), nics.a.memory.end(), 1U);
    RandomSteps steps(nics, 1);
    RandomClient client(steps);
    const gda::Queue queue = nics.a.queue();
    std::uint64_t ticket = 0;
    for (int i = 0; i < 2; ++i)
      ASSERT_EQ(gda::put(queue, nics.a.from(0), nics.a.at_peer(0), 1 << 20, ~0ULL, client, ticket),
                gda::Outcome::ok);
    ASSERT_TRUE(steps.run_until([&] { return nics.b.word(0) == 1; }));
    nics.a.end(gpu::Ended::peer_is_gone);
    EXPECT_EQ(gda::wait(queue, ticket, steps.clock + 10'000'000, client), gda::Outcome::failed);
    EXPECT_EQ(gda::failure_of(queue, client).syndrome, mlx5::Syndrome::retry_exceeded);
  }
}

// The key is removed after the NIC has begun to look at its queue pairs, before it comes to the
// last.
TEST(GpuNicFailures, AKeyThatIsRemovedWithinAStepIsRefused) {
  constexpr std::size_t kLast = 39;
  GpuNics nics({}, kLast + 1);
  nics.a.memory[0] = 1;
  const Bases bases{nics.a.address(), nics.b.address(), GpuEnd::key, GpuEnd::key, nics.a.bytes()};
  RequestWriter first(nics.a.ring(), GpuShape{}.blocks, GpuEnd::number(0)),
      last(nics.a.ring(kLast), GpuShape{}.blocks, GpuEnd::number(kLast));
  for (int i = 0; i < 2; ++i) write_op(first, {.opcode = Opcode::write}, bases);
  write_op(last, {.opcode = Opcode::write, .remote = 8 * kLast}, bases);
  bool removes = false;
  const std::function<void()> remove = [&] {  // after it has looked at the first
    if (!std::exchange(removes, false)) return;
    nics.b.region().key = 0;
    nics.a.state().key_changes += 1;
    nics.a.ring_doorbell(last.posted(), kLast);
  };
  std::uint64_t clock = 1;
  EnginePlatform platform;
  platform.clock = &clock;
  platform.hook = &remove;
  nics.a.start(platform);
  for (std::uint16_t posted = 1; posted <= first.posted(); ++posted) {  // it gets to know the key
    nics.a.ring_doorbell(posted);
    nics.a.dispatchers[0]->step();
  }
  ASSERT_EQ(nics.b.word(0), 1u);
  removes = true;
  nics.a.dispatchers[0]->step();
  const auto seen = nics.a.poll(kLast);
  ASSERT_TRUE(seen.has_value());
  EXPECT_EQ(seen->syndrome, Syndrome::remote_access);
  EXPECT_EQ(nics.b.word(8 * kLast), 0u);
}

// A request without effect needs no rights, whatever is under way before it.
TEST(GpuNicFailures, NopsNeedNoRights) {
  for (const Ordering ordering : kOrderings) {
    GpuShape shape{.ordering = ordering, .granted = Access::remote_write};
    GpuNics nics(shape);
    RequestWriter writer(nics.a.ring(), shape.blocks, GpuEnd::number(0));
    const Bases bases{nics.a.address(), nics.b.address(), GpuEnd::key, GpuEnd::key, nics.a.bytes()};
    write_op(writer, {.opcode = Opcode::write, .bytes = 40000}, bases);
    write_op(writer, {.opcode = Opcode::nop}, bases);
    RandomSteps steps(nics, 1);
    nics.a.ring_doorbell(writer.posted());
    for (int i = 0; i < 2; ++i) {
      std::optional<Seen> seen;
      ASSERT_TRUE(steps.run_until([&] { return (seen = nics.a.poll()).has_value(); }));
      EXPECT_EQ(seen->syndrome, Syndrome::none) << i;
    }
  }
}

}  // namespace
}  // namespace shoal::emulator::test
