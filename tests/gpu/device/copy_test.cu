// SPDX-License-Identifier: Apache-2.0
// put and get in kernels, by thread, warp and block: every size, alignment and stride against the
// host's result; bytes outside the range stay as they are. Heaps are found through one window, or
// through a table: when some are out of reach, and with CUDA IPC.
#include <gtest/gtest.h>

#include "gpu/device/world.hpp"
#include "shoal/collective.hpp"
#include "shoal/device.hpp"

namespace shoal::test {
namespace {

using device::Block;
using device::Thread;
using device::Warp;

template <typename S>
struct ThreadsOf {
  static constexpr unsigned value = 96;  // no power of two
};
template <>
struct ThreadsOf<Thread> {
  static constexpr unsigned value = 1;
};
template <>
struct ThreadsOf<Warp> {
  static constexpr unsigned value = 32;
};

struct Case {
  std::size_t bytes, target_shift, source_shift;
};
constexpr std::size_t kRegion = 8192;

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const std::size_t bytes :
       {0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 64, 100, 255, 1000, 4097, 8000})
    for (const auto& [to, from] : std::vector<std::pair<std::size_t, std::size_t>>{
             {0, 0}, {1, 1}, {4, 4}, {8, 8}, {0, 8}, {12, 8}, {2, 0}, {1, 3}, {5, 13}, {15, 7}})
      all.push_back({bytes, to, from});
  return all;
}

std::uint8_t pattern(Pe pe, std::size_t i) {
  return static_cast<std::uint8_t>(1 + (i * 31 + static_cast<std::size_t>(pe) * 97 + i / 251) %
                                           255);  // never 0
}

/// Case i copies between region i of both sides.
template <typename S, bool kPut>
__global__ void copy_all(const __grid_constant__ device::World world, const Case* all, int count,
                         std::uint8_t* target, const std::uint8_t* source, Pe pe) {
  const S scope;
  for (int i = 0; i < count; ++i) {
    std::uint8_t* const to = target + i * kRegion + all[i].target_shift;
    const std::uint8_t* const from = source + all[i].source_shift;
    if (kPut) {
      put_bytes(scope, world, to, from, all[i].bytes, pe);
    } else {
      get_bytes(scope, world, to, from, all[i].bytes, pe);
    }
  }
}

template <typename S>
class DeviceCopy : public testing::Test {};
using Scopes = testing::Types<Thread, Warp, Block>;
TYPED_TEST_SUITE(DeviceCopy, Scopes);

template <typename S, bool kPut>
void check_copies(World& world, const TestStream& stream) {
  const std::vector<Case> all = cases();
  const auto list = world.heap().allocate<Case>(all.size());
  const auto source = world.heap().allocate<std::uint8_t>(kRegion + 16);
  const auto target = world.heap().allocate<std::uint8_t>(all.size() * kRegion);
  fill(world, list, all);
  std::vector<std::uint8_t> mine(source.size());
  for (std::size_t i = 0; i < mine.size(); ++i) mine[i] = pattern(world.my_pe(), i);
  fill(world, source, mine);
  barrier(world.team());

  device::launch_collective(world, stream, {.grid = 1, .block = ThreadsOf<S>::value},
                            copy_all<S, kPut>, cuda::device_world(world), list.data(),
                            static_cast<int>(all.size()), target.data(), source.data(),
                            right(world));
  stream.synchronize();
  barrier(world.team());

  const Pe from = kPut ? left(world) : right(world);
  const auto got = fetch(world, target);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto [bytes, to, shift] = all[i];
    std::size_t wrong = 0;
    for (std::size_t k = 0; k < kRegion; ++k) {
      const bool inside = k >= to && k < to + bytes;
      wrong += got[i * kRegion + k] != (inside ? pattern(from, k - to + shift) : 0);
    }
    EXPECT_EQ(wrong, 0u) << bytes << " bytes from " << shift << " to " << to << " (modulo 16)";
  }
  barrier(world.team());
}

