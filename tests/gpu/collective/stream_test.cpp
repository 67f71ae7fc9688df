// SPDX-License-Identifier: Apache-2.0
// Collectives on CUDA streams: values of every type and operator, sizes around the limits between
// algorithms, graphs, PEs that are late or do not come, teams.
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <random>
#include <thread>

#include "collective/elementwise.hpp"
#include "collective/reduce_kernel.hpp"
#include "gpu/device/world.hpp"
#include "shoal/cuda_collective.hpp"
#include "support/cuda/graph.hpp"
#include "support/expect_error.hpp"

namespace shoal::test {
namespace {

using cuda::ElementType;
using cuda::StreamCollectives;
using Bytes = std::vector<std::uint8_t>;

constexpr std::size_t kArea = std::size_t{1} << 20;

/// A type of each width and its kernel on the host.
struct Type {
  ElementType type;
  std::size_t bytes;
  bool is_integer;
};
constexpr Type kTypes[] = {
    {ElementType::int8, 1, true},     {ElementType::uint8, 1, true},
    {ElementType::int16, 2, true},    {ElementType::uint16, 2, true},
    {ElementType::int32, 4, true},    {ElementType::uint32, 4, true},
    {ElementType::int64, 8, true},    {ElementType::uint64, 8, true},
    {ElementType::float16, 2, false}, {ElementType::bfloat16, 2, false},
    {ElementType::float32, 4, false}, {ElementType::float64, 8, false},
};

collective::ElementKernel host_kernel(ElementType type, ReduceOp op) {
  using collective::kernel_for;
  switch (type) {
    case ElementType::int8:
      return kernel_for<std::int8_t>(op);
    case ElementType::uint8:
      return kernel_for<std::uint8_t>(op);
    case ElementType::int16:
      return kernel_for<std::int16_t>(op);
    case ElementType::uint16:
      return kernel_for<std::uint16_t>(op);
    case ElementType::int32:
      return kernel_for<std::int32_t>(op);
    case ElementType::uint32:
      return kernel_for<std::uint32_t>(op);
    case ElementType::int64:
      return kernel_for<std::int64_t>(op);
    case ElementType::uint64:
      return kernel_for<std::uint64_t>(op);
    case ElementType::float16:
      return collective::kernel_of(DataType::float16, op);
    case ElementType::bfloat16:
      return collective::kernel_of(DataType::bfloat16, op);
    case ElementType::float32:
      return collective::kernel_of(DataType::float32, op);
    case ElementType::float64:
      return collective::kernel_of(DataType::float64, op);
  }
  return nullptr;
}

/// `count` elements of PE `pe`: random bits of integers; finite values near 1 of other types, so
/// that no product is a NaN, whose bits depend on the processor.
Bytes made_up(const Type& type, Pe pe, std::uint32_t round, std::size_t count) {
  std::mt19937 random(static_cast<std::uint32_t>(pe) * 7919U + round);
  Bytes bytes(count * type.bytes);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t bits = random();
    std::uint64_t word = (std::uint64_t{random()} << 32) | bits;
    const float near_one = 0.5F + static_cast<float>(bits % 4096) / 4096.0F;
    const double precise = static_cast<double>(near_one) / 3;
    const float single = static_cast<float>(precise);
    if (type.type == ElementType::float16) word = float16_from_float(near_one);
    if (type.type == ElementType::bfloat16) word = bfloat16_from_float(near_one);
    if (type.type == ElementType::float32) std::memcpy(&word, &single, sizeof single);
    if (type.type == ElementType::float64) std::memcpy(&word, &precise, sizeof precise);
    std::memcpy(bytes.data() + i * type.bytes, &word, type.bytes);
  }
  return bytes;
}

/// The elements [first, first + count) of the reduction over all PEs of a team of `pes` PEs.
Bytes reduced(const Type& type, ReduceOp op, Pe pes, std::uint32_t round, std::size_t elements,
              std::size_t first, std::size_t count) {
  std::vector<Bytes> all;
  std::vector<const void*> sources;
  for (Pe pe = 0; pe < pes; ++pe) all.push_back(made_up(type, pe, round, elements));
  for (const Bytes& bytes : all) sources.push_back(bytes.data() + first * type.bytes);
  Bytes result(count * type.bytes);
  if (count != 0) host_kernel(type.type, op)(result.data(), sources, count);
  return result;
}

/// Symmetric source and target of one PE. The target is kArea after the source.
class Buffers {
 public:
  explicit Buffers(World& world)
      : world_(world), memory_(world.heap().allocate<std::uint8_t>(2 * kArea)) {}
  std::uint8_t* source() const { return memory_.data(); }
  std::uint8_t* target() const { return memory_.data() + kArea; }
  void set(std::uint8_t* at, const Bytes& bytes) const {
    if (!bytes.empty())
      world_.put(memory_.on(world_.my_pe()).subspan(offset(at), bytes.size()), bytes);
  }
  Bytes get(const std::uint8_t* at, std::size_t bytes) const {
    Bytes result(bytes);
    if (bytes != 0)
      world_.get(std::span(result), memory_.on(world_.my_pe()).subspan(offset(at), bytes));
    return result;
  }

