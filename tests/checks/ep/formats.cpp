// SPDX-License-Identifier: Apache-2.0
#include "checks/ep/formats.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "checks/ep/encoded_rows.hpp"
#include "checks/ep/normal.hpp"
#include "shoal/collective.hpp"
#include "shoal/detail/ep_layouts.hpp"
#include "support/expect_error.hpp"
#include "support/made_up.hpp"

namespace shoal::test {
namespace {

/// True if the expert-major rows of every rank fit into the room of rank-major ones.
bool expert_major_rows_fit(const EpCase& c) {
  std::int64_t most = 0;
  for (std::int32_t rank = 0; rank < c.ranks; ++rank)
    most = std::max<std::int64_t>(most, expected_expert_major(c, rank, 1).first_row.back());
  return most <= c.ranks * c.max_tokens;
}

Tensor scale_of_all(float value) {
  Tensor scale = Tensor::empty(DataType::float32, {1});
  *scale.as<float>() = value;
  return scale;
}

/// The rows that a plain dispatch received, in host memory.
struct PlainRows {
  Tensor x, source_token, topk_weights, topk_idx;
  std::int64_t count;
  /// The global scales of the format: one for each expert of all ranks, or one for all of them.
  std::vector<float> scales{kGlobalScale};
  std::int64_t first_expert = 0;  ///< of this rank

