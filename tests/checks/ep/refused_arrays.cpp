// SPDX-License-Identifier: Apache-2.0
// refused_arrays.cpp: check_refused_arrays of caller_arrays.hpp.
#include <fmt/format.h>

#include "checks/ep/caller_array.hpp"
#include "checks/ep/caller_arrays.hpp"
#include "checks/ep/normal.hpp"
#include "shoal/detail/ep_layouts.hpp"
#include "support/expect_error.hpp"
#include "support/made_up.hpp"

namespace shoal::test {
namespace {

constexpr Code kBad = Code::invalid_argument;

/// A view that a call must refuse, and the text of its message.
struct Refusal {
  std::string text;
  TensorView view;
};

/// Variants of a valid array that a call must refuse. `name`: as messages name it; `place_name`: as
/// the message about its device does.
std::vector<Refusal> refusals(const std::string& name, const TensorView& good, bool any_strides,
                              const std::string& place_name) {
  std::vector<Refusal> list;
  const auto wrong = [&](const TensorView& view) {
    list.push_back({fmt::format("{} is {}; it must be", name, view.describe()), view});
  };
  TensorView view = good;
  view.dtype = good.dtype == DataType::int64 ? DataType::float64 : DataType::float16;
  wrong(view);
  view = good;
  view.shape[0] += 1;
  wrong(view);
  view = good;
  view.rank = 3 - good.rank;  // one dimension instead of two, and two instead of one
  if (view.rank == 2) view.shape[1] = view.strides[1] = 1;
  wrong(view);
  if (!any_strides) {
    view = good;
    view.strides[0] += 8;
    list.push_back({name + " is not contiguous", view});
  }
  view = good;
  const bool host = good.device.kind == DeviceKind::host;
  view.device = host ? Device{DeviceKind::cuda, 0} : Device{};
  list.push_back({place_name + (host ? " is on GPU" : " is on the host"), view});
  view = good;
  view.data = nullptr;
  list.push_back({name + " has no data", view});
  return list;
}

void check_refused_route(ep::Group& group, const EpCase& c, const TensorMover& tensors,
                         const TensorView& topk_idx) {
  const std::int64_t tokens = topk_idx.shape[0];
  const CallerArray in_rank(tensors, DataType::uint8, {tokens, c.ranks}),
      per_rank(tensors, DataType::int32, {c.ranks}),
      per_expert(tensors, DataType::int32, {c.experts}),
      per_node(tensors, DataType::int32, {c.nodes});
  const ep::RouteOptions good{.is_token_in_rank = in_rank.view(),
                              .tokens_per_rank = per_rank.view(),
                              .tokens_per_expert = per_expert.view(),
                              .tokens_per_node = per_node.view()};
  const auto refuse = [&](const char* name, TensorView ep::RouteOptions::* array) {
    const std::string full = fmt::format("RouteOptions.{}", name);
    for (const auto& [text, view] : refusals(full, good.*array, (good.*array).size() == 1, full)) {
      ep::RouteOptions bad = good;
      bad.*array = view;
      expect_error(kBad, text, [&] { group.route(topk_idx, bad); });
    }
  };
  refuse("is_token_in_rank", &ep::RouteOptions::is_token_in_rank);
  refuse("tokens_per_rank", &ep::RouteOptions::tokens_per_rank);
  refuse("tokens_per_expert", &ep::RouteOptions::tokens_per_expert);
  refuse("tokens_per_node", &ep::RouteOptions::tokens_per_node);
  group.synchronize();
  for (const CallerArray* const array : {&in_rank, &per_rank, &per_expert, &per_node})
    array->expect_untouched("an array of a refused route");
}

void check_refused_unpack(ep::Group& group, const TensorMover& tensors,
                          const ep::Dispatched& received, const ep::Dispatched& cached) {
  const CallerArray weights(tensors, DataType::float32, extents_of(*received.topk_weights)),
      topk_idx(tensors, DataType::int64, extents_of(*received.topk_idx)),
      tokens(tensors, DataType::int32, extents_of(*received.source_token));
  const ep::UnpackOptions good{
      .topk_idx = topk_idx.view(), .topk_weights = weights.view(), .source_token = tokens.view()};
  const auto refuse = [&](const char* name, TensorView ep::UnpackOptions::* array) {
    const std::string full = fmt::format("UnpackOptions.{}", name);
    for (const auto& [text, view] : refusals(full, good.*array, true, name)) {
      ep::UnpackOptions bad = good;
      bad.*array = view;
      expect_error(kBad, text, [&] { group.unpack(received, bad); });
    }
  };
  refuse("topk_idx", &ep::UnpackOptions::topk_idx);
  refuse("topk_weights", &ep::UnpackOptions::topk_weights);
  refuse("source_token", &ep::UnpackOptions::source_token);

  const auto lacks = [&](const char* name, const ep::Dispatched& from,
                         TensorView ep::UnpackOptions::* array, DataType dtype) {
    ep::UnpackOptions to = good;
    if (&from == &cached) to.topk_idx = to.source_token = {};
    const CallerArray absent(tensors, dtype, {1});
    to.*array = absent.view();
    expect_error(
        kBad, fmt::format("UnpackOptions.{} is given, and the dispatch has no such result", name),
        [&] { group.unpack(from, to); });
    absent.expect_untouched(name);
  };
  lacks("scales", received, &ep::UnpackOptions::scales, DataType::float32);
  lacks("topk_idx", cached, &ep::UnpackOptions::topk_idx, DataType::int64);
  lacks("source_token", cached, &ep::UnpackOptions::source_token, DataType::int32);
  lacks("expert_ends", cached, &ep::UnpackOptions::expert_ends, DataType::int32);
  lacks("source_ends", cached, &ep::UnpackOptions::source_ends, DataType::int32);
  expect_error(kBad, "handle is not of a dispatch of this group",
               [&] { group.unpack(ep::Dispatched{}, good); });
  ep::Dispatched without_rows = received;
  without_rows.x = {};
  expect_error(kBad, "UnpackOptions.clear_unused is set; the dispatch has no rank-major rows",
               [&] { group.unpack(without_rows, {.clear_unused = true}); });
  group.synchronize();
  for (const CallerArray* const array : {&weights, &topk_idx, &tokens})
    array->expect_untouched("an array of a refused unpack");
}

void check_refused_combine(ep::Group& group, const EpCase& c, const TensorMover& tensors,
                           const ep::Dispatched& got, std::int64_t tokens) {
  const std::int64_t rows = got.x.shape[0];
  const CallerArray topk_idx(tensors, DataType::int64, {rows, c.top_k}),
      topk_rows(tensors, DataType::int32, {rows, c.top_k}),
      weights(tensors, DataType::float32, {rows, c.top_k}),
      out(tensors, DataType::bfloat16, {tokens, c.hidden}),
      out_weights(tensors, DataType::float32, {tokens, c.top_k}),
      y(tensors, DataType::bfloat16, {rows, c.hidden});
  ep::CombineOptions good;
  good.weights = weights.view();
  good.out = out.view();
  good.out_weights = out_weights.view();
  const auto refused = [&](const std::string& text, const ep::CombineOptions& options,
                           const ep::Dispatched& of) {
    expect_error(kBad, text, [&] { group.combine(y.view(), of.handle, options); });
  };
  const auto refuse = [&](const char* name, const TensorView& valid, auto array) {
    const std::string full = fmt::format("CombineOptions.{}", name);
    for (const auto& [text, view] : refusals(full, valid, false, full)) {
      ep::CombineOptions bad = good;
      bad.*array = view;
      refused(text, bad, got);
    }
  };
  refuse("topk_idx", topk_idx.view(), &ep::CombineOptions::topk_idx);
  refuse("topk_rows", topk_rows.view(), &ep::CombineOptions::topk_rows);
  refuse("out", out.view(), &ep::CombineOptions::out);
  refuse("out_weights", out_weights.view(), &ep::CombineOptions::out_weights);

  ep::CombineOptions bad = good;
  bad.weights = {};
  refused("CombineOptions.out_weights without CombineOptions.weights", bad, got);
  bad = good;
  bad.topk_rows = topk_rows.view();  // the weights are then [rows of y]
  refused("CombineOptions.weights is float32", bad, got);
  bad = good;
  bad.out.data = out.view().as<std::byte>() + 8;
  if (y.view().device.kind == DeviceKind::cuda)
    refused("rows in GPU memory must start at a multiple of 16 bytes", bad, got);
  if (y.view().device.kind == DeviceKind::host) {
    Tensor outside = topk_rows.download();  // all -1
    outside.as<std::int32_t>()[1] = static_cast<std::int32_t>(rows);
    bad = {};
    bad.topk_rows = outside;
    bad.out = out.view();
    refused(fmt::format("CombineOptions.topk_rows[0, 1] is {}; allowed: -1 to {}", rows, rows - 1),
            bad, got);
    outside.as<std::int32_t>()[1] = -2;
    refused("CombineOptions.topk_rows[0, 1] is -2", bad, got);
  }
  group.synchronize();
  for (const CallerArray* const array : {&out, &out_weights})
    array->expect_untouched("an array of a refused combine");
}

}  // namespace

void check_row_outside(ep::Group& group, const EpCase& c, const TensorMover& tensors) {
  const Inputs host(c, group.team().my_pe());
  const Tensor x = tensors.upload(host.x);
  const ep::Dispatched got = group.dispatch(x, group.route(tensors.upload(host.topk_idx)));
  const std::int64_t rows = *got.rows, tokens = host.x.shape[0];
  expect(rows > 0, "a rank without rows names none");
  const CallerArray y(tensors, DataType::bfloat16, {rows, c.hidden}),
      none(tensors, DataType::int32, {rows, c.top_k});
  for (const auto& [slot, bad] :
       {std::pair<std::int64_t, std::int64_t>{1, rows}, {0, -2}, {c.top_k - 1, 0x7fffffff}}) {
    Tensor topk_rows = none.download();  // all -1
    topk_rows.as<std::int32_t>()[(rows - 1) * c.top_k + slot] = static_cast<std::int32_t>(bad);
    const ep::Combined combined =
        group.combine(y.view(), got.handle, {.topk_rows = tensors.upload(topk_rows)});
    expect_error(kBad,
                 fmt::format("combine: CombineOptions.topk_rows[{}, {}] is {}; allowed: -1 to {}",
                             rows - 1, slot, bad, rows - 1),
                 [&] { group.synchronize(); });
    group.synchronize();  // reported once
    expect_tensor("sums of no rows", tensors, combined.x,
                  std::vector<std::uint16_t>(tokens * c.hidden));
  }
}

void check_refused_arrays(ep::Group& group, const EpCase& c, const TensorMover& tensors) {
  const Inputs host(c, group.team().my_pe());
  const Tensor x = tensors.upload(host.x), topk_idx = tensors.upload(host.topk_idx),
               weights = tensors.upload(host.weights);
  check_refused_route(group, c, tensors, topk_idx);

  const ep::Routing routing = group.route(topk_idx);
  const ep::Dispatched got = group.dispatch(x, routing, {.weights = weights});
  expect(got.rows > 0, "a rank without rows refuses less");
  const ep::Dispatched cached = group.dispatch(x, got.handle, {.weights = weights});
  check_refused_unpack(group, tensors, got, cached);
  check_refused_combine(group, c, tensors, got, host.x.shape[0]);

  const ep::ExpertMajorDispatched by_expert =
      group.dispatch_expert_major(x, routing, {.weights = weights});
  const CallerArray idx(tensors, DataType::int64, {by_expert.x.shape[0], c.top_k}),
      rows(tensors, DataType::int32, {by_expert.x.shape[0], c.top_k});
  expect_error(kBad, "CombineOptions.topk_idx is for rank-major layouts",
               [&] { group.combine(by_expert.x, by_expert.handle, {.topk_idx = idx.view()}); });
  expect_error(kBad, "CombineOptions.topk_rows is for rank-major layouts",
               [&] { group.combine(by_expert.x, by_expert.handle, {.topk_rows = rows.view()}); });
  const ep::detail::AnyDispatchOptions every{{.weights = weights, .all_weights = true}, true};
  expect_error(kBad, "DispatchOptions.all_weights with an expert-major layout",
               [&] { (void)ep::detail::dispatch(group, x, routing, every); });
  expect_error(kBad, "DispatchOptions.all_weights with an expert-major layout",
               [&] { (void)ep::detail::dispatch(group, x, by_expert.handle, every); });
  expect_error(kBad, "dispatch: the handle is of an expert-major dispatch",
               [&] { (void)group.dispatch(x, by_expert.handle); });
  expect_error(kBad, "dispatch_expert_major: the handle is of a rank-major dispatch",
               [&] { (void)group.dispatch_expert_major(x, got.handle); });
}

}  // namespace shoal::test
