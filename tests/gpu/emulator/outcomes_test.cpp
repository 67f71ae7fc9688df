// SPDX-License-Identifier: Apache-2.0
// What the NIC that is a kernel (emulator/gpu/) makes of requests: what the engine makes of them,
// in all orderings. The requests are those of tests/threads/emulator/gpu_nic_test.cpp.
#include "unit/emulator/gpu_outcomes.hpp"

#include "gpu/emulator/rig.hpp"

namespace shoal::emulator::test {
namespace {

using shoal::test::NicRig;
using shoal::test::NicShape;

class GpuNicOutcomes : public ::testing::TestWithParam<Ordering> {};

/// Completions until `count` have come, or a deadline has passed.
void read_completions(const NicRig& rig, std::size_t count, Outcome& outcome) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  const mlx5::CompletionEntry* const at = rig.a.queues[0]->entries();
  std::vector<mlx5::CompletionEntry> entries(rig.shape.blocks);
  for (;;) {
    rig.a.memory.copy(entries.data(), at, entries.size() * sizeof *at);
    const bool complete = (mlx5::big(entries[count - 1].index_state) >> 4 & 0xf) != 15;
    if (complete || std::chrono::steady_clock::now() > end) break;
  }
  for (const mlx5::CompletionEntry& entry : entries) {
    const std::uint32_t state = mlx5::big(entry.index_state);
    if ((state >> 4 & 0xf) == 15) break;
    const bool failed = (state >> 4 & 0xf) == 13;
    const auto* const bytes = reinterpret_cast<const std::byte*>(&entry);
    note(outcome, {failed ? CqeOpcode::request_error : CqeOpcode::request,
                   failed ? static_cast<Syndrome>(entry.syndrome) : Syndrome::none,
                   static_cast<std::uint16_t>(state >> 16), load_be<std::uint32_t>(bytes + 44), 0});
  }
}

Outcome run_on_gpu(const std::vector<Op>& ops, std::size_t good, const NicShape& shape) {
  NicRig rig(shape);
  std::vector<std::uint64_t> local(shape.bytes / 8), remote(shape.bytes / 8);
  std::iota(local.begin(), local.end(), 0x1122334455667788U);
  std::iota(remote.begin(), remote.end(), 0x99aabbccddeeff00U);
  rig.a.memory.write(0, local);
  rig.b.memory.write(0, remote);
  std::vector<std::byte> ring(shape.blocks * kBlockBytes);
  RequestWriter writer(ring.data(), shape.blocks, rig.a.pairs[0]);
  for (const Op& op : ops)
    write_op(writer, op,
             {rig.a.memory.address(), rig.b.memory.address(), rig.a.key, rig.b.key,
              reinterpret_cast<const std::byte*>(local.data())});
  rig.a.memory.copy(rig.a.queues[0]->ring_bytes(), ring.data(), ring.size());
  rig.start();
  const std::uint32_t posted = mlx5::big(std::uint32_t{writer.posted()});
  rig.a.memory.copy(rig.a.queues[0]->sends(), &posted, sizeof posted);
  Outcome outcome;
  read_completions(rig, expected_completions(ops, good), outcome);
  std::this_thread::sleep_for(std::chrono::milliseconds(1));  // for the other end
  rig.stop();
  outcome.local = rig.a.memory.read(0, local.size());
  outcome.remote = rig.b.memory.read(0, remote.size());
  outcome.local_failed = rig.a.nic.report(rig.a.pairs[0]).failed != 0;
  outcome.remote_failed = rig.b.nic.report(rig.b.pairs[0]).failed != 0;
  return outcome;
}

TEST_P(GpuNicOutcomes, AreThoseOfTheEngine) {
  SHOAL_NEEDS_GPU();
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    std::mt19937_64 random(seed);
    const std::vector<Op> ops = random_ops(random, 1 + random() % 28);
    NicShape shape{.ordering = GetParam(), .blocks = 1024, .bytes = 1 << 16};
    shape.options.delay = std::chrono::microseconds(random() % 3);
    shape.options.reorder = std::chrono::microseconds(random() % 2 * 3);
    shape.options.bytes_per_ns = random() % 2 == 0 ? 0 : 50;
    shape.options.seed = seed;
    const Outcome engine = run_on_engine(ops, ops.size(), GetParam(), kAllAccess, kAllAccess);
    expect_same(engine, run_on_gpu(ops, ops.size(), shape), "seed " + std::to_string(seed));
    if (HasFailure()) return;
  }
}

TEST_P(GpuNicOutcomes, FaultsAreThoseOfTheEngine) {
  SHOAL_NEEDS_GPU();
  for (const Fault& fault : faults()) {
    std::vector<Op> ops(3, Op{.opcode = Opcode::nop});
    ops.push_back(fault.op);
    if (ops.back().local == 0) ops.back().local = 64;
    if (ops.back().remote == 0) ops.back().remote = 128;
    for (int i = 0; i < 40; ++i) ops.push_back({.opcode = Opcode::nop, .signalled = i % 2 == 0});
    NicShape shape{.ordering = GetParam(), .blocks = 1024, .bytes = 1 << 16};
    shape.access = fault.access;
    shape.granted = fault.granted;
    const Outcome engine = run_on_engine(ops, 3, GetParam(), fault.access, fault.granted);
    expect_same(engine, run_on_gpu(ops, 3, shape), fault.name);
  }
}

INSTANTIATE_TEST_SUITE_P(Tiers, GpuNicOutcomes, ::testing::ValuesIn(kOrderings),
                         [](const auto& made) { return kTierNames[static_cast<int>(made.param)]; });

}  // namespace
}  // namespace shoal::emulator::test
