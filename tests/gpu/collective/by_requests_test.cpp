// SPDX-License-Identifier: Apache-2.0
// Operations and collectives on streams between emulated nodes: the proxy carries them. Also in
// graphs, and in long queues.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "gpu/device/world.hpp"
#include "shoal/cuda_collective.hpp"
#include "support/cuda/graph.hpp"
#include "support/expect_error.hpp"

namespace shoal::test {
namespace {

using cuda::StreamCollectives;
using cuda::StreamOperations;
using Words = std::vector<std::uint64_t>;

/// Four PEs where there is a GPU for each, else two; half of them on each of two nodes.
Pe pes() {
  int gpus = 0;
  return cudaGetDeviceCount(&gpus) == cudaSuccess && gpus >= 4 ? 4 : 2;
}

Settings nodes_settings() {
  Settings settings = cuda_settings();
  settings.node_size = pes() / 2;
  settings.symmetric_size = std::size_t{256} << 20;
  return settings;
}

Words words_of(Pe pe, std::size_t count, std::uint64_t round = 0) {
  Words words(count);
  for (std::size_t i = 0; i < count; ++i)
    words[i] = static_cast<std::uint64_t>(pe) * 1'000'003 + i * 7 + round * 131;
  return words;
}

TEST(InternodeStreamsOnGpu, PutGetAndSignal) {
  SHOAL_NEEDS_GPU();
  run_gpu_pes(
      pes(),
      [](World& world, const TestStream& stream) {
        constexpr std::size_t kCount = 300'000;
        const Pe me = world.my_pe(), far = (me + world.n_pes() / 2) % world.n_pes();
        const auto source = world.heap().allocate<std::uint64_t>(kCount);
        const auto target = world.heap().allocate<std::uint64_t>(kCount);
        const auto copy = world.heap().allocate<std::uint64_t>(kCount);
        const auto small = world.heap().allocate<std::uint64_t>(16);
        const auto flags = world.heap().allocate<std::uint64_t>(2);
        const auto before = world.heap().allocate<std::uint64_t>(1);
        const StreamOperations on(world, stream);
        fill(world, source, words_of(me, kCount));
        barrier(world.team());
        const std::span<const std::uint64_t> mine(source.data(), kCount);
        on.put(target.on(far), mine);
        on.signal(flags.on(far).subspan(0, 1), SignalOp::set, 1);
        on.wait_until(flags.data(), Compare::equal, 1);
        on.get(std::span(copy.data(), kCount), target.on(far));
        on.put_signal(small.on(far).subspan(0, 2), mine.first(2), flags.on(far).subspan(1, 1),
                      SignalOp::add, 9);
        on.put_value(small.on(far).subspan(2, 1), std::uint64_t{77});
        on.put_strided(small.on(far).subspan(4, 7), 3, source.data(), 2, 3);
        for (int i = 0; i < 2; ++i)
          on.atomic(AtomicOp::add, small.on(far).subspan(12, 1), 4, before.data());
        on.barrier(world.team());
        stream.synchronize();
        cuda::check_failures(world);
        EXPECT_EQ(fetch(world, target), words_of(far, kCount));
        EXPECT_EQ(fetch(world, copy), words_of(me, kCount));
        EXPECT_EQ(fetch(world, flags), (Words{1, 9}));
        EXPECT_EQ(fetch(world, before)[0], 4U);
        const Words got = fetch(world, small), theirs = words_of(far, 8);
        EXPECT_EQ(got[0], theirs[0]);
        EXPECT_EQ(got[1], theirs[1]);
        EXPECT_EQ(got[2], 77U);
        for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(got[4 + 3 * i], theirs[2 * i]);
        EXPECT_EQ(got[12], 8U);
        barrier(world.team());
      },
      nodes_settings());
}

void check_collectives(World& world, const TestStream& stream, std::size_t count,
                       std::uint64_t round, const std::function<void(std::function<void()>)>& run) {
  const Pe me = world.my_pe();
  const auto n = static_cast<std::size_t>(world.n_pes());
  const auto source = world.heap().allocate<std::uint64_t>(n * count);
  const auto target = world.heap().allocate<std::uint64_t>(n * count);
  const StreamCollectives on(world.team(), stream);
  fill(world, source, words_of(me, n * count, round));
  barrier(world.team());
  const auto result = [&](std::size_t size) {
    stream.synchronize();
    cuda::check_failures(world);
    Words words = fetch(world, target);
    words.resize(size);
    barrier(world.team());
    return words;
  };
  const auto sums = [&](std::size_t first) {
    Words all(count);
    for (std::size_t pe = 0; pe < n; ++pe) {
      const Words theirs = words_of(static_cast<Pe>(pe), n * count, round);
      for (std::size_t i = 0; i < count; ++i) all[i] += theirs[first + i];
    }
    return all;
  };
  const std::size_t bytes = count * sizeof(std::uint64_t);
  run([&] { on.broadcast_bytes(target.data(), source.data(), bytes, world.n_pes() - 1); });
  EXPECT_EQ(result(count), words_of(world.n_pes() - 1, count, round));
  run([&] { on.all_gather_bytes(target.data(), source.data(), bytes); });
  Words gathered;
  for (Pe pe = 0; pe < world.n_pes(); ++pe) {
    const Words theirs = words_of(pe, count, round);
    gathered.insert(gathered.end(), theirs.begin(), theirs.end());
  }
  EXPECT_EQ(result(n * count), gathered);
  run([&] { on.all_to_all_bytes(target.data(), source.data(), bytes); });
  Words exchanged;
  for (Pe pe = 0; pe < world.n_pes(); ++pe) {
    const Words theirs = words_of(pe, n * count, round);
    const auto mine =
        theirs.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(me) * count);
    exchanged.insert(exchanged.end(), mine, mine + static_cast<std::ptrdiff_t>(count));
  }
  EXPECT_EQ(result(n * count), exchanged);
  run([&] { on.reduce(ReduceOp::sum, target.span().first(count), source.span().first(count)); });
  EXPECT_EQ(result(count), sums(0));
  run([&] { on.reduce_scatter(ReduceOp::sum, target.span().first(count), source.span()); });
  EXPECT_EQ(result(count), sums(static_cast<std::size_t>(me) * count));
  barrier(world.team());
}

TEST(InternodeStreamsOnGpu, RunCollectives) {
  SHOAL_NEEDS_GPU();
  run_gpu_pes(
      pes(),
      [](World& world, const TestStream& stream) {
        for (const std::size_t count : {5u, 1'000u, 100'001u})
          check_collectives(world, stream, count, 1, [](const auto& call) { call(); });
      },
      nodes_settings());
}

TEST(InternodeStreamsOnGpu, RunCollectivesInGraphs) {
  SHOAL_NEEDS_GPU();
  run_gpu_pes(
      pes(),
      [](World& world, const TestStream& stream) {
        for (const std::size_t count : {5u, 50'000u})
          check_collectives(world, stream, count, 2, [&](const auto& call) {
            const Graph graph(stream, call);
            barrier(world.team());
            for (int i = 0; i < 3; ++i) graph.replay();
            stream.synchronize();
          });
      },
      nodes_settings());
}

/// PE i sends 1000 * i + j words to PE j, from places in reverse order.
TEST(InternodeStreamsOnGpu, RunAllToAllV) {
  SHOAL_NEEDS_GPU();
  run_gpu_pes(
      pes(),
      [](World& world, const TestStream& stream) {
        constexpr std::size_t kBlock = 4000;
        const auto n = static_cast<std::size_t>(world.n_pes());
        const auto source = world.heap().allocate<std::uint64_t>(n * kBlock);
        const auto target = world.heap().allocate<std::uint64_t>(n * kBlock);
        const auto tables = world.heap().allocate<std::uint64_t>(16);
        const auto me = static_cast<std::size_t>(world.my_pe());
        const auto count = [](std::size_t from, std::size_t to) { return 1000 * from + to; };
        fill(world, source, words_of(world.my_pe(), n * kBlock));
        Words words(16);
        for (std::size_t pe = 0; pe < n; ++pe) {
          words[pe] = count(me, pe) * 8;
          words[4 + pe] = (n - 1 - pe) * kBlock * 8;
          words[8 + pe] = pe * kBlock * 8;
        }
        fill(world, tables, words);
        device::AllToAllV v;
        v.target = target.data();
        v.source = source.data();
        v.send_bytes = tables.data();
        v.send_offsets = tables.data() + 4;
        v.receive_offsets = tables.data() + 8;
        v.received = tables.data() + 12;
        barrier(world.team());
        StreamCollectives(world.team(), stream).all_to_all_v_bytes(v);
        stream.synchronize();
        cuda::check_failures(world);
        const Words got = fetch(world, target), sizes = fetch(world, tables);
        for (std::size_t pe = 0; pe < n; ++pe) {
          EXPECT_EQ(sizes[12 + pe], count(pe, me) * 8);
          const Words theirs = words_of(static_cast<Pe>(pe), n * kBlock);
          for (std::size_t i = 0; i < count(pe, me); ++i)
            ASSERT_EQ(got[pe * kBlock + i], theirs[(n - 1 - me) * kBlock + i]) << pe << " " << i;
        }
        barrier(world.team());
      },
      nodes_settings());
}

/// Sums of floats have the bits of the host's.
TEST(InternodeStreamsOnGpu, AddInTheOrderOfThePes) {
  SHOAL_NEEDS_GPU();
  run_gpu_pes(
      pes(),
      [](World& world, const TestStream& stream) {
        const StreamCollectives on(world.team(), stream);
        for (const std::size_t count : {33u, 60'001u}) {
          const auto source = world.heap().allocate<float>(count);
          const auto target = world.heap().allocate<float>(count);
          const auto expected = world.heap().allocate<float>(count);
          std::vector<float> mine(count);
          for (std::size_t i = 0; i < count; ++i)
            mine[i] =
                static_cast<float>((i * 37 + static_cast<std::size_t>(world.my_pe()) * 11) % 1021) /
                7.0F;
          fill(world, source, mine);
          reduce(world.team(), DataType::float32, ReduceOp::sum, expected.data(), source.data(),
                 count);
          on.reduce(ReduceOp::sum, target.span(), source.span());
          stream.synchronize();
          EXPECT_EQ(fetch(world, target), fetch(world, expected));
          barrier(world.team());
        }
      },
      nodes_settings());
}

/// More operations than a stream's queue holds, without a wait of the host in between.
TEST(InternodeStreamsOnGpu, QueueManyOperations) {
  SHOAL_NEEDS_GPU();
  run_gpu_pes(
      pes(),
      [](World& world, const TestStream& stream) {
        constexpr std::uint64_t kRounds = 3000;
        const auto words = world.heap().allocate<std::uint64_t>(2);
        const Pe far = (world.my_pe() + world.n_pes() / 2) % world.n_pes();
        const StreamOperations on(world, stream);
        barrier(world.team());
        for (std::uint64_t i = 0; i < kRounds; ++i)
          on.signal(words.on(far).subspan(0, 1), SignalOp::add, 1);
        on.barrier(world.team());
        stream.synchronize();
        cuda::check_failures(world);
        EXPECT_EQ(fetch(world, words)[0], kRounds);
        barrier(world.team());
      },
      nodes_settings());
}

}  // namespace
}  // namespace shoal::test
