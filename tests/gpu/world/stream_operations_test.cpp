// SPDX-License-Identifier: Apache-2.0
// Operations on CUDA streams: values, order on the stream, deadlines, graphs, several PEs on one
// GPU.
#include <gtest/gtest.h>

#include <mutex>
#include <numeric>
#include <set>

#include "gpu/device/world.hpp"
#include "shoal/collective.hpp"
#include "support/cuda/graph.hpp"
#include "support/expect_error.hpp"

namespace shoal::test {
namespace {

using cuda::StreamOperations;

using Row = std::span<const std::uint32_t>;

std::vector<std::uint32_t> row(Pe pe, std::size_t count) {
  std::vector<std::uint32_t> values(count);
  std::iota(values.begin(), values.end(), 1'000'000U * (static_cast<std::uint32_t>(pe) + 1));
  return values;
}

/// put and get of `count` words, by kernel or by copy engine, aligned and not.
void check_put_get(World& world, const TestStream& stream, std::size_t count) {
  const auto out = world.heap().allocate<std::uint32_t>(count + 1);
  const auto in = world.heap().allocate<std::uint32_t>(count + 1);
  const auto back = world.heap().allocate<std::uint32_t>(count);
  const StreamOperations on(world, stream);
  fill(world, out, row(world.my_pe(), count + 1));
  on.barrier(world.team());
  on.put(in.on(right(world)).subspan(1, count), std::span<const std::uint32_t>(out.data(), count));
  on.get(back.span(), out.on(right(world)).subspan(1, count));
  on.barrier(world.team());
  stream.synchronize();
  cuda::check_failures(world);
  auto expected = row(left(world), count + 1);
  expected.insert(expected.begin(), 0);
  expected.pop_back();
  EXPECT_EQ(fetch(world, in), expected);
  expected = row(right(world), count + 1);
  expected.erase(expected.begin());
  EXPECT_EQ(fetch(world, back), expected);
  barrier(world.team());
}

TEST(StreamOperations, PutAndGetSmall) {
  SHOAL_NEEDS_GPU();
  run_gpu_pes(2, [](World& world, const TestStream& stream) { check_put_get(world, stream, 100); });
}
TEST(StreamOperations, PutAndGetOfEverySize) {
  SHOAL_NEEDS_GPU();
  run_gpu_pes(8, [](World& world, const TestStream& stream) {
    for (const std::size_t count : {1, 3, 4, 1000, 4097, 16384, 65535, 65536, 300'001})
      check_put_get(world, stream, count);
  });
}

TEST(StreamOperations, ValuesStridesAndAtomicsSmall) {
  SHOAL_NEEDS_GPU();
  run_gpu_pes(3, [](World& world, const TestStream& stream) {
    const StreamOperations on(world, stream);
    const auto bytes = world.heap().allocate<std::uint8_t>(16);
    const auto in = world.heap().allocate<double>(64);
    const auto out = world.heap().allocate<double>(64);
    const auto back = world.heap().allocate<double>(64);
    const auto words = world.heap().allocate<std::int32_t>(4);
    const auto before = world.heap().allocate<std::int32_t>(4);
    std::vector<double> mine(64);
    std::iota(mine.begin(), mine.end(), 100.0 * (world.my_pe() + 1));
    fill(world, out, mine);
    const Pe next = right(world);
    on.barrier(world.team());
    on.put_value(bytes.on(next)[3], static_cast<std::uint8_t>(world.my_pe() + 1));
    on.put_value(RemoteSpan<std::uint16_t>{{next, bytes.on(next).address.offset + 4}, 1}, 0x0201);
    on.put_value(in.on(next)[60], -1.5);
    on.put_strided(in.on(next), 3, out.data(), 2, 20);
    on.get_strided(back.data(), 2, out.on(next), 5, 12);
    for (int i = 0; i < 5; ++i) on.atomic(AtomicOp::add, words.on(0)[0], 7, nullptr);
    on.atomic(AtomicOp::swap, words.on(next)[1], -9, before.data());
    on.atomic(AtomicOp::compare_swap, words.on(next)[1], 4, before.data() + 1, -9);
    on.atomic(AtomicOp::compare_swap, words.on(next)[1], 5, before.data() + 2, -9);
    on.atomic(AtomicOp::fetch, words.on(next)[1], 0, before.data() + 3);
    on.barrier(world.team());
    stream.synchronize();
    cuda::check_failures(world);

    std::vector<std::uint8_t> expected_bytes(16);
    expected_bytes[3] = static_cast<std::uint8_t>(left(world) + 1);
    expected_bytes[4] = 1, expected_bytes[5] = 2;
    EXPECT_EQ(fetch(world, bytes), expected_bytes);
    std::vector<double> expected_in(64), expected_back(64);
    for (std::size_t i = 0; i < 20; ++i)
      expected_in[3 * i] = 100.0 * (left(world) + 1) + 2.0 * static_cast<double>(i);
    expected_in[60] = -1.5;
    for (std::size_t i = 0; i < 12; ++i)
      expected_back[2 * i] = 100.0 * (next + 1) + 5.0 * static_cast<double>(i);
    EXPECT_EQ(fetch(world, in), expected_in);
    EXPECT_EQ(fetch(world, back), expected_back);
    EXPECT_EQ(fetch(world, words),
              (std::vector<std::int32_t>{world.my_pe() == 0 ? 5 * 7 * 3 : 0, 4, 0, 0}));
    EXPECT_EQ(fetch(world, before), (std::vector<std::int32_t>{0, -9, 4, 4}));
    barrier(world.team());
  });
}

/// Every operation, by one PE on a word of its neighbor and by all PEs on words of PE 0. Values
/// use all bits of the type.
template <typename T>
void check_stream_atomics(World& world, const TestStream& stream) {
  struct Step {
    AtomicOp op;
    T operand, compare, after;  // after: the resulting word
  };
  const T start = static_cast<T>(0x9234'5678'8abc'def0),
          other = static_cast<T>(0x0f0f'8000'f0f0'0007);
  const std::vector<Step> steps = {
      {AtomicOp::set, start, 0, start},
      {AtomicOp::fetch, 0, 0, start},
      {AtomicOp::bit_and, other, 0, static_cast<T>(start & other)},
      {AtomicOp::set, start, 0, start},
      {AtomicOp::bit_or, other, 0, static_cast<T>(start | other)},
      {AtomicOp::set, start, 0, start},
      {AtomicOp::bit_xor, other, 0, static_cast<T>(start ^ other)},
      {AtomicOp::bit_xor, other, 0, start},
      {AtomicOp::compare_swap, 1, other, start},  // the word has another value: it stays
      {AtomicOp::compare_swap, other, start, other},
      {AtomicOp::swap, start, 0, start},
      {AtomicOp::add, static_cast<T>(~T{0}), 0, static_cast<T>(start - 1)},
  };
  const StreamOperations on(world, stream);
  const Pe n = world.n_pes(), next = right(world);
  const auto word = world.heap().allocate<T>(1);
  const auto results = world.heap().allocate<T>(steps.size() + 1);
  const auto shared = world.heap().allocate<T>(4);  // and, or, xor, add
  const T all = static_cast<T>((T{1} << n) - 1), mine = static_cast<T>(T{1} << world.my_pe());
  fill(world, shared, {all, 0, 0, 0});
  on.barrier(world.team());
  for (std::size_t i = 0; i < steps.size(); ++i)
    on.atomic(steps[i].op, word.on(next)[0], steps[i].operand, results.data() + i,
              steps[i].compare);
  on.atomic(AtomicOp::fetch, word.on(next)[0], 0, results.data() + steps.size());
  on.atomic(AtomicOp::bit_and, shared.on(0)[0], static_cast<T>(~mine), nullptr);
  on.atomic(AtomicOp::bit_or, shared.on(0)[1], mine, nullptr);
  for (int i = 0; i < 3; ++i) on.atomic(AtomicOp::bit_xor, shared.on(0)[2], mine, nullptr);
  on.atomic(AtomicOp::add, shared.on(0)[3], mine, nullptr);
  on.barrier(world.team());
  stream.synchronize();
  cuda::check_failures(world);

  std::vector<T> before = {0};  // the value before each step
  for (const Step& step : steps) before.push_back(step.after);
  EXPECT_EQ(fetch(world, results), before);
  EXPECT_EQ(fetch(world, word)[0], steps.back().after);
  if (world.my_pe() == 0) EXPECT_EQ(fetch(world, shared), (std::vector<T>{0, all, all, all}));
  barrier(world.team());
}

template <typename T>
class StreamAtomics : public testing::Test {};
using AtomicTypes = testing::Types<std::int32_t, std::uint32_t, std::int64_t, std::uint64_t>;
TYPED_TEST_SUITE(StreamAtomics, AtomicTypes);

TYPED_TEST(StreamAtomics, EveryOperationSmall) {
  SHOAL_NEEDS_GPU();
  run_gpu_pes(2, check_stream_atomics<TypeParam>);
}
TYPED_TEST(StreamAtomics, AmongEightPes) {
  SHOAL_NEEDS_GPU();
  run_gpu_pes(8, check_stream_atomics<TypeParam>);
}

/// Rounds of a ring on streams alone; the host checks only the end. The receiver copies each row
/// into its log. `send(on, row, inbox, flag, round)` moves a row and sets its flag to the
/// round, `acknowledge(on, flag, round)` acknowledges the copy.
template <typename Send, typename Acknowledge>
void run_ring(World& world, const TestStream& stream, std::size_t count, std::uint64_t rounds,
              const Send& send, const Acknowledge& acknowledge) {
  const StreamOperations on(world, stream);
  const auto rows = world.heap().allocate<std::uint32_t>(rounds * count);
  const auto inbox = world.heap().allocate<std::uint32_t>(count);
  const auto log = world.heap().allocate<std::uint32_t>(rounds * count);
  const auto flags = world.heap().allocate<std::uint64_t>(2);
  fill(world, rows, row(world.my_pe(), rounds * count));
  barrier(world.team());
  for (std::uint64_t round = 1; round <= rounds; ++round) {
    const std::size_t first = (round - 1) * count;
    send(on, Row(rows.data() + first, count), inbox.on(right(world)), flags.on(right(world))[0],
         round);
    on.wait_until(flags.data(), Compare::equal, round);
    on.put(log.on(world.my_pe()).subspan(first, count), Row(inbox.data(), count));
    acknowledge(on, flags.on(left(world))[1], round);
    on.wait_until(flags.data() + 1, Compare::equal, round);
  }
  stream.synchronize();
  cuda::check_failures(world);
  EXPECT_EQ(fetch(world, log), row(left(world), rounds * count));
  barrier(world.team());
}

/// Flags are signals.
void check_ring(World& world, const TestStream& stream, std::size_t count, std::uint64_t rounds) {
  run_ring(
      world, stream, count, rounds,
      [](const auto& on, Row row, auto inbox, auto flag, std::uint64_t) {
        on.put_signal(inbox, row, flag, SignalOp::add, 1);
      },
      [](const auto& on, auto flag, std::uint64_t round) {
        on.signal(flag, SignalOp::set, round);
      });
}

TEST(StreamOperations, RingSmall) {
  SHOAL_NEEDS_GPU();
  run_gpu_pes(2, [](World& world, const TestStream& stream) { check_ring(world, stream, 64, 3); });
}
TEST(StreamOperations, SignalsCarryTheDataBeforeThem) {
  SHOAL_NEEDS_GPU();
  run_gpu_pes(8, [](World& world, const TestStream& stream) {
    check_ring(world, stream, 100, 50);      // one kernel copies and signals
    check_ring(world, stream, 10'001, 20);   // a kernel, then a signal
    check_ring(world, stream, 100'000, 10);  // the copy engine, then a signal
  });
}

/// Flags are values, after a fence in odd rounds and after a quiet in even ones.
void check_order(World& world, const TestStream& stream, std::size_t count, std::uint64_t rounds) {
  const auto raise = [](const auto& on, auto flag, std::uint64_t round) {
    round % 2 == 1 ? on.fence() : on.quiet();
    on.put_value(flag, round);
  };
  const auto send = [&](const auto& on, Row row, auto inbox, auto flag, std::uint64_t round) {
    on.put(inbox, row);
    raise(on, flag, round);
  };
  run_ring(world, stream, count, rounds, send, raise);
}

TEST(StreamOperations, FenceAndQuietKeepRowsBeforeTheirFlagsSmall) {
  SHOAL_NEEDS_GPU();
  run_gpu_pes(2, [](World& world, const TestStream& stream) { check_order(world, stream, 64, 4); });
}
TEST(StreamOperations, FenceAndQuietKeepRowsBeforeTheirFlags) {
  SHOAL_NEEDS_GPU();
  run_gpu_pes(8, [](World& world, const TestStream& stream) {
    check_order(world, stream, 100, 50);
    check_order(world, stream, 10'001, 20);
    check_order(world, stream, 100'000, 10);  // by the copy engine
  });
}

TEST(StreamOperations, BarriersOfTeams) {
  SHOAL_NEEDS_GPU();
  run_gpu_pes(8, [](World& world, const TestStream& stream) {
    const StreamOperations on(world, stream);
    const auto table = world.heap().allocate<std::uint64_t>(8);
    Team odd = world.team().split_strided(1, 2, 4);
    for (std::uint64_t round = 1; round <= 50; ++round) {
      for (Pe pe = 0; pe < 8; ++pe)
        on.put_value(table.on(pe)[static_cast<std::size_t>(world.my_pe())], round);
      on.barrier(world.team());
      if (odd.valid()) on.barrier(odd);
      on.barrier(world.team());
    }
    stream.synchronize();
    cuda::check_failures(world);
    EXPECT_EQ(fetch(world, table), std::vector<std::uint64_t>(8, 50));
    if (odd.valid()) odd.free();
  });
}

TEST(StreamOperations, TestsAndDeadlinesSmall) {
  SHOAL_NEEDS_GPU();
  run_gpu_pes(
      1,
      [](World& world, const TestStream& stream) {
        const StreamOperations on(world, stream);
        const auto flag = world.heap().allocate<std::int32_t>(1);
        const auto results = world.heap().allocate<int>(3);
        fill(world, results, {9, 9, 9});
        on.test(flag.data(), Compare::equal, 0, results.data());
        on.test(flag.data(), Compare::greater, -1, results.data() + 1);
        on.test(flag.data(), Compare::less, 0, results.data() + 2);
        on.wait_until(flag.data(), Compare::not_equal, 0);  // never
        on.put_value(flag.on(0), 3);                        // the stream continues
        stream.synchronize();
        EXPECT_EQ(fetch(world, results), (std::vector<int>{1, 1, 0}));
        EXPECT_EQ(fetch(world, flag)[0], 3);
        expect_error(Code::timeout, "to be != 0, seen 0", [&] { cuda::check_failures(world); });
        cuda::check_failures(world);
        on.wait_until(flag.data(), Compare::equal, 3);
        stream.synchronize();
        cuda::check_failures(world);
      },
      settings_for_timeouts());
}

/// A captured ring with barriers, replayed. Signals count up, so each replay waits for its own.
TEST(StreamOperations, GraphsAreCapturedAndReplayed) {
  SHOAL_NEEDS_GPU();
  run_gpu_pes(8, [](World& world, const TestStream& stream) {
    const StreamOperations on(world, stream);
    const auto counter = world.heap().allocate<std::uint64_t>(1);
    const auto large = world.heap().allocate<std::uint8_t>(std::size_t{1} << 20);
    const auto sum = world.heap().allocate<std::uint64_t>(1);
    const auto landed = world.heap().allocate<std::uint64_t>(1);
    const auto landings = world.heap().allocate<std::uint64_t>(1);
    const auto landing = world.heap().allocate<std::uint8_t>(large.size());
    fill(world, large,
         std::vector<std::uint8_t>(large.size(), static_cast<std::uint8_t>(world.my_pe() + 1)));
    barrier(world.team());

    const Graph graph(stream, [&] {
      on.barrier(world.team());
      on.atomic(AtomicOp::add, counter.on(right(world)), 2, nullptr);
      on.put(landing.on(right(world)), std::span<const std::uint8_t>(large.data(), large.size()));
      on.fence();
      on.atomic(AtomicOp::add, landed.on(right(world)), 1, nullptr);
      on.quiet();
      on.barrier(world.team());
      on.get(landings.span(), landed.on(world.my_pe()));
      on.get(sum.span(), counter.on(world.my_pe()));
    });
    for (std::uint64_t replay = 1; replay <= 20; ++replay) {
      graph.replay();
      stream.synchronize();
      cuda::check_failures(world);
      ASSERT_EQ(fetch(world, sum)[0], 2 * replay);
      ASSERT_EQ(fetch(world, landings)[0], replay);
    }
    EXPECT_EQ(fetch(world, landing),
              std::vector<std::uint8_t>(large.size(), static_cast<std::uint8_t>(left(world) + 1)));
    barrier(world.team());
  });
}

SHOAL_PE_BODY(streams) {
  run_gpu_process(pe, [](World& world, const TestStream& stream) {
    for (const std::size_t count : {100, 10'001, 300'001}) check_put_get(world, stream, count);
    check_ring(world, stream, 100, 10);
    check_ring(world, stream, 100'000, 3);
    check_order(world, stream, 100, 10);
    check_stream_atomics<std::int64_t>(world, stream);
  });
}

TEST(StreamOperationsAmongProcesses, ByTheUsualHandle) {
  SHOAL_NEEDS_GPU();
  run_gpu_processes("streams", "automatic");
}
TEST(StreamOperationsAmongProcesses, ByCudaIpc) {
  SHOAL_NEEDS_GPU();
  run_gpu_processes("streams", "ipc");
}

// The example of docs/guide/device.md.
TEST(StreamOperations, GuideExampleSmall) {
  SHOAL_NEEDS_GPU();
  run_gpu_pes(2, [](World& world, const TestStream& stream) {
    const auto out = world.heap().allocate<float>(1024);
    const auto in = world.heap().allocate<float>(1024);
    const auto arrived = world.heap().allocate<std::uint64_t>(1);
    fill(world, out, std::vector<float>(1024, 1.0F + static_cast<float>(world.my_pe())));
    // [streams]
    const Pe next = (world.my_pe() + 1) % world.n_pes();
    const cuda::StreamOperations on(world, stream);
    on.put_signal(in.on(next), std::span<const float>(out.data(), out.size()), arrived.on(next),
                  SignalOp::add, 1);
    on.wait_until(arrived.data(), Compare::greater_equal, 1);  // holds the stream, not the host
    on.barrier(world.team());                                  // waits for the streams of all PEs
    check_cuda(cudaStreamSynchronize(stream));
    cuda::check_failures(world);
    // [streams]
    EXPECT_EQ(fetch(world, in), std::vector<float>(1024, 1.0F + static_cast<float>(left(world))));
    barrier(world.team());
  });
}

// Shoal keeps its streams: new streams could share hardware queues (docs/guide/device.md).
TEST(StreamOperations, FindTheSameStreamsInEveryWorld) {
  SHOAL_NEEDS_GPU();
  constexpr int kWorlds = 20;
  std::mutex mutex;
  std::set<cuda::Stream> seen;
  for (int number = 0; number < kWorlds; ++number)
    run_gpu_pes(2, [&](World& world, const TestStream&) {
      const cuda::Stream stream = cuda::launch_context(world).priority;
      const StreamOperations on(world, stream);
      for (int turn = 0; turn < 5; ++turn)
        on.barrier(world.team());  // kernels that wait for each other
      check_cuda(cudaStreamSynchronize(stream));
      const std::lock_guard lock(mutex);
      seen.insert(stream);
    });
  EXPECT_LE(seen.size(), 4U) << "each PE has two";
}

TEST(StreamOperations, LocalMemoryMustBeTheGpus) {
  SHOAL_NEEDS_GPU();
  int gpus = 0;
  check_cuda(cudaGetDeviceCount(&gpus));
  run_gpu_pes(2 * gpus, [](World& world, const TestStream& stream) {
    const StreamOperations on(world, stream);
    const auto words = world.heap().allocate<int>(8);
    const std::vector<int> pageable(8, 3);
    expect_error(Code::invalid_argument, "is not memory that GPU",
                 [&] { on.put(words.on(0), pageable); });
    expect_error(Code::invalid_argument, "legacy default stream",
                 [&] { StreamOperations(world, nullptr); });
    void* pinned = nullptr;
    check_cuda(cudaHostAlloc(&pinned, 8 * sizeof(int), cudaHostAllocPortable));
    auto* const values = static_cast<int*>(pinned);
    std::iota(values, values + 8, 10 * world.my_pe());
    on.put(words.on(right(world)), std::span<const int>(values, 8));
    on.barrier(world.team());
    stream.synchronize();
    std::vector<int> expected(8);
    std::iota(expected.begin(), expected.end(), 10 * left(world));
    EXPECT_EQ(fetch(world, words), expected);
    barrier(world.team());
    check_cuda(cudaFreeHost(pinned));
  });
}

}  // namespace
}  // namespace shoal::test
