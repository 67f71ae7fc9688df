// SPDX-License-Identifier: Apache-2.0
// The choice of algorithms of collectives in GPU memory, the shares of PEs, and the shapes of
// kernels.
#include <gtest/gtest.h>

#include "collective/cuda/shape.hpp"
#include "shoal/device/detail/collective/plan.hpp"
#include "shoal/heap.hpp"

namespace shoal::test {
namespace {

using device::detail::choose_reduction;
using device::detail::Reduction;
using device::detail::Share;
using device::detail::share_of;

TEST(DevicePlan, ChoosesBySize) {
  const auto choose = [](std::uint64_t bytes, Pe pes, bool in_place) {
    return choose_reduction({bytes, pes, in_place, 1000, 9000});
  };
  EXPECT_EQ(choose(0, 4, false), Reduction::packets);
  EXPECT_EQ(choose(1000, 4, true), Reduction::packets);
  EXPECT_EQ(choose(1001, 4, false), Reduction::one_shot);
  EXPECT_EQ(choose(3000, 4, false), Reduction::one_shot);  // 9000 bytes from three PEs
  EXPECT_EQ(choose(3001, 4, false), Reduction::two_shot);
  EXPECT_EQ(choose(9000, 2, false), Reduction::one_shot);
  // In place, another PE may still read what would be overwritten.
  EXPECT_EQ(choose(1001, 4, true), Reduction::two_shot);
  EXPECT_EQ(choose(std::uint64_t{1} << 40, 1, false), Reduction::one_shot);
}

TEST(DevicePlan, SharesCoverAllElementsOnce) {
  for (const std::uint64_t element : {1, 2, 4, 8})
    for (const Pe pes : {1, 2, 3, 8, 72, 128})
      for (const std::uint64_t count : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{63},
                                        std::uint64_t{64}, std::uint64_t{65}, std::uint64_t{1000},
                                        std::uint64_t{12'345'677}, (std::uint64_t{1} << 42) + 7}) {
        std::uint64_t next = 0;
        for (Pe pe = 0; pe < pes; ++pe) {
          const Share share = share_of(count, element, pes, pe);
          if (share.count == 0) continue;
          ASSERT_EQ(share.begin, next) << count << " elements, PE " << pe << " of " << pes;
          EXPECT_EQ(share.begin * element % 64, 0u);
          next += share.count;
        }
        EXPECT_EQ(next, count) << count << " elements of " << element << " bytes, " << pes;
      }
}

TEST(DevicePlan, ShapesFitTheGpu) {
  using namespace collective::kernels;
  EXPECT_EQ(packet_shape(0, 1).blocks, 1u);
  EXPECT_EQ(packet_shape(0, 1).threads, 32u);
  EXPECT_EQ(packet_shape(1024, 1).threads, 128u);
  EXPECT_EQ(packet_shape(65'536, 1).blocks, 16u);
  EXPECT_EQ(packet_shape(std::uint64_t{1} << 40, 1).blocks, kMaxBlocks);
  EXPECT_EQ(bulk_shape(0, 1).blocks, 1u);
  EXPECT_EQ(bulk_shape(kBytesPerBlock + 1, 1).blocks, 2u);
  EXPECT_EQ(bulk_shape(std::uint64_t{1} << 40, 1).blocks, kMaxBlocks);
  EXPECT_EQ(bulk_shape(std::uint64_t{1} << 40, 8).blocks, kMaxBlocks / 8);
  EXPECT_EQ(bulk_shape(std::uint64_t{1} << 40, 100).blocks, 1u);
}

}  // namespace
}  // namespace shoal::test
