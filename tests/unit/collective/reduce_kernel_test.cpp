// SPDX-License-Identifier: Apache-2.0
// The arithmetic of reductions and their division among PEs, without communication.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "checks/collective/reference.hpp"
#include "collective/reduce_kernel.hpp"
#include "collective/reduce_plan.hpp"
#include "shoal/numeric.hpp"

namespace shoal::collective {
namespace {

using test::Bytes;

Bytes reduce(DataType dtype, ReduceOp op, const std::vector<Bytes>& sources) {
  std::vector<const void*> pointers;
  for (const Bytes& source : sources) pointers.push_back(source.data());
  Bytes target(sources[0].size());
  reduce_elements(dtype, op, target.data(), pointers, target.size() / size_of(dtype));
  return target;
}

TEST(ReduceKernel, AgreesWithTheNaiveOneForEveryTypeAndOperation) {
  for (DataType dtype : test::kReduceTypes) {
    for (ReduceOp op : test::kReduceOps) {
      ASSERT_EQ(supports(dtype, op), test::is_integer(dtype) || !test::is_bit_operation(op));
      if (!supports(dtype, op)) continue;
      for (std::size_t count : {0, 1, 7, 1023, 1024, 1025, 5000}) {
        for (std::size_t n : {1, 2, 5}) {
          std::vector<Bytes> sources;
          for (std::size_t i = 0; i < n; ++i)
            sources.push_back(test::random_elements(dtype, count, i + 1));
          EXPECT_EQ(reduce(dtype, op, sources), test::reduce_naively(dtype, op, sources))
              << name_of(op) << " of " << shoal::name_of(dtype) << ", " << count << " elements, "
              << n << " PEs";
        }
      }
    }
  }
}

TEST(ReduceKernel, KnowsNoOtherTypesOrOperations) {
  for (DataType dtype : {DataType::none, DataType::int8, DataType::uint8, DataType::float8_e4m3})
    for (ReduceOp op : test::kReduceOps) EXPECT_FALSE(supports(dtype, op));
  EXPECT_FALSE(supports(DataType::int32, static_cast<ReduceOp>(77)));
}

TEST(ReduceKernel, WritesIntoOneOfItsSources) {
  std::vector<Bytes> sources = {test::random_elements(DataType::float32, 3000, 1),
                                test::random_elements(DataType::float32, 3000, 2)};
  const Bytes expected = test::reduce_naively(DataType::float32, ReduceOp::sum, sources);
  const void* pointers[] = {sources[0].data(), sources[1].data()};
  reduce_elements(DataType::float32, ReduceOp::sum, sources[1].data(), pointers, 3000);
  EXPECT_EQ(sources[1], expected);
}

TEST(ReduceKernel, RoundsBfloat16OnceOnly) {
  // 1 + 3/4 of a unit in the last place: rounding after each quarter would lose all three.
  const float small = 0x1p-9f;
  std::vector<Bytes> sources;
  for (float value : {1.0f, small, small, small}) {
    const std::uint16_t bits = bfloat16_from_float(value);
    sources.emplace_back(sizeof bits);
    std::memcpy(sources.back().data(), &bits, sizeof bits);
  }
  std::uint16_t result;
  std::memcpy(&result, reduce(DataType::bfloat16, ReduceOp::sum, sources).data(), sizeof result);
  EXPECT_EQ(float_from_bfloat16(result), 1.0f + 0x1p-7f);
}

TEST(ReduceKernel, WrapsIntegersAround) {
  const std::int32_t big = std::numeric_limits<std::int32_t>::max();
  Bytes a(sizeof big);
  std::memcpy(a.data(), &big, sizeof big);
  std::int32_t result;
  std::memcpy(&result, reduce(DataType::int32, ReduceOp::sum, {a, a}).data(), sizeof result);
  EXPECT_EQ(result, -2);
}

TEST(ReduceKernel, PassesNanOnThroughMinAndMax) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (ReduceOp op : {ReduceOp::min, ReduceOp::max}) {
    for (std::size_t position = 0; position < 3; ++position) {
      std::vector<Bytes> sources;
      for (std::size_t i = 0; i < 3; ++i) {
        const float value = i == position ? nan : static_cast<float>(i);
        sources.emplace_back(sizeof value);
        std::memcpy(sources.back().data(), &value, sizeof value);
      }
      float result;
      std::memcpy(&result, reduce(DataType::float32, op, sources).data(), sizeof result);
      EXPECT_TRUE(std::isnan(result)) << name_of(op) << ", NaN at " << position;
    }
  }
}

TEST(ReducePlan, BlocksCoverEveryElementOnceAndStartOnCacheLines) {
  for (std::size_t element : {2, 4, 8}) {
    for (std::size_t n_pes : {1, 2, 3, 5, 8, 64}) {
      for (std::size_t count : {0, 1, 31, 32, 33, 1000, 4096, 100'003}) {
        std::size_t next = 0;
        for (std::size_t pe = 0; pe < n_pes; ++pe) {
          const Range block = reduction_block(count, element, n_pes, pe);
          if (block.count == 0) continue;
          EXPECT_EQ(block.begin, next);
          EXPECT_EQ(block.begin * element % 64, 0u);
          next = block.begin + block.count;
        }
        EXPECT_EQ(next, count) << element << " bytes, " << n_pes << " PEs";
      }
    }
  }
}

TEST(ReducePlan, DeliversLongReductionsInPieces) {
  constexpr std::size_t kRoom = std::size_t{512} << 10;
  EXPECT_EQ(delivered_piece(0, 4, 2, kRoom), 0u);
  EXPECT_EQ(delivered_piece(kRoom / 4 * 2, 4, 2, kRoom), kRoom / 4 * 2) << "blocks fit";
  EXPECT_EQ(delivered_piece(kRoom / 4 * 2 + 1, 4, 2, kRoom), kPieceBlockBytes / 4 * 2);
  EXPECT_EQ(delivered_piece(kRoom, 4, 2, kPieceBlockBytes - 1), 0u);
  for (const std::size_t element : {1, 2, 4, 8, 16, 32}) {
    const std::size_t piece = delivered_piece(std::size_t{1} << 30, element, 3, kRoom);
    for (std::size_t pe = 0; pe < 3; ++pe)
      EXPECT_EQ(reduction_block(piece, element, 3, pe).count * element, kPieceBlockBytes);
  }
}

TEST(ReducePlan, DividesLargeReductionsOnly) {
  EXPECT_FALSE(divides_reduction(1, 4, 8));
  EXPECT_FALSE(divides_reduction(kUndividedBytes / 4 / 8, 4, 8));
  EXPECT_TRUE(divides_reduction(kUndividedBytes / 4 / 8 + 1, 4, 8));
  constexpr std::size_t kPair = kUndividedPairBytes / 4;
  EXPECT_FALSE(divides_delivered_reduction(kPair, 4, 2, std::size_t{1} << 20));
  EXPECT_TRUE(divides_delivered_reduction(kPair + 1, 4, 2, std::size_t{1} << 20));
  EXPECT_TRUE(divides_delivered_reduction(kPair, 4, 2, kUndividedPairBytes - 1));
  EXPECT_TRUE(divides_delivered_reduction(kPair, 4, 3, std::size_t{1} << 20));
  EXPECT_FALSE(divides_reduction(std::size_t{1} << 30, 4, 1))
      << "a single PE has no other PE to share with";
}

}  // namespace
}  // namespace shoal::collective