 private:
  std::size_t offset(const std::uint8_t* at) const {
    return static_cast<std::size_t>(at - memory_.data());
  }
  World& world_;
  SymmetricArray<std::uint8_t> memory_;
};

void check_reduce(const Team& team, const TestStream& stream, const Buffers& buffers,
                  const Type& type, ReduceOp op, std::size_t count, std::uint32_t round,
                  bool in_place) {
  const StreamCollectives on(team, stream);
  buffers.set(buffers.source(), made_up(type, team.my_pe(), round, count));
  std::uint8_t* const target = in_place ? buffers.source() : buffers.target();
  on.reduce(type.type, op, target, buffers.source(), count);
  stream.synchronize();
  cuda::check_failures(team.world());
  ASSERT_EQ(buffers.get(target, count * type.bytes),
            reduced(type, op, team.size(), round, count, 0, count))
      << "type " << static_cast<int>(type.type) << ", op " << static_cast<int>(op) << ", " << count
      << " elements" << (in_place ? ", in place" : "");
}

TEST(StreamCollectives, ReduceEveryTypeWithEveryOperator) {
  SHOAL_NEEDS_GPU();
  run_gpu_pes(3, [](World& world, const TestStream& stream) {
    const Buffers buffers(world);
    std::uint32_t round = 0;
    for (const Type& type : kTypes)
      for (int op = 0; op < (type.is_integer ? 7 : 4); ++op)
        for (const std::size_t count : {std::size_t{37}, std::size_t{40'003}}) {
          ++round;
          check_reduce(world.team(), stream, buffers, type, static_cast<ReduceOp>(op), count, round,
                       round % 2 == 0);
        }
  });
}

void check_sizes(World& world, const TestStream& stream) {
  const Buffers buffers(world);
  std::uint32_t round = 0;
  for (const Type& type : {kTypes[9], kTypes[10]})
    for (const std::size_t count :
         {0, 1, 3, 4, 128, 1023, 4096, 16'384, 16'385, 65'536, 131'072, 200'001})
      for (const bool in_place : {false, true})
        check_reduce(world.team(), stream, buffers, type, ReduceOp::sum, count, ++round, in_place);
}

TEST(StreamCollectives, ReduceEverySize) {
  SHOAL_NEEDS_GPU();
  for (const Pe pes : {1, 2, 8}) run_gpu_pes(pes, check_sizes);
}

TEST(StreamCollectives, HaveTheSameBitsWithEveryAlgorithm) {
  SHOAL_NEEDS_GPU();
  for (const char* const algorithm : {"packets", "one_shot", "two_shot"}) {
    Settings settings = cuda_settings();
    settings.collective_algorithm = algorithm;
    run_gpu_pes(4, check_sizes, settings);
  }
}

TEST(StreamCollectives, ReduceScatterInAndOutOfPlace) {
  SHOAL_NEEDS_GPU();
  run_gpu_pes(4, [](World& world, const TestStream& stream) {
    const Buffers buffers(world);
    const StreamCollectives on(world.team(), stream);
    const auto n = static_cast<std::size_t>(world.n_pes());
    const auto me = static_cast<std::size_t>(world.my_pe());
    std::uint32_t round = 100;
    for (const Type& type : {kTypes[4], kTypes[9]})
      for (const std::size_t count : {1, 500, 30'001})
        for (const bool in_place : {false, true}) {
          ++round;
          buffers.set(buffers.source(), made_up(type, world.my_pe(), round, n * count));
          std::uint8_t* const target =
              in_place ? buffers.source() + me * count * type.bytes : buffers.target();
          on.reduce_scatter(type.type, ReduceOp::sum, target, buffers.source(), count);
          stream.synchronize();
          cuda::check_failures(world);
          ASSERT_EQ(
              buffers.get(target, count * type.bytes),
              reduced(type, ReduceOp::sum, world.n_pes(), round, n * count, me * count, count))
              << count << " elements" << (in_place ? ", in place" : "");
        }
  });
}

TEST(StreamCollectives, MoveBlocks) {
  SHOAL_NEEDS_GPU();
  run_gpu_pes(4, [](World& world, const TestStream& stream) {
    const Buffers buffers(world);
    const StreamCollectives on(world.team(), stream);
    const Type bytes_type = kTypes[1];
    const auto n = static_cast<std::size_t>(world.n_pes());
    const auto me = static_cast<std::size_t>(world.my_pe());
    std::uint32_t round = 200;
    for (const std::size_t bytes : {0, 1, 7, 8, 1000, 16'384, 100'001, 200'000}) {
      ++round;
      const auto part = [&](std::size_t pe, std::size_t first) {
        const Bytes all = made_up(bytes_type, static_cast<Pe>(pe), round, n * bytes);
        return Bytes(all.begin() + static_cast<std::ptrdiff_t>(first * bytes),
                     all.begin() + static_cast<std::ptrdiff_t>((first + 1) * bytes));
      };
      buffers.set(buffers.source(), made_up(bytes_type, world.my_pe(), round, n * bytes));
      const auto expect = [&](const std::function<Bytes(std::size_t)>& block, std::size_t blocks) {
        stream.synchronize();
        cuda::check_failures(world);
        for (std::size_t i = 0; i < blocks; ++i)
          ASSERT_EQ(buffers.get(buffers.target() + i * bytes, bytes), block(i))
              << bytes << " bytes, block " << i;
      };
      for (std::size_t root = 0; root < n; ++root) {
        on.broadcast_bytes(buffers.target(), buffers.source(), bytes, static_cast<Pe>(root));
        expect([&](std::size_t) { return part(root, 0); }, 1);
      }
      on.all_gather_bytes(buffers.target(), buffers.source(), bytes);
      expect([&](std::size_t pe) { return part(pe, 0); }, n);
      on.all_to_all_bytes(buffers.target(), buffers.source(), bytes);
      expect([&](std::size_t pe) { return part(pe, me); }, n);
      // In place: this PE's block of the target is the source.
      buffers.set(buffers.target() + me * bytes, part(me, 0));
      on.all_gather_bytes(buffers.target(), buffers.target() + me * bytes, bytes);
      expect([&](std::size_t pe) { return part(pe, 0); }, n);
    }
  });
}

TEST(StreamCollectives, AllToAllWithSizesOnTheGpu) {
  SHOAL_NEEDS_GPU();
  run_gpu_pes(4, [](World& world, const TestStream& stream) {
    const Buffers buffers(world);
    const auto n = static_cast<std::size_t>(world.n_pes());
    const auto me = static_cast<std::size_t>(world.my_pe());
    const auto words = world.heap().allocate<std::uint64_t>(5 * n);
    const Type bytes_type = kTypes[1];
    const auto size = [](std::size_t from, std::size_t to) { return 10'000 * from + 13 * to; };
    std::vector<std::uint64_t> values(5 * n);
    std::size_t sent = 0, arrived = 0;
    Bytes expected;
    for (std::size_t pe = 0; pe < n; ++pe) {
      values[pe] = size(me, pe);
      values[n + pe] = sent;
      values[2 * n + pe] = arrived;
      values[3 * n + pe] = size(pe, me);
      std::size_t before = 0;
      for (std::size_t to = 0; to < me; ++to) before += size(pe, to);
      const Bytes all = made_up(bytes_type, static_cast<Pe>(pe), 300, before + size(pe, me));
      expected.insert(expected.end(), all.begin() + static_cast<std::ptrdiff_t>(before), all.end());
      sent += size(me, pe);
      arrived += size(pe, me);
    }
    fill(world, words, values);
    buffers.set(buffers.source(), made_up(bytes_type, world.my_pe(), 300, sent));
    device::AllToAllV v;
    v.target = buffers.target();
    v.source = buffers.source();
    v.send_bytes = words.data();
    v.send_offsets = words.data() + n;
    v.receive_offsets = words.data() + 2 * n;
    v.receive_room = words.data() + 3 * n;
    v.received = words.data() + 4 * n;
    StreamCollectives(world.team(), stream).all_to_all_v_bytes(v);
    stream.synchronize();
    cuda::check_failures(world);
    EXPECT_EQ(buffers.get(buffers.target(), arrived), expected);
    const auto after = fetch(world, words);
    for (std::size_t pe = 0; pe < n; ++pe) EXPECT_EQ(after[4 * n + pe], size(pe, me));
    barrier(world.team());
  });
}

TEST(StreamCollectives, ReplayInGraphs) {
  SHOAL_NEEDS_GPU();
  run_gpu_pes(3, [](World& world, const TestStream& stream) {
    for (const std::size_t count : {std::size_t{64}, std::size_t{100'000}}) {
      const auto sums = world.heap().allocate<std::uint32_t>(count);
      const auto copies = world.heap().allocate<std::uint32_t>(count);
      fill(world, sums,
           std::vector<std::uint32_t>(count, static_cast<std::uint32_t>(world.my_pe() + 1)));
      const StreamCollectives on(world.team(), stream);
      barrier(world.team());
      const Graph graph(stream, [&] {
        on.reduce(ReduceOp::sum, sums.span(), sums.span());
        on.broadcast_bytes(copies.data(), sums.data(), count * sizeof(std::uint32_t), 2);
        on.barrier();
        on.reduce(ReduceOp::max, sums.span(), sums.span());
      });
      sync(world.team());  // the driver may wait for kernels while it makes a graph
      for (int i = 0; i < 20; ++i) graph.replay();
      stream.synchronize();
      cuda::check_failures(world);
      std::uint32_t expected = 6;  // 1 + 2 + 3, and three times as much with each replay; wraps
      for (int i = 1; i < 20; ++i) expected *= 3;
      EXPECT_EQ(fetch(world, copies), std::vector<std::uint32_t>(count, expected));
      barrier(world.team());
    }
  });
}

/// One PE is late in every collective; the others may not run ahead of it by more than one.
TEST(StreamCollectives, WaitForAPeThatIsLate) {
  SHOAL_NEEDS_GPU();
  run_gpu_pes(3, [](World& world, const TestStream& stream) {
    constexpr std::size_t kCount = 200;
    const auto values = world.heap().allocate<std::uint32_t>(kCount);
    const auto results = world.heap().allocate<std::uint32_t>(60 * kCount);
    fill(world, values, std::vector<std::uint32_t>(kCount, 1));
    const StreamCollectives on(world.team(), stream);
    barrier(world.team());
    for (std::uint32_t i = 0; i < 60; ++i) {
      if (static_cast<Pe>(i % 3) == world.my_pe())
        check_cuda(cudaLaunchHostFunc(
            stream, [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(2)); },
            nullptr));
      if (i % 2 == 0)
        on.broadcast_bytes(results.data() + i * kCount, values.data(),
                           kCount * sizeof(std::uint32_t), static_cast<Pe>(i % 3));
      else
        on.reduce(ReduceOp::sum, results.span().subspan(i * kCount, kCount), values.span());
      on.reduce(ReduceOp::max, values.span(), values.span());
    }
    stream.synchronize();
    cuda::check_failures(world);
    const auto got = fetch(world, results);
    for (std::size_t i = 0; i < got.size(); ++i)
      ASSERT_EQ(got[i], i / kCount % 2 == 0 ? 1U : 3U) << "operation " << i / kCount;
    barrier(world.team());
  });
}

TEST(StreamCollectives, NameThePeThatDoesNotCome) {
  SHOAL_NEEDS_GPU();
  for (const std::size_t count : {std::size_t{8}, std::size_t{200'000}})
    run_gpu_pes(
        2,
        [&](World& world, const TestStream& stream) {
          const auto values = world.heap().allocate<float>(count);
          barrier(world.team());
          if (world.my_pe() == 0) {
            StreamCollectives(world.team(), stream)
                .reduce(ReduceOp::sum, values.span(), values.span());
            stream.synchronize();
            const auto failure = cuda::take_failure(world);
            ASSERT_TRUE(failure.has_value());
            EXPECT_NE(failure->find("collective on the GPU timed out"), std::string::npos)
                << *failure;
            EXPECT_NE(failure->find("waiting for PE 1"), std::string::npos) << *failure;
          }
          // Not a barrier of the world: it has the timeout of the kernel and begins earlier.
          world.bootstrap().barrier("the end of a test");
        },
        settings_for_timeouts());
}

TEST(StreamCollectives, OfTeamsInAnotherOrder) {
  SHOAL_NEEDS_GPU();
  run_gpu_pes(4, [](World& world, const TestStream& stream) {
    const Buffers buffers(world);
    Team backwards = world.team().split_strided(3, -1, 4);
    Team odd = world.team().split_strided(1, 2, 2);
    for (std::uint32_t round = 0; round < 6; ++round) {
      check_reduce(backwards, stream, buffers, kTypes[10], ReduceOp::sum, 1000, round, false);
      if (odd.valid())
        check_reduce(odd, stream, buffers, kTypes[9], ReduceOp::prod, 40'000, round, true);
    }
    if (odd.valid()) odd.free();
    backwards.free();
  });
}

TEST(StreamCollectives, PartsOfTheGuide) {
  SHOAL_NEEDS_GPU();
  run_gpu_pes(3, [](World& world, const TestStream& of_test) {
    constexpr std::size_t count = 1000, bytes = 400;
    const auto values = world.heap().allocate<float>(count),
               sums = world.heap().allocate<float>(count);
    const auto mine = world.heap().allocate<float>(bytes / 4);
    const auto all = world.heap().allocate<float>(3 * bytes / 4);
    fill(world, values, std::vector<float>(count, static_cast<float>(world.my_pe() + 1)));
    fill(world, mine, std::vector<float>(bytes / 4, static_cast<float>(world.my_pe())));
    barrier(world.team());
    const cudaStream_t stream = of_test;
    // [collectives]
    const shoal::cuda::StreamCollectives on(world.team(), stream);
    on.reduce(shoal::ReduceOp::sum, sums.span(), values.span());  // one kernel
    on.all_gather(all.span(), mine.span());
    // [collectives]
    of_test.synchronize();
    EXPECT_EQ(fetch(world, sums), std::vector<float>(count, 6.0F));
    const auto gathered = fetch(world, all);
    for (std::size_t i = 0; i < gathered.size(); ++i)
      ASSERT_EQ(gathered[i], static_cast<float>(i / (bytes / 4))) << i;
    barrier(world.team());
  });
}

}  // namespace
}  // namespace shoal::test
