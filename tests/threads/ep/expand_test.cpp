// SPDX-License-Identifier: Apache-2.0
// Group::expand on the host, and the arguments that it rejects.
#include <gtest/gtest.h>

#include <cstring>

#include "checks/ep/expand.hpp"
#include "checks/ep/normal.hpp"
#include "shoal/world.hpp"
#include "support/expect_error.hpp"

namespace shoal::test {
namespace {

/// A group of one rank with 8 local experts and top-k 4, and one of two ranks.
void with_group(const std::function<void(ep::Group&)>& body) {
  for (const int ranks : {1, 2})
    run_threads(ranks, ep_settings(), [&](World& world) {
      ep::Group group(world.team(),
                      {.max_tokens = 64, .hidden = 64, .top_k = 4, .experts = 8 * ranks});
      body(group);
      group.close();
    });
}

TEST(EpExpand, RowsWeightsAndScales) {
  with_group([](ep::Group& group) { check_small_expands(group, host_tensors()); });
}

TEST(EpExpand, RefusesBadArguments) {
  run_threads(1, ep_settings(), [](World& world) {
    ep::Group group(world.team(), {.max_tokens = 64, .hidden = 64, .top_k = 4, .experts = 8});
    alignas(16) static std::byte memory[1 << 16];
    const auto view = [](DataType dtype, std::initializer_list<std::int64_t> shape) {
      return TensorView(memory, dtype, shape);
    };
    ep::ExpandOptions good;
    good.x = view(DataType::bfloat16, {6, 64});
    good.topk_idx = view(DataType::int64, {6, 4});
    good.topk_rows = view(DataType::int32, {6, 4});
    good.tokens_per_expert = good.expert_ends = view(DataType::int32, {8});
    good.out = view(DataType::bfloat16, {24, 64});
    const auto refused = [&](const char* text, auto change) {
      ep::ExpandOptions wrong = good;
      change(wrong);
      expect_error(Code::invalid_argument, text, [&] { group.expand(wrong); });
    };
    refused("must have two dimensions", [&](auto& o) { o.x = view(DataType::bfloat16, {384}); });
    refused("out", [&](auto& o) { o.out = view(DataType::bfloat16, {24, 32}); });
    refused("out", [&](auto& o) { o.out = view(DataType::float16, {24, 64}); });
    refused("rows of 6 bytes", [&](auto& o) {
      o.x = view(DataType::bfloat16, {6, 3});
      o.out = view(DataType::bfloat16, {24, 3});
    });
    refused("topk_idx", [&](auto& o) { o.topk_idx = view(DataType::int64, {6, 3}); });
    refused("topk_idx", [&](auto& o) { o.topk_idx = view(DataType::int32, {6, 4}); });
    refused("topk_rows", [&](auto& o) { o.topk_rows = {}; });
    refused("ExpandOptions.tokens_per_expert",
            [&](auto& o) { o.tokens_per_expert = view(DataType::int32, {7}); });
    refused("expert_ends", [&](auto& o) { o.expert_ends = {}; });
    refused("ExpandOptions.rows", [&](auto& o) { o.rows = view(DataType::int32, {2}); });
    refused("block_ends", [&](auto& o) { o.block_ends = view(DataType::int64, {8}); });
    refused("weights and out_weights",
            [&](auto& o) { o.weights = view(DataType::float32, {6, 4}); });
    refused("out_weights", [&](auto& o) {
      o.weights = view(DataType::float32, {6, 4});
      o.out_weights = view(DataType::float32, {23});
    });
    refused("scales and out_scales", [&](auto& o) { o.scales = view(DataType::float32, {6, 2}); });
    const auto scales = [&](TensorView from, TensorView to) {
      refused("allowed: elements of four bytes", [&](auto& o) {
        o.scales = from;
        o.out_scales = to;
      });
    };
    scales(view(DataType::float32, {5, 2}), view(DataType::float32, {24, 2}));
    scales(view(DataType::float32, {6, 2}), view(DataType::float32, {24, 3}));
    scales(view(DataType::float32, {6, 2}), view(DataType::int32, {24, 2}));
    scales(view(DataType::float16, {6, 2}), view(DataType::float16, {24, 2}));
    TensorView apart = view(DataType::float32, {6, 2});
    apart.strides = {1, 6};
    scales(apart, view(DataType::float32, {24, 2}));
    const auto tiles = [&](const char* text, TensorView from, TensorView to) {
      refused(text, [&](auto& o) {
        o.scales = from;
        o.out_scales = to;
      });
    };
    tiles("must be uint8 or float8_e4m3 [1, 2, 512]", view(DataType::int32, {6, 2}),
          view(DataType::uint8, {2, 2, 512}));
    tiles("must be uint8 or float8_e4m3 [1, 2, 512]", view(DataType::int32, {6, 2}),
          view(DataType::int32, {1, 2, 512}));
    tiles("scales of one byte", view(DataType::float32, {6, 2}),
          view(DataType::uint8, {1, 2, 512}));
    alignas(4) static std::int32_t ends[8] = {128, 256, 300, 384, 384, 384, 384, 384};
    good.expert_ends = TensorView(ends, DataType::int32, {8});
    tiles("expert_ends[2] is 300; allowed: multiples of 128", view(DataType::int32, {6, 2}),
          view(DataType::uint8, {1, 2, 512}));
    group.close();
  });
}

TEST(EpExpand, NumbersOfAnotherLayout) {
  run_threads(1, ep_settings(), [](World& world) {
    ep::Group group(world.team(), {.max_tokens = 64, .hidden = 64, .top_k = 4, .experts = 8});
    check_foreign_numbers(group, host_tensors());
  });
}

/// Rows, and room for them, at addresses that are no multiples of 16 bytes, but of their elements.
TEST(EpExpand, RowsAnywhereInHostMemory) {
  with_group([](ep::Group& group) {
    TensorMover anywhere = host_tensors();
    std::size_t shift = 0;
    anywhere.upload = [&](const Tensor& host) {
      const std::size_t element = size_of(host.dtype);
      const std::size_t offset = (shift += 4) % 16 / element * element;
      const std::shared_ptr<std::byte[]> memory(new std::byte[host.bytes() + 16]);
      TensorView view = host;
      view.data = memory.get() + offset;
      std::memcpy(view.data, host.data, host.bytes());
      return Tensor(view, memory);
    };
    check_small_expands(group, anywhere);
  });
}

}  // namespace
}  // namespace shoal::test
