// SPDX-License-Identifier: Apache-2.0
// Large collectives on streams by NCCL, on the tests' own library: which of them it gets, their
// arguments, and the reasons why it cannot be used.
#include <gtest/gtest.h>

#ifdef SHOAL_WITH_CUDA

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <vector>

#include "collective/nccl/engine.hpp"
#include "pe/memory.hpp"
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
  return reinterpret_cast<cuda::Stream>(state_of(world).memory().cuda()->stream);
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
    on.broadcast_bytes(target.data(), source.data(), kFrom, 2);
    for (std::size_t i = 0; i < kCount; ++i) EXPECT_EQ(target[i], value(2, i));
    on.all_gather_bytes(target.data(), source.data(), kFrom);
    for (std::size_t pe = 0; pe < n; ++pe)
      for (std::size_t i = 0; i < kCount; ++i) EXPECT_EQ(target[pe * kCount + i], value(pe, i));
    on.all_to_all_bytes(target.data(), source.data(), kFrom);
    for (std::size_t pe = 0; pe < n; ++pe)
      for (std::size_t i = 0; i < kCount; ++i)
        EXPECT_EQ(target[pe * kCount + i], value(pe, me * kCount + i));
    const auto sum = [&](std::size_t i) { return value(0, i) + value(1, i) + value(2, i); };
    on.reduce(ReduceOp::sum, target.span().first(kCount), source.span().first(kCount));
    for (std::size_t i = 0; i < kCount; ++i) EXPECT_EQ(target[i], sum(i));
    on.reduce_scatter(ReduceOp::sum, target.span().first(kCount), source.span());
    for (std::size_t i = 0; i < kCount; ++i) EXPECT_EQ(target[i], sum(me * kCount + i));
    expect_error(Code::system, "ncclAllReduce: invalid argument", [&] {
      on.reduce(ReduceOp::max, target.span().first(kCount), source.span().first(kCount));
    });
  });
}

TEST(Nccl, GetsWhatTheSettingsSay) {
  Settings settings = nccl_settings("off");
  const auto wanted = [&](Kind kind, std::size_t bytes, std::size_t pes = 2) {
    return collective::nccl::wanted(settings, kind, bytes, pes);
  };
  EXPECT_FALSE(wanted(Kind::move, kFrom));
  EXPECT_FALSE(wanted(Kind::broadcast, SIZE_MAX, 8));
  settings.collective_nccl = "moves";
  EXPECT_FALSE(wanted(Kind::move, kFrom - 1));
  EXPECT_TRUE(wanted(Kind::move, kFrom));
  EXPECT_TRUE(wanted(Kind::broadcast, kFrom));
  EXPECT_FALSE(wanted(Kind::reduction, kFrom));
  settings.collective_nccl = "all";
  EXPECT_TRUE(wanted(Kind::reduction, kFrom));
  // By default NCCL runs the collectives that it was measured to run faster.
  settings.collective_nccl = Settings().collective_nccl;
  constexpr std::size_t kMiB = std::size_t{1} << 20;
  EXPECT_TRUE(wanted(Kind::broadcast, kMiB, 4));
  EXPECT_FALSE(wanted(Kind::broadcast, kMiB - 1, 4));
  EXPECT_TRUE(wanted(Kind::reduction, 16 * kMiB, 4));
  EXPECT_FALSE(wanted(Kind::reduction, 16 * kMiB - 1, 4));
  EXPECT_FALSE(wanted(Kind::move, kMiB << 20, 4));
  EXPECT_FALSE(wanted(Kind::broadcast, kMiB << 20, 3));
  EXPECT_FALSE(wanted(Kind::reduction, kMiB << 20, 3));
  EXPECT_TRUE(collective::nccl::has(ElementType::bfloat16, ReduceOp::max));
  EXPECT_FALSE(collective::nccl::has(ElementType::int16, ReduceOp::sum));
  EXPECT_FALSE(collective::nccl::has(ElementType::int32, ReduceOp::bit_xor));
}

/// Runs large collectives of four PEs on `gpus` GPUs with the default settings. `by_nccl`: NCCL
/// must run the broadcast and the sum.
void run_by_default(const Settings& settings, int gpus, bool by_nccl) {
  const FakeCuda fake({.gpus = gpus});
  run_threads(4, settings, [&](World& world) {
    constexpr std::size_t kElements = (std::size_t{16} << 20) / sizeof(std::int32_t);
    const auto source = world.heap().allocate<std::int32_t>(kElements);
    const auto target = world.heap().allocate<std::int32_t>(kElements);
    const StreamCollectives on(world.team(), stream_of(world));
    const auto me = static_cast<std::size_t>(world.my_pe());
    for (std::size_t i = 0; i < kElements; ++i) source[i] = value(me, i % 1000);
    const auto run = [&](const std::function<void()>& call) {
      if (by_nccl) return call();
      // The kernels of Shoal cannot start: there is no GPU.
      expect_error(Code::system, "did not start on GPU", call);
    };
    run([&] { on.broadcast_bytes(target.data(), source.data(), std::size_t{1} << 20, 3); });
    if (by_nccl)
      for (std::size_t i = 0; i < 1000; ++i) EXPECT_EQ(target[i], value(3, i));
    run([&] { on.reduce(ReduceOp::sum, target.span(), source.span()); });
    if (by_nccl)
      for (std::size_t i = 0; i < 1000; ++i)
        EXPECT_EQ(target[kElements / 1000 * 1000 - 1000 + i],
                  value(0, i) + value(1, i) + value(2, i) + value(3, i));
    // Shoal's kernels, which the fake does not have, run these.
    expect_error(Code::system, "did not start on GPU",
                 [&] { on.all_gather_bytes(target.data(), source.data(), std::size_t{4} << 20); });
    expect_error(Code::system, "did not start on GPU",
                 [&] { on.broadcast_bytes(target.data(), source.data(), 4096, 3); });
    EXPECT_EQ(state_of(world.team()).engine != nullptr, by_nccl);
    barrier(world.team());
  });
}

Settings default_settings() {
  Settings settings = gpu_world_settings();
  settings.symmetric_size = std::size_t{64} << 20;
  settings.nccl_library = kFakeNccl;
  return settings;
}

TEST(Nccl, IsChosenByMeasurement) {
  run_by_default(default_settings(), 4, true);
}

TEST(Nccl, IsNotChosenWherePesShareAGpu) {
  run_by_default(default_settings(), 2, false);
}

TEST(Nccl, IsNotChosenWhereItCannotBeUsed) {
  Settings settings = default_settings();
  settings.nccl_library = "/nowhere/libnccl.so.2";
  run_by_default(settings, 4, false);
}

/// The reason why a broadcast by NCCL is refused, the same on both PEs.
void expect_refusal(const Settings& settings, int gpus, const char* text) {
  const FakeCuda fake({.gpus = gpus});
  run_threads(2, settings, [&](World& world) {
    const auto array = world.heap().allocate<std::int32_t>(kCount);
    const StreamCollectives on(world.team(), stream_of(world));
    expect_error(Code::unsupported, text,
                 [&] { on.broadcast_bytes(array.data(), array.data(), kFrom, 0); });
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
