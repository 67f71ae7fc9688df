// SPDX-License-Identifier: Apache-2.0
// gpu_outcomes.hpp: random and faulty requests, and what the engine makes of them, for comparison
// with the NIC on a GPU (emulator/gpu/).
#pragma once

#include <numeric>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "rig.hpp"

namespace shoal::emulator::test {

inline constexpr Ordering kOrderings[] = {Ordering::strict, Ordering::adaptive,
                                          Ordering::unordered};
inline constexpr const char* kTierNames[] = {"strict", "adaptive", "unordered"};

/// A request by offsets in the memory of both ends.
struct Op {
  Opcode opcode = Opcode::nop;
  std::size_t local = 0, remote = 0;
  std::uint32_t bytes = 8;
  AtomicOperands operands = {};
  bool is_inline = false, signalled = true, fenced = false;
  std::uint32_t parts = 1;
  std::uint32_t local_key = 0, remote_key = 0;  ///< 0: the right ones
};

struct Bases {
  std::uint64_t local, remote;
  std::uint32_t local_key, remote_key;
  const std::byte* bytes;
};

inline void write_op(RequestWriter& writer, const Op& op, const Bases& bases) {
  const std::uint32_t key = op.local_key != 0 ? op.local_key : bases.local_key;
  writer.start(op.opcode, {.signalled = op.signalled, .fenced = op.fenced},
               is_atomic(op.opcode) ? modifier_of(op.operands) : std::uint8_t{0});
  if (op.opcode == Opcode::nop) {
    writer.finish();
    return;
  }
  writer.remote(bases.remote + op.remote, op.remote_key != 0 ? op.remote_key : bases.remote_key);
  if (is_atomic(op.opcode)) {
    writer.atomic(op.operands).data(bases.local + op.local, op.operands.size, key);
  } else if (op.is_inline) {
    writer.inline_data({bases.bytes + op.local, op.bytes});
  } else {
    for (std::uint32_t i = 0; i < op.parts; ++i) {
      const std::uint32_t begin = op.bytes * i / op.parts, end = op.bytes * (i + 1) / op.parts;
      writer.data(bases.local + op.local + begin, end - begin, key);
    }
  }
  writer.finish();
}

struct Outcome {
  std::vector<std::uint64_t> local, remote;
  std::vector<std::tuple<bool, Syndrome, std::uint16_t, std::uint32_t>> completions;
  bool local_failed = false, remote_failed = false;
};

inline std::size_t expected_completions(const std::vector<Op>& ops, std::size_t good) {
  std::size_t count = ops.size() - good;
  for (std::size_t i = 0; i < good; ++i) count += ops[i].signalled ? 1 : 0;
  return count;
}

inline void note(Outcome& outcome, const Seen& seen) {
  outcome.completions.emplace_back(seen.opcode == CqeOpcode::request_error, seen.syndrome,
                                   seen.index, seen.bytes);
}

/// `good`: so many of the first are executed; the next one fails.
inline Outcome run_on_engine(const std::vector<Op>& ops, std::size_t good, Ordering ordering,
                             std::uint32_t access, std::uint32_t granted) {
  Connection connection;
  connection.ordering = ordering;
  connection.access = granted;
  Pair pair({}, {.blocks = 1024, .access = access}, connection);
  std::iota(pair.a.memory.begin(), pair.a.memory.end(), 0x1122334455667788U);
  std::iota(pair.b.memory.begin(), pair.b.memory.end(), 0x99aabbccddeeff00U);
  for (const Op& op : ops)
    write_op(*pair.a.writer, op,
             {pair.a.address(), pair.b.address(), pair.a.key, pair.b.key, pair.a.bytes()});
  pair.a.ring();
  Outcome outcome;
  const std::size_t count = expected_completions(ops, good);
  pair.network.run_until([&] {
    while (const auto seen = pair.a.sent.poll()) note(outcome, *seen);
    return false;  // until nothing is left to happen
  });
  EXPECT_EQ(outcome.completions.size(), count);
  outcome.local = pair.a.memory;
  outcome.remote = pair.b.memory;
  outcome.local_failed = pair.a.pair->state() == QpState::error;
  outcome.remote_failed = pair.b.pair->state() == QpState::error;
  return outcome;
}

inline void expect_same(const Outcome& engine, const Outcome& gpu, const std::string& what) {
  EXPECT_EQ(engine.completions, gpu.completions) << what;
  EXPECT_TRUE(engine.local == gpu.local) << what;
  EXPECT_TRUE(engine.remote == gpu.remote) << what;
  EXPECT_EQ(engine.local_failed, gpu.local_failed) << what;
  EXPECT_EQ(engine.remote_failed, gpu.remote_failed) << what;
}

inline constexpr Opcode kAtomics[] = {Opcode::fetch_add, Opcode::compare_swap,
                                      Opcode::masked_fetch_add, Opcode::masked_compare_swap};

/// Requests whose data do not meet: each has 256 words at either end, atomics have eight common
/// ones.
inline std::vector<Op> random_ops(std::mt19937_64& random, std::size_t count) {
  std::vector<Op> ops;
  for (std::size_t i = 0; i < count; ++i) {
    Op op;
    op.local = 1024 + i * 2048 + random() % 24;
    op.remote = 1024 + i * 2048 + random() % 24;
    op.signalled = random() % 3 != 0 || i + 1 == count;
    op.fenced = random() % 8 == 0;
    switch (random() % 8) {
      case 0:
        break;
      case 1:
      case 2: {
        op.opcode = kAtomics[random() % 4];
        const bool masked = op.opcode >= Opcode::masked_compare_swap;
        op.operands = {.opcode = op.opcode,
                       .size = static_cast<std::uint8_t>(masked && random() % 2 == 0 ? 4 : 8),
                       .swap_or_add = random(),
                       .compare = random() % 2 == 0 ? 0x99aabbccddeeff00U : random(),
                       .swap_mask = random(),
                       .compare_mask_or_boundary = random() & random()};
        if (op.operands.size == 4) {
          op.operands.swap_or_add &= 0xffffffff;
          op.operands.compare &= 0xffffffff;
          op.operands.swap_mask &= 0xffffffff;
          op.operands.compare_mask_or_boundary &= 0xffffffff;
        }
        op.bytes = op.operands.size;
        op.remote = random() % 8 * 8;
        break;
      }
      case 3:
        op.opcode = Opcode::write;
        op.is_inline = true;
        op.bytes = static_cast<std::uint32_t>(random() % (random() % 2 == 0 ? 29 : 900));
        break;
      case 4:
        op.opcode = Opcode::read;
        op.bytes = static_cast<std::uint32_t>(random() % 2000);
        op.parts = 1 + random() % 3;
        break;
      default:
        op.opcode = Opcode::write;
        op.bytes = static_cast<std::uint32_t>(random() % 2000);
        op.parts = 1 + random() % 3;
    }
    ops.push_back(op);
  }
  ops.back().signalled = true;
  return ops;
}

/// What is wrong, and a request that has it.
struct Fault {
  const char* name;
  Op op;
  std::uint32_t access = kAllAccess, granted = kAllAccess;
};

inline std::vector<Fault> faults() {
  const AtomicOperands add{.opcode = Opcode::fetch_add, .swap_or_add = 1};
  constexpr std::uint32_t kStale = 0x1001, kUnknown = 0x7700;
  constexpr std::size_t kEnd = 1 << 16;
  return {
      {"unknown remote key", {.opcode = Opcode::write, .remote_key = kUnknown}},
      {"stale remote key", {.opcode = Opcode::write, .remote_key = kStale}},
      {"unknown local key", {.opcode = Opcode::write, .local_key = kUnknown}},
      {"local key below the first", {.opcode = Opcode::write, .local_key = 0x300}},
      {"past the end", {.opcode = Opcode::write, .remote = kEnd - 4}},
      {"before the begin", {.opcode = Opcode::write, .remote = static_cast<std::size_t>(-4)}},
      {"local past the end", {.opcode = Opcode::write, .local = kEnd - 4}},
      {"read past the end", {.opcode = Opcode::read, .remote = kEnd - 4}},
      {"large write past the end", {.opcode = Opcode::write, .remote = kEnd - 8, .bytes = 2000}},
      {"unaligned atomic", {.opcode = Opcode::fetch_add, .remote = 4, .operands = add}},
      {"unknown opcode", {.opcode = static_cast<Opcode>(0x3c)}},
      {"no right to write", {.opcode = Opcode::write}, Access::remote_read | Access::local_write},
      {"no right to read", {.opcode = Opcode::read}, Access::remote_write | Access::local_write},
      {"no right for atomics",
       {.opcode = Opcode::fetch_add, .operands = add},
       Access::remote_read | Access::local_write},
      {"no local right", {.opcode = Opcode::read}, Access::remote_read},
      {"connection without writes",
       {.opcode = Opcode::write},
       kAllAccess,
       Access::remote_read | Access::remote_atomic},
      {"connection without atomics",
       {.opcode = Opcode::fetch_add, .operands = add},
       kAllAccess,
       Access::remote_read | Access::remote_write},
  };
}

}  // namespace shoal::emulator::test
