// SPDX-License-Identifier: Apache-2.0
// Large collectives on streams by NCCL, on the tests' own library: which of them it gets, their
// arguments, and the reasons why it cannot be used.
#include <gtest/gtest.h>

#ifdef SHOAL_WITH_CUDA

#include <cstdlib>
#include <vector>

#include "collective/nccl/engine.hpp"
#include "shoal/cuda_collective.hpp"
#include "support/built.hpp"
#include "support/cuda/fake_cuda.hpp"
#include "support/cuda/world_gpu.hpp"
#include "support/expect_error.hpp"

namespace shoal::test {
namespace {

using collective::nccl::Kind;
using cuda::ElementType;
using cuda::StreamCollectives;

constexpr std::size_t kFrom = 256;
constexpr std::size_t kCount = 64;  // int32, so kFrom bytes

Settings nccl_settings(const char* which) {
  Settings settings = gpu_world_settings();
  settings.collective_nccl = which;
  settings.collective_nccl_from = kFrom;
  settings.nccl_library = kFakeNccl;
  return settings;
}

cuda::Stream stream_of(World& world) {
  return reinterpret_cast<cuda::Stream>(world.state().cuda()->stream);
}

/// value(pe, i): element i of what PE `pe` sends.
std::int32_t value(std::size_t pe, std::size_t i) {
  return static_cast<std::int32_t>(1000 * pe + i);
}

TEST(Nccl, RunsLargeCollectives) {
  const FakeCuda fake({.gpus = 3});
  run_threads(3, nccl_settings("all"), [](World& world) {
    const auto n = static_cast<std::size_t>(world.n_pes());
    const auto me = static_cast<std::size_t>(world.my_pe());
    const auto source = world.heap().allocate<std::int32_t>(kCount * n);
    const auto target = world.heap().allocate<std::int32_t>(kCount * n);
    const StreamCollectives on(world.team(), stream_of(world));
    for (std::size_t i = 0; i < kCount * n; ++i) source[i] = value(me, i);
    on.broadcast(target.data(), source.data(), kFrom, 2);
    for (std::size_t i = 0; i < kCount; ++i) EXPECT_EQ(target[i], value(2, i));
    on.all_gather(target.data(), source.data(), kFrom);
    for (std::size_t pe = 0; pe < n; ++pe)
      for (std::size_t i = 0; i < kCount; ++i) EXPECT_EQ(target[pe * kCount + i], value(pe, i));
    on.all_to_all(target.data(), source.data(), kFrom);
    for (std::size_t pe = 0; pe < n; ++pe)
      for (std::size_t i = 0; i < kCount; ++i)
        EXPECT_EQ(target[pe * kCount + i], value(pe, me * kCount + i));
    const auto sum = [&](std::size_t i) { return value(0, i) + value(1, i) + value(2, i); };
    on.reduce<std::int32_t>(ReduceOp::sum, target.data(), source.data(), kCount);
    for (std::size_t i = 0; i < kCount; ++i) EXPECT_EQ(target[i], sum(i));
    on.reduce_scatter<std::int32_t>(ReduceOp::sum, target.data(), source.data(), kCount);
    for (std::size_t i = 0; i < kCount; ++i) EXPECT_EQ(target[i], sum(me * kCount + i));
    expect_error(Code::system, "ncclAllReduce: invalid argument", [&] {
      on.reduce<std::int32_t>(ReduceOp::max, target.data(), source.data(), kCount);
    });
  });
}

TEST(Nccl, GetsWhatTheSettingsSay) {
  Settings settings = nccl_settings("off");
  EXPECT_FALSE(collective::nccl::wanted(settings, Kind::move, kFrom));
  settings.collective_nccl = "moves";
  EXPECT_FALSE(collective::nccl::wanted(settings, Kind::move, kFrom - 1));
  EXPECT_TRUE(collective::nccl::wanted(settings, Kind::move, kFrom));
  EXPECT_FALSE(collective::nccl::wanted(settings, Kind::reduction, kFrom));
  settings.collective_nccl = "all";
  EXPECT_TRUE(collective::nccl::wanted(settings, Kind::reduction, kFrom));
  EXPECT_TRUE(collective::nccl::has(ElementType::bfloat16, ReduceOp::max));
  EXPECT_FALSE(collective::nccl::has(ElementType::int16, ReduceOp::sum));
  EXPECT_FALSE(collective::nccl::has(ElementType::int32, ReduceOp::bit_xor));
}

/// The reason why a broadcast by NCCL is refused, the same on both PEs.
void expect_refusal(const Settings& settings, int gpus, const char* text) {
  const FakeCuda fake({.gpus = gpus});
  run_threads(2, settings, [&](World& world) {
    const auto array = world.heap().allocate<std::int32_t>(kCount);
    const StreamCollectives on(world.team(), stream_of(world));
    expect_error(Code::unsupported, text,
                 [&] { on.broadcast(array.data(), array.data(), kFrom, 0); });
  });
}

TEST(Nccl, NeedsAGpuForEachPe) {
  expect_refusal(nccl_settings("moves"), 1, "2 PEs share a GPU");
}

TEST(Nccl, NeedsItsLibrary) {
  Settings settings = nccl_settings("moves");
  settings.nccl_library = "/nowhere/libnccl.so.2";
  expect_refusal(settings, 2, "/nowhere/libnccl.so.2 cannot be loaded");
}

TEST(Nccl, NeedsAVersionThatIsNotTooOld) {
  setenv("FAKE_NCCL_VERSION", "21804", 1);
  Settings settings = nccl_settings("moves");
  // Another name for the same file: results are kept by name.
  settings.nccl_library = std::string("/") + kFakeNccl;
  expect_refusal(settings, 2, "is NCCL 2.18; needed: 2.19 or later");
  unsetenv("FAKE_NCCL_VERSION");
}

}  // namespace
}  // namespace shoal::test

#endif