TYPED_TEST(DeviceCopy, PutsEverySizeAndAlignmentSmall) {
  SHOAL_NEEDS_GPU();
  run_gpu_pes(2, check_copies<TypeParam, true>);
}
TYPED_TEST(DeviceCopy, GetsEverySizeAndAlignmentSmall) {
  SHOAL_NEEDS_GPU();
  run_gpu_pes(2, check_copies<TypeParam, false>);
}
TYPED_TEST(DeviceCopy, PutsAmongEightPes) {
  SHOAL_NEEDS_GPU();
  run_gpu_pes(8, check_copies<TypeParam, true>);
}

/// Typed, strided and single elements. `out` [6, 64] of this PE, `in` [4, 64] of the neighbour,
/// `back` [2, 64].
template <typename S>
__global__ void move_elements(const __grid_constant__ device::World world, double* in,
                              const double* out, double* back, Pe pe) {
  const S scope;
  put(scope, world, in, out, 50, pe);
  put_strided(scope, world, in + 64, 3, out, 2, 20, pe);
  get_strided(scope, world, back, 2, out, 5, 12, pe);
  if (scope.rank() == 0) {
    put_value(world, in + 128, out[63], pe);
    back[63] = device::get_value(world, out + 62, pe);
  }
  get(scope, world, back + 64, out, 40, pe);
}

template <typename S>
void check_elements(World& world, const TestStream& stream) {
  const auto in = world.heap().allocate<double>(256);
  const auto out = world.heap().allocate<double>(64);
  const auto back = world.heap().allocate<double>(128);
  const auto value = [](Pe pe, std::size_t i) {
    return 1000.0 * (pe + 1) + static_cast<double>(i);
  };
  std::vector<double> mine(64);
  for (std::size_t i = 0; i < mine.size(); ++i) mine[i] = value(world.my_pe(), i);
  fill(world, out, mine);
  barrier(world.team());
  device::launch_collective(world, stream, {.grid = 1, .block = ThreadsOf<S>::value},
                            move_elements<S>, cuda::device_world(world), in.data(), out.data(),
                            back.data(), right(world));
  stream.synchronize();
  barrier(world.team());

  std::vector<double> expected_in(256), expected_back(128);
  for (std::size_t i = 0; i < 50; ++i) expected_in[i] = value(left(world), i);
  for (std::size_t i = 0; i < 20; ++i) expected_in[64 + 3 * i] = value(left(world), 2 * i);
  expected_in[128] = value(left(world), 63);
  for (std::size_t i = 0; i < 12; ++i) expected_back[2 * i] = value(right(world), 5 * i);
  expected_back[63] = value(right(world), 62);
  for (std::size_t i = 0; i < 40; ++i) expected_back[64 + i] = value(right(world), i);
  EXPECT_EQ(fetch(world, in), expected_in);
  EXPECT_EQ(fetch(world, back), expected_back);
  barrier(world.team());
}

TYPED_TEST(DeviceCopy, MovesElementsAndStridesSmall) {
  SHOAL_NEEDS_GPU();
  run_gpu_pes(3, check_elements<TypeParam>);
}

template <typename S>
void check_all(World& world, const TestStream& stream) {
  check_copies<S, true>(world, stream);
  check_copies<S, false>(world, stream);
  check_elements<S>(world, stream);
}

TYPED_TEST(DeviceCopy, FindsHeapsByATable) {
  SHOAL_NEEDS_GPU();
  run_gpu_pes(
      4,
      [](World& world, const TestStream& stream) {
        ASSERT_NE(cuda::device_world(world).bases, nullptr);
        check_all<TypeParam>(world, stream);
      },
      settings_in_nodes());
}

SHOAL_PE_BODY(copies) {
  run_gpu_process(pe, [](World& world, const TestStream& stream) {
    check_all<Thread>(world, stream);
    check_all<Warp>(world, stream);
    check_all<Block>(world, stream);
  });
}

TEST(DeviceCopyAmongProcesses, ByTheUsualHandle) {
  SHOAL_NEEDS_GPU();
  run_gpu_processes("copies", "automatic");
}
TEST(DeviceCopyAmongProcesses, ByCudaIpc) {
  SHOAL_NEEDS_GPU();
  run_gpu_processes("copies", "ipc");
}

}  // namespace
}  // namespace shoal::test