  float scale_of(std::int64_t row) const {
    if (scales.size() == 1) return scales[0];
    return scales[static_cast<std::size_t>(first_expert + topk_idx.as<std::int64_t>()[row])];
  }
};

void check_row(ep::Quantize quantize, const TensorView& x, const TensorView& scales,
               const TensorView& words, std::int64_t row, std::span<const std::uint16_t> plain,
               float global) {
  const ep::EncodedRow wanted(quantize, plain, global);
  const auto at = [row](const TensorView& tensor) {
    return static_cast<const std::byte*>(tensor.data) +
           row * tensor.strides[0] * static_cast<std::int64_t>(size_of(tensor.dtype));
  };
  const char* const name = ep::detail::name_of(quantize);
  expect_same(fmt::format("codes of row {} in {}", row, name), at(x), wanted.codes.data(),
              wanted.codes.size(), 1);
  expect_same(fmt::format("scales of row {} in {}", row, name), at(scales), wanted.scales.data(),
              static_cast<std::size_t>(scales.shape[1]) * size_of(scales.dtype),
              size_of(scales.dtype));
  expect_same(fmt::format("unpacked scales of row {} in {}", row, name), at(words),
              wanted.scales.data(), wanted.scales.size() * 4, 4);
}

void check_rows(ep::Group& group, const EpCase& c, const TensorMover& move, ep::Quantize quantize,
                const ep::detail::AnyDispatched& got, const PlainRows& plain) {
  expect(got.x.shape[0] == plain.count, "a format changes the number of rows");
  expect(got.x.dtype == ep::detail::code_dtype(quantize) &&
             got.scales.dtype == ep::detail::scale_dtype(quantize) &&
             got.scales.shape[1] == ep::detail::RowFormat(quantize).groups(c.hidden),
         "rows are " + got.x.describe() + ", scales " + got.scales.describe());
  const bool bytes = ep::detail::has_byte_scales(quantize);
  const Tensor memory = move.upload(
      Tensor::empty(bytes ? DataType::int32 : DataType::float32,
                    {plain.count, ep::detail::RowFormat(quantize).scale_words(c.hidden, bytes)}));
  ep::detail::unpack(group, got, {.scales = memory});
  group.synchronize();  // throws what has failed
  const Tensor x = move.download(got.x), scales = move.download(got.scales),
               words = move.download(memory), weights = move.download(got.topk_weights);
  expect_same("topk_weights", weights.data, plain.topk_weights.data, weights.bytes(), 4);
  for (std::int64_t row = 0; row < plain.count; ++row)
    if (plain.source_token.as<std::int32_t>()[row] >= 0)
      check_row(quantize, x, scales, words, row,
                {plain.x.as<std::uint16_t>() + row * c.hidden, static_cast<std::size_t>(c.hidden)},
                plain.scale_of(row));
}

/// A global scale for each expert, where rows travel once for each.
void check_scales_of_experts(ep::Group& group, const EpCase& c, const TensorMover& move,
                             const Inputs& in, ep::detail::AnyDispatchOptions options,
                             const PlainRows& plain) {
  const Tensor x = move.upload(in.x);
  const ep::Routing routing = group.route(move.upload(in.topk_idx));
  Tensor scales = Tensor::empty(DataType::float32, {c.experts});
  std::ranges::copy(plain.scales, scales.as<float>());
  const Tensor given = move.upload(scales);
  options.quantize = ep::Quantize::nvfp4;
  options.global_scale = given;
  if (!options.expert_major || c.nodes > 1) {
    expect_error(options.expert_major ? Code::unsupported : Code::invalid_argument,
                 "global_scale has a scale per expert, and rows",
                 [&] { (void)ep::detail::dispatch(group, x, routing, options); });
    return;
  }
  if (!move.bulk_copies) {
    expect_error(Code::unsupported, "takes a GPU with bulk copies",
                 [&] { (void)ep::detail::dispatch(group, x, routing, options); });
    return;
  }
  ep::Handle handle;
  for (const bool cached : {false, true}) {
    const ep::detail::AnyDispatched got = cached ? ep::detail::dispatch(group, x, handle, options)
                                                 : ep::detail::dispatch(group, x, routing, options);
    handle = got.handle;
    check_rows(group, c, move, ep::Quantize::nvfp4, got, plain);
  }
}

}  // namespace

int check_normal_formats(ep::Group& group, const EpCase& c, const TensorMover& move) {
  const Inputs in(c, group.team().my_pe());
  const Tensor given = move.upload(in.x), weights = move.upload(in.weights),
               topk_idx = move.upload(in.topk_idx),
               global = move.upload(scale_of_all(kGlobalScale));
  const ep::Routing routing = group.route(topk_idx);
  int layouts = 0;
  for (const bool expert_major : {false, true}) {
    if (expert_major && !expert_major_rows_fit(c)) continue;
    ++layouts;
    ep::detail::AnyDispatchOptions options{{.weights = weights, .copy_out = true}, expert_major};
    PlainRows plain;
    {
      const ep::detail::AnyDispatched got = ep::detail::dispatch(group, given, routing, options);
      plain = {move.download(got.x), move.download(got.source_token),
               move.download(got.topk_weights), move.download(got.topk_idx), got.x.shape[0]};
      // The download of a host tensor is a view.
      if (plain.x.owner == nullptr)
        plain = {got.x, got.source_token, got.topk_weights, got.topk_idx, got.x.shape[0]};
    }
    plain.first_expert = c.first_of(group.team().my_pe());
    options.copy_out = false;
    for (const ep::Quantize quantize : quantizations_for(c.hidden)) {
      if (quantize == ep::Quantize::none) continue;
      options.quantize = quantize;
      options.global_scale =
          quantize == ep::Quantize::nvfp4 ? ConstTensorView(global) : ConstTensorView();
      ep::Handle handle;
      for (const bool cached : {false, true}) {
        options.copy_out = cached;
        const ep::detail::AnyDispatched got =
            cached ? ep::detail::dispatch(group, given, handle, options)
                   : ep::detail::dispatch(group, given, routing, options);
        handle = got.handle;
        check_rows(group, c, move, quantize, got, plain);
      }
    }
    if (c.hidden % 64 != 0 || c.experts < 2) continue;
    for (std::int32_t e = 0; e < c.experts; ++e)
      plain.scales.push_back(kGlobalScale * (1 + static_cast<float>(e * 5 % 7) / 3));
    plain.scales.erase(plain.scales.begin());
    check_scales_of_experts(group, c, move, in, options, plain);
  }
  return layouts;
}

void check_refused_formats(ep::Group& group, const EpCase& c, const TensorMover& move) {
  const std::int32_t me = group.team().my_pe();
  const Inputs in(c, me);
  const Tensor x = move.upload(in.x), topk_idx = move.upload(in.topk_idx);
  const ep::Routing routing = group.route(topk_idx);
  const auto refused = [&](Code code, const char* text, ep::Quantize quantize, float scale) {
    const Tensor global = move.upload(scale_of_all(scale));
    ep::DispatchOptions options{.quantize = quantize};
    if (quantize == ep::Quantize::nvfp4) options.global_scale = global;
    expect_error(code, text, [&] {
      (void)group.dispatch(x, routing, options);
      group.synchronize();
    });
    shoal::sync(group.team());
  };
  using enum ep::Quantize;
  refused(Code::mismatch, "call different operations", me == 0 ? fp8 : mxfp8, 1);
  refused(Code::mismatch, "call different operations", nvfp4, me == 0 ? 2 : 3);
  const auto refused_by_expert = [&](Code code, const char* text, float last) {
    Tensor scales = Tensor::empty(DataType::float32, {c.experts});
    std::fill_n(scales.as<float>(), c.experts, 3.0F);
    scales.as<float>()[c.experts - 1] = last;
    const Tensor global = move.upload(scales);
    expect_error(code, text, [&] {
      (void)group.dispatch_expert_major(x, routing, {.quantize = nvfp4, .global_scale = global});
      group.synchronize();
    });
    shoal::sync(group.team());
  };
  if (c.nodes == 1) {
    refused_by_expert(Code::mismatch, "call different operations", me == 0 ? 2 : 3);
    refused_by_expert(Code::invalid_argument, "global_scale is -1", -1);
  }
  for (const float bad : {0.0F, -1.0F, std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN()})
    refused(Code::invalid_argument, "global_scale", nvfp4, bad);
  check_normal_formats(group, c, move);
}

}  // namespace shoal::test
