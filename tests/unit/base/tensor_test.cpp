// SPDX-License-Identifier: Apache-2.0
// Views and owners of tensors: shapes, strides, sizes, names of types.
// @traits one_thread
#include "shoal/tensor.hpp"

#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <span>
#include <vector>

#include "shoal/error.hpp"
#include "support/expect_error.hpp"

namespace shoal {
namespace {

TEST(TensorView, IsRowMajor) {
  float data[24] = {};
  const TensorView view(data, DataType::float32, {2, 3, 4});
  EXPECT_EQ(view.size(), 24);
  EXPECT_EQ(view.bytes(), sizeof data);
  EXPECT_EQ(view.strides, (std::array<std::int64_t, 4>{12, 4, 1, 0}));
  EXPECT_TRUE(view.contiguous());
  EXPECT_EQ(view.describe(), "float32 [2, 3, 4]");
  EXPECT_EQ(view.as<float>(), data);
  EXPECT_FALSE(TensorView().defined());
}

TEST(TensorView, HasAShapeKnownAtRunTime) {
  float data[6] = {};
  const std::vector<std::int64_t> shape{2, 3};
  EXPECT_EQ(TensorView(data, DataType::float32, shape).describe(), "float32 [2, 3]");
  EXPECT_EQ(ConstTensorView(data, DataType::float32, std::span(shape).first(1)).describe(),
            "float32 [2]");
  EXPECT_EQ(Tensor::empty(DataType::int8, std::array<std::int64_t, 3>{4, 1, 5}).describe(),
            "int8 [4, 1, 5]");
  EXPECT_EQ(TensorLayout(DataType::int8, std::span<const std::int64_t>()).size(), 1) << "a scalar";
  EXPECT_EQ(TensorLayout(DataType::int8, {}).size(), 1);
  EXPECT_THROW(TensorView(data, DataType::int8, std::vector<std::int64_t>(5, 1)), Error);
}

TEST(TensorView, OfNothingIsUndefined) {
  EXPECT_EQ(TensorView().describe(), "undefined");
  EXPECT_EQ(ConstTensorView().describe(), "undefined");
}

TEST(TensorView, KnowsGaps) {
  TensorView view(nullptr, DataType::bfloat16, {4, 8});
  view.strides[0] = 16;
  EXPECT_FALSE(view.contiguous());
  view.shape[0] = 1;  // the stride of a single row does not matter
  EXPECT_TRUE(view.contiguous());
}

TEST(ConstTensorView, IsMadeOfViewsAndTensors) {
  const Tensor tensor = Tensor::empty(DataType::int32, {2, 3});
  const auto describe = [](const ConstTensorView& view) { return view.describe(); };
  EXPECT_EQ(describe(tensor), "int32 [2, 3]");
  TensorView strided = tensor;
  strided.strides[0] = 5;
  strided.device = {DeviceKind::cuda, 1};
  const ConstTensorView view = strided;
  EXPECT_EQ(view.data, tensor.data);
  EXPECT_EQ(view.as<int>(), tensor.as<int>());
  EXPECT_FALSE(view.contiguous());
  EXPECT_EQ(view.device, strided.device);
  const int words[6] = {};
  EXPECT_EQ(ConstTensorView(words, DataType::int32, {6}).as<int>(), words);
  EXPECT_FALSE(ConstTensorView().defined());
}

TEST(TensorView, RefusesBadShapes) {
  EXPECT_THROW(TensorView(nullptr, DataType::int8, {1, 1, 1, 1, 1}), Error);
  EXPECT_THROW(TensorView(nullptr, DataType::int8, {2, -1}), Error);
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  EXPECT_THROW(TensorView(nullptr, DataType::int8, {kMost, 2}), Error);
  EXPECT_THROW(TensorView(nullptr, DataType::float64, {kMost / 4}), Error) << "2^64 bytes";
  EXPECT_THROW(TensorView(nullptr, DataType::int8, {kMost, 4, 0}), Error) << "strides overflow";
  EXPECT_EQ(TensorView(nullptr, DataType::int8, {kMost}).bytes(), static_cast<std::size_t>(kMost));
  EXPECT_TRUE(TensorView(nullptr, DataType::int8, {3, 0, 4}).contiguous());
}

TEST(Tensor, OwnsItsMemory) {
  Tensor tensor = Tensor::empty(DataType::float16, {3, 5});
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.data) % 64, 0u);
  EXPECT_EQ(tensor.bytes(), 30u);
  const Tensor copy = tensor;
  tensor = Tensor();
  EXPECT_EQ(copy.owner.use_count(), 1);
  EXPECT_NE(Tensor::empty(DataType::int64, {0, 4}).data, nullptr);
}

// The sanitizers end the program instead.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(Tensor, NamesTheMemoryThatItDoesNotGet) {
  const auto take = [] {
    static_cast<void>(Tensor::empty(DataType::int8, {2, std::int64_t{1} << 47}));
  };
  test::expect_error(Code::exhausted, "int8 [2, 140737488355328]: 281474976710656 bytes", take);
}
#endif

TEST(DataType, HasSizeAndName) {
  for (int i = 0; i <= static_cast<int>(DataType::float64); ++i) {
    const auto dtype = static_cast<DataType>(i);
    EXPECT_EQ(size_of(dtype) == 0, dtype == DataType::none);
    EXPECT_NE(name_of(dtype), "unknown");
  }
}

}  // namespace
}  // namespace shoal
