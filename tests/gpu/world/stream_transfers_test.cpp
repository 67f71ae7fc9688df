// SPDX-License-Identifier: Apache-2.0
// Transfers on CUDA streams: puts and takes that wait, puts to all PEs, entries of a table; also
// the barrier's deadline, which names the late PE, and its replay in a graph.
#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "gpu/device/world.hpp"
#include "shoal/detail/stream_steps.hpp"
#include "support/cuda/graph.hpp"
#include "support/expect_error.hpp"

namespace shoal::test {
namespace {

using detail::StreamSteps;

std::vector<std::uint8_t> bytes_of(Pe pe, std::uint64_t round, std::size_t count) {
  std::vector<std::uint8_t> values(count);
  std::minstd_rand generator(static_cast<unsigned>(1 + 1000 * pe + 37 * round));
  for (auto& value : values) value = static_cast<std::uint8_t>(generator() >> 8);
  return values;
}

/// More messages than slots to the next PE, on the streams alone. The last one is checked, and the
/// sum of all.
void check_pipeline(World& world, const TestStream& stream, std::size_t bytes, std::uint64_t slots,
                    std::uint64_t rounds) {
  const StreamSteps on(world, stream);
  const auto out = world.heap().allocate<std::uint8_t>(rounds * bytes);
  const auto got = world.heap().allocate<std::uint8_t>(rounds * bytes);
  const auto data = world.heap().allocate<std::uint8_t>(slots * bytes);
  const auto flags = world.heap().allocate<std::uint64_t>(2);  // arrived, freed
  std::vector<std::uint8_t> sent, expected;
  for (std::uint64_t round = 0; round < rounds; ++round) {
    for (const std::uint8_t value : bytes_of(world.my_pe(), round, bytes)) sent.push_back(value);
    for (const std::uint8_t value : bytes_of(left(world), round, bytes)) expected.push_back(value);
  }
  fill(world, out, sent);
  barrier(world.team());
  for (std::uint64_t round = 0; round < rounds; ++round) {
    const std::size_t slot = round % slots * bytes, at = round * bytes;
    on.put_when(round < slots ? nullptr : flags.data() + 1, round + 1 - std::min(round + 1, slots),
                data.on(right(world)).subspan(slot, bytes).address, out.data() + at, bytes,
                flags.on(right(world))[0], round + 1);
    on.take_when(flags.data(), round + 1, got.data() + at, data.data() + slot, bytes,
                 flags.on(left(world))[1], round + 1);
  }
  stream.synchronize();
  cuda::check_failures(world);
  EXPECT_EQ(fetch(world, got), expected) << bytes << " bytes, " << slots << " slots";
  barrier(world.team());
}

TEST(StreamTransfers, PipelineSmall) {
  SHOAL_NEEDS_GPU();
  run_gpu_pes(2, [](World& world, const TestStream& stream) {
    check_pipeline(world, stream, 100, 2, 5);
    check_pipeline(world, stream, 1, 1, 3);
  });
}
TEST(StreamTransfers, PipelinesOfEverySize) {
  SHOAL_NEEDS_GPU();
  run_gpu_pes(4, [](World& world, const TestStream& stream) {
    check_pipeline(world, stream, 4096, 3, 20);
    check_pipeline(world, stream, (128 << 10) - 16, 1, 6);
    check_pipeline(world, stream, 128 << 10, 2, 6);
    check_pipeline(world, stream, (128 << 10) + 4, 2, 6);  // the copy engine
    check_pipeline(world, stream, 1 << 20, 2, 5);
  });
}

/// Two blocks of each PE go to all; one lies in its place already.
void check_put_to_all(World& world, const TestStream& stream, std::size_t bytes) {
  const StreamSteps on(world, stream);
  const auto n = static_cast<std::size_t>(world.n_pes()),
             me = static_cast<std::size_t>(world.my_pe());
  const auto moved = world.heap().allocate<std::uint8_t>(n * bytes);
  const auto placed = world.heap().allocate<std::uint8_t>(n * bytes);
  const auto source = world.heap().allocate<std::uint8_t>(bytes);
  const auto flags = world.heap().allocate<std::uint64_t>(n);
  for (std::uint64_t round = 1; round <= 3; ++round) {
    fill(world, source, bytes_of(world.my_pe(), round, bytes));
    world.put(placed.on(world.my_pe()).subspan(me * bytes, bytes),
              bytes_of(world.my_pe(), 10 + round, bytes));
    on.barrier(world.team());
    const detail::StreamBlock blocks[] = {
        {moved.data() + me * bytes, source.data(), bytes},
        {placed.data() + me * bytes, placed.data() + me * bytes, bytes}};
    on.put_to_all(world.team(), blocks, flags.data(), round);
    on.wait_for_all(world.team(), flags.data(), round);
    stream.synchronize();
    cuda::check_failures(world);
    std::vector<std::uint8_t> want_moved, want_placed;
    for (Pe pe = 0; pe < world.n_pes(); ++pe) {
      for (const std::uint8_t value : bytes_of(pe, round, bytes)) want_moved.push_back(value);
      for (const std::uint8_t value : bytes_of(pe, 10 + round, bytes)) want_placed.push_back(value);
    }
    EXPECT_EQ(fetch(world, moved), want_moved) << bytes << " bytes, round " << round;
    EXPECT_EQ(fetch(world, placed), want_placed) << bytes << " bytes, round " << round;
    barrier(world.team());
  }
}

TEST(StreamTransfers, PutToAllSmall) {
  SHOAL_NEEDS_GPU();
  run_gpu_pes(3,
              [](World& world, const TestStream& stream) { check_put_to_all(world, stream, 48); });
}
TEST(StreamTransfers, PutToAllOfEverySize) {
  SHOAL_NEEDS_GPU();
  run_gpu_pes(8, [](World& world, const TestStream& stream) {
    for (const std::size_t bytes : {1, 77, 64 << 10, (64 << 10) + 1, 300'000})
      check_put_to_all(world, stream, bytes);
  });
}

/// Its limit is that of startup: a barrier of the world would run out of time together with the
/// tested operation.
constexpr const char* kAfterFailure = "the end of a test";

TEST(StreamTransfers, WaitForAllNamesThePeSmall) {
  SHOAL_NEEDS_GPU();
  run_gpu_pes(
      2,
      [](World& world, const TestStream& stream) {
        const StreamSteps on(world, stream);
        const auto flags = world.heap().allocate<std::uint64_t>(2);
        if (world.my_pe() == 0) {
          on.put_value(flags.on(0)[0], 1);
          on.wait_for_all(world.team(), flags.data(), 1);  // PE 1 does not put
          stream.synchronize();
          expect_error(Code::timeout, "which PE 1 sets, to be >= 1, seen 0",
                       [&] { cuda::check_failures(world); });
        }
        world.bootstrap().barrier(kAfterFailure);
      },
      settings_for_timeouts());
}

/// PE 1 takes nothing, so a put of PE 0 finds no free slot.
void check_put_without_taker(std::size_t bytes) {
  run_gpu_pes(
      2,
      [bytes](World& world, const TestStream& stream) {
        const StreamSteps on(world, stream);
        const auto data = world.heap().allocate<std::uint8_t>(bytes);
        const auto flags = world.heap().allocate<std::uint64_t>(2);
        if (world.my_pe() == 0) {
          on.put_when(flags.data() + 1, 1, data.on(1).address, data.data(), bytes, flags.on(1)[0],
                      3);
          stream.synchronize();
          expect_error(Code::timeout, "which PE 1 sets, to be >= 1, seen 0",
                       [&] { cuda::check_failures(world); });
        }
        world.bootstrap().barrier(kAfterFailure);
      },
      settings_for_timeouts());
}
TEST(StreamTransfers, PutsNameThePeThatDoesNotTakeSmall) {
  SHOAL_NEEDS_GPU();
  check_put_without_taker(16);
}
TEST(StreamTransfers, LongPutsNameThePeThatDoesNotTakeSmall) {
  SHOAL_NEEDS_GPU();
  check_put_without_taker(1 << 20);
}

TEST(StreamTransfers, BarriersNameTheLatePeSmall) {
  SHOAL_NEEDS_GPU();
  run_gpu_pes(
      2,
      [](World& world, const TestStream& stream) {
        const StreamSteps on(world, stream);
        on.barrier(world.team());
        stream.synchronize();
        cuda::check_failures(world);
        if (world.my_pe() == 0) {
          on.barrier(world.team());
          stream.synchronize();
          expect_error(Code::timeout, "waiting for PE 1, expected barrier 2, seen 1",
                       [&] { cuda::check_failures(world); });
        }
        world.bootstrap().barrier(kAfterFailure);
      },
      settings_for_timeouts());
}

/// Every entry size and alignment, with words next to the entries in both orders.
void check_fetch(World& world, const TestStream& stream, std::size_t entry_bytes,
                 std::int64_t words) {
  const StreamSteps on(world, stream);
  constexpr std::int64_t kPerPe = 7, kRows = 6, kPerRow = 5;
  const std::int64_t total = kPerPe * world.n_pes(), count = kRows * kPerRow;
  const auto part = world.heap().allocate<std::uint8_t>(kPerPe * entry_bytes);
  const auto target = world.heap().allocate<std::uint8_t>(count * entry_bytes);
  const auto indices = world.heap().allocate<std::int32_t>(count);
  const auto table = world.heap().allocate<std::uint32_t>(std::max<std::int64_t>(1, total * words));
  const auto side = world.heap().allocate<std::uint32_t>(std::max<std::int64_t>(1, count * words));
  fill(world, part, bytes_of(world.my_pe(), 5, kPerPe * entry_bytes));
  std::vector<std::uint32_t> numbers(table.size());
  std::iota(numbers.begin(), numbers.end(), 1000U);
  fill(world, table, numbers);
  std::vector<std::int32_t> chosen(count);
  std::minstd_rand generator(static_cast<unsigned>(9 + world.my_pe()));
  for (auto& index : chosen) index = static_cast<std::int32_t>(generator() % total);
  fill(world, indices, chosen);
  std::vector<std::uint8_t> expected;
  for (const std::int32_t index : chosen) {
    const auto all = bytes_of(static_cast<Pe>(index / kPerPe), 5, kPerPe * entry_bytes);
    const auto first = all.begin() + index % kPerPe * static_cast<std::ptrdiff_t>(entry_bytes);
    expected.insert(expected.end(), first, first + static_cast<std::ptrdiff_t>(entry_bytes));
  }
  on.barrier(world.team());
  for (const bool columns_first : {false, true}) {
    detail::EntryFetch entries;
    entries.part = part.data();
    entries.entry_bytes = entry_bytes;
    entries.entries_per_pe = kPerPe;
    entries.indices = indices.data();
    entries.count = count;
    entries.target = target.data();
    entries.words_table = table.data();
    entries.words_target = side.data();
    entries.words = words;
    entries.per_row = kPerRow;
    entries.row_stride = columns_first ? 1 : kPerRow * words;
    entries.step = columns_first ? kRows : 1;
    on.fetch_entries(entries);
    stream.synchronize();
    cuda::check_failures(world);
    EXPECT_EQ(fetch(world, target), expected) << entry_bytes << " bytes";
    const auto got = fetch(world, side);
    for (std::int64_t i = 0; i < count; ++i)
      for (std::int64_t w = 0; w < words; ++w)
        ASSERT_EQ(got[static_cast<std::size_t>(i / kPerRow * entries.row_stride +
                                               (i % kPerRow * words + w) * entries.step)],
                  1000 + chosen[static_cast<std::size_t>(i)] * words + w)
            << "index " << i << ", word " << w;
  }
  barrier(world.team());
}

TEST(StreamTransfers, FetchEntriesSmall) {
  SHOAL_NEEDS_GPU();
  run_gpu_pes(2, [](World& world, const TestStream& stream) { check_fetch(world, stream, 64, 3); });
}
TEST(StreamTransfers, FetchEntriesOfEverySize) {
  SHOAL_NEEDS_GPU();
  run_gpu_pes(4, [](World& world, const TestStream& stream) {
    for (const std::size_t bytes : {1, 2, 6, 16, 130, 2048, 2050, 4096, 14336, 30'001})
      check_fetch(world, stream, bytes, bytes % 2 == 0 ? 2 : 0);
  });
}

TEST(StreamTransfers, FetchEntriesReportsABadIndexSmall) {
  SHOAL_NEEDS_GPU();
  run_gpu_pes(2, [](World& world, const TestStream& stream) {
    const StreamSteps on(world, stream);
    const auto part = world.heap().allocate<std::uint32_t>(8);
    const auto target = world.heap().allocate<std::uint32_t>(16);
    const auto indices = world.heap().allocate<std::int32_t>(2);
    fill(world, part, std::vector<std::uint32_t>(8, 5));
    fill(world, target, std::vector<std::uint32_t>(16, 9));
    detail::EntryFetch entries;
    entries.part = part.data();
    entries.entry_bytes = 32;
    entries.entries_per_pe = 1;
    entries.indices = indices.data();
    entries.count = 2;
    entries.target = target.data();
    barrier(world.team());
    for (const std::int32_t bad : {2, -1}) {
      fill(world, indices, {1, bad});
      on.fetch_entries(entries);
      stream.synchronize();
      expect_error(Code::invalid_argument,
                   "index 1 is " + std::to_string(bad) + "; the table has entries 0 to 1",
                   [&] { cuda::check_failures(world); });
      std::vector<std::uint32_t> expected(16, 0);
      std::fill_n(expected.begin(), 8, 5U);
      EXPECT_EQ(fetch(world, target), expected);
    }
    barrier(world.team());
  });
}

/// A barrier between a value and its readers, replayed: it counts in device memory.
TEST(StreamTransfers, BarriersAreReplayed) {
  SHOAL_NEEDS_GPU();
  run_gpu_pes(4, [](World& world, const TestStream& stream) {
    const StreamSteps on(world, stream);
    const auto counter = world.heap().allocate<std::uint64_t>(1);
    const auto seen = world.heap().allocate<std::uint64_t>(1);
    barrier(world.team());
    const Graph graph(stream, [&] {
      on.atomic(AtomicOp::add, counter.on(right(world))[0], 1, nullptr);
      on.barrier(world.team());
      on.get(seen.span(), counter.on(world.my_pe()));
      on.barrier(world.team());
    });
    EXPECT_EQ(graph.nodes(), 4U) << "a barrier is one kernel";
    for (std::uint64_t replay = 1; replay <= 50; ++replay) {
      graph.replay();
      stream.synchronize();
      cuda::check_failures(world);
      ASSERT_EQ(fetch(world, seen)[0], replay);
    }
    barrier(world.team());
  });
}

SHOAL_PE_BODY(stream_transfers) {
  run_gpu_process(pe, [](World& world, const TestStream& stream) {
    check_pipeline(world, stream, 4096, 2, 4);
    check_pipeline(world, stream, 300'000, 2, 3);
    check_put_to_all(world, stream, 1000);
    check_put_to_all(world, stream, 200'000);
    check_fetch(world, stream, 2048, 2);
  });
}

TEST(StreamTransfersAmongProcesses, ByTheUsualHandle) {
  SHOAL_NEEDS_GPU();
  run_gpu_processes("stream_transfers", "automatic");
}
TEST(StreamTransfersAmongProcesses, ByCudaIpc) {
  SHOAL_NEEDS_GPU();
  run_gpu_processes("stream_transfers", "ipc");
}

}  // namespace
}  // namespace shoal::test
