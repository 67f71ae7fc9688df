// SPDX-License-Identifier: Apache-2.0
#include "checks/ep/caller_arrays.hpp"

#include <fmt/format.h>
#include <array>
#include <optional>

#include <algorithm>
#include <cstring>
#include <limits>

#include "checks/ep/caller_array.hpp"
#include "checks/ep/normal.hpp"
#include "support/made_up.hpp"

namespace shoal::test {
namespace {

constexpr std::int64_t kScales = 3;
constexpr std::int32_t kAlignment = 4;

float scale_of(const EpCase& c, std::int32_t rank, std::int64_t token, std::int64_t i) {
  return made_up(mix(c.seed * 77 + (static_cast<std::uint64_t>(rank) << 40) +
                     (static_cast<std::uint64_t>(token) << 8) + static_cast<std::uint64_t>(i)));
}

/// The inputs of a dispatch, on the device of the group.
struct DeviceInputs {
  DeviceInputs(const EpCase& c, std::int32_t rank, const TensorMover& tensors) {
    const Inputs in(c, rank);
    x = uploaded(tensors, in.x);
    topk_idx = uploaded(tensors, in.topk_idx);
    weights = uploaded(tensors, in.weights);
    Tensor values = Tensor::empty(DataType::float32, {c.tokens(rank), kScales});
    for (std::int64_t t = 0; t < c.tokens(rank); ++t)
      for (std::int64_t i = 0; i < kScales; ++i)
        values.as<float>()[t * kScales + i] = scale_of(c, rank, t, i);
    scales = uploaded(tensors, values);
  }
  Tensor x, topk_idx, weights, scales;
};

std::string named(const char* what, const EpCase& c) {
  return fmt::format("{} ({})", what, c.describe());
}

}  // namespace

std::vector<EpCase> caller_array_cases(std::int32_t ranks) {
  std::vector<EpCase> cases;
  for (const Load load : {Load::random, Load::some_idle, Load::all_to_one, Load::none}) {
    cases.push_back(small_case(ranks, 41));
    cases.back().load = load;
  }
  cases.push_back(small_case(ranks, 43));  // more top-k slots than a warp has lanes
  cases.back().top_k = 40;
  cases.back().experts = ranks * 20;
  cases.back().max_tokens = 9;
  return cases;
}

ep::GroupOptions caller_array_options(const EpCase& c) {
  ep::GroupOptions options = options_for(c);
  options.low_latency_max_tokens = 0;
  options.max_scales = kScales;
  // Room for expert-major results.
  options.max_tokens =
      c.max_tokens * std::min(c.top_k, c.local_experts()) + c.local_experts() * (kAlignment - 1);
  options.live_results = 3;
  return options;
}

namespace {

/// Routing::is_token_in_rank of the first and the last tokens.
void check_answers(const ep::Routing& routing, const EpCase& c,
                   const std::vector<std::uint8_t>& in_rank) {
  constexpr std::int64_t kTokens = 3;
  for (std::int64_t t = 0; t < routing.tokens(); ++t)
    for (std::int32_t rank = 0; rank < c.ranks; ++rank) {
      if (t >= kTokens && t < routing.tokens() - kTokens) continue;
      if (routing.is_token_in_rank(t, rank) != (in_rank[t * c.ranks + rank] != 0))
        throw std::runtime_error(
            fmt::format("is_token_in_rank({}, {}) is wrong ({})", t, rank, c.describe()));
    }
}

}  // namespace

void check_route_arrays(ep::Group& group, const EpCase& c, const TensorMover& tensors) {
  const std::int32_t me = group.team().my_pe();
  const auto topk = c.topk(me);
  std::vector<std::uint8_t> in_rank(c.tokens(me) * c.ranks);
  std::vector<std::int32_t> per_rank(c.ranks), per_expert(c.experts), per_node(c.nodes);
  for (std::int64_t t = 0; t < c.tokens(me); ++t) {
    const auto ranks = ranks_of(c, topk.data() + t * c.top_k);
    for (const std::int32_t rank : ranks) {
      in_rank[t * c.ranks + rank] = 1;
      ++per_rank[rank];
    }
    for (const std::int32_t node : nodes_of(c, ranks)) ++per_node[node];
  }
  for (const std::int64_t expert : topk)
    if (expert >= 0) ++per_expert[expert];

  const DeviceInputs in(c, me, tensors);
  for (int subset = 0; subset < 16; ++subset) {
    const CallerArray is_token_in_rank(tensors, DataType::uint8, {c.tokens(me), c.ranks}),
        tokens_per_rank(tensors, DataType::int32, {c.ranks}),
        tokens_per_expert(tensors, DataType::int32, {c.experts}),
        tokens_per_node(tensors, DataType::int32, {c.nodes});
    const auto given = [&](int bit, const CallerArray& array) {
      return (subset >> bit & 1) != 0 ? array.view() : TensorView{};
    };
    const ep::Routing routing =
        group.route(in.topk_idx, {.is_token_in_rank = given(0, is_token_in_rank),
                                  .tokens_per_rank = given(1, tokens_per_rank),
                                  .tokens_per_expert = given(2, tokens_per_expert),
                                  .tokens_per_node = given(3, tokens_per_node)});
    group.synchronize();
    is_token_in_rank.expect_values(named("is_token_in_rank", c), in_rank, (subset & 1) != 0);
    tokens_per_rank.expect_values(named("tokens_per_rank", c), per_rank, (subset & 2) != 0);
    tokens_per_expert.expect_values(named("tokens_per_expert", c), per_expert, (subset & 4) != 0);
    tokens_per_node.expect_values(named("tokens_per_node", c), per_node, (subset & 8) != 0);
    check_answers(routing, c, in_rank);
  }
}

namespace {

/// The arrays of an UnpackOptions, each with the result that it takes.
template <typename Result>
auto unpack_fields_of(const Result& got) {
  struct Field {
    const char* name;
    std::optional<Tensor> result;
    TensorView ep::UnpackOptions::* array;
  };
  using To = ep::UnpackOptions;
  const auto counts = got.device_counts.value_or(ep::ReceivedCounts());
  std::optional<Tensor> per_expert;
  if (got.device_counts) per_expert = counts.tokens_per_expert;
  return std::array<Field, 7>{{{"scales", got.scales, &To::scales},
                               {"topk_idx", got.topk_idx, &To::topk_idx},
                               {"topk_weights", got.topk_weights, &To::topk_weights},
                               {"source_token", got.source_token, &To::source_token},
                               {"tokens_per_expert", per_expert, &To::tokens_per_expert},
                               {"expert_ends", counts.expert_ends, &To::expert_ends},
                               {"source_ends", counts.source_ends, &To::source_ends}}};
}

/// Unpacks the fields of which `chosen` has the bits to arrays of these strides. They must hold the
/// elements of the fields, and nothing outside them may be written.
template <typename Result>
void unpack_fields(ep::Group& group, const Result& got, unsigned chosen, Strides strides,
                   const TensorMover& tensors, const EpCase& c) {
  const auto fields = unpack_fields_of(got);
  std::vector<CallerArray> arrays;
  ep::UnpackOptions to;
  for (std::size_t f = 0; f < fields.size(); ++f) {
    if ((chosen >> f & 1) == 0 || !fields[f].result) continue;
    const Tensor& field = *fields[f].result;
    arrays.emplace_back(tensors, field.dtype, extents_of(field), strides);
    to.*fields[f].array = arrays.back().view();
  }
  group.unpack(got, to);
  group.synchronize();
  auto array = arrays.begin();
  for (std::size_t f = 0; f < fields.size(); ++f)
    if ((chosen >> f & 1) != 0 && fields[f].result)
      (array++)->expect_elements(named(fields[f].name, c), *fields[f].result);
}

template <typename Result>
void unpack_everyhow(ep::Group& group, const Result& got, const TensorMover& tensors,
                     const EpCase& c) {
  const std::size_t fields = unpack_fields_of(got).size();
  for (const Strides strides :
       {Strides::contiguous, Strides::padded, Strides::columns, Strides::sparse})
    unpack_fields(group, got, (1U << fields) - 1, strides, tensors, c);
  for (std::size_t f = 0; f < fields; ++f)
    unpack_fields(group, got, 1U << f, Strides::contiguous, tensors, c);
  unpack_fields(group, got, 0, Strides::contiguous, tensors, c);
}

/// The unpacked topk_idx, weights, source tokens and scales of a rank-major result against the
/// reference.
void check_unpacked_values(ep::Group& group, const ep::Dispatched& got, const TensorMover& tensors,
                           const EpCase& c) {
  const ExpectedDispatch wanted = expected_dispatch(c, group.team().my_pe());
  const auto rows = static_cast<std::int64_t>(wanted.source_token.size());
  const std::int64_t all = got.x.shape[0];
  const CallerArray idx(tensors, DataType::int64, {all, c.top_k}),
      weights(tensors, DataType::float32, {all, c.top_k}), tokens(tensors, DataType::int32, {all});
  group.unpack(
      got, {.topk_idx = idx.view(), .topk_weights = weights.view(), .source_token = tokens.view()});
  group.synchronize();
  const auto same = [&](const char* what, const CallerArray& array, const auto& values) {
    if (values.empty()) return;
    const Tensor values_here = array.download();
    expect_same(named(what, c), values_here.data, values.data(), values.size() * sizeof(values[0]),
                sizeof(values[0]));
  };
  same("unpacked topk_idx", idx, wanted.topk_idx);
  same("unpacked topk_weights", weights, wanted.weights);
  same("unpacked source_token", tokens, wanted.source_token);
  const Tensor all_idx = idx.download();
  for (std::int64_t i = rows * c.top_k; i < all * c.top_k; ++i)
    expect(all_idx.as<std::int64_t>()[i] == -1, named("a row without a token has a topk_idx", c));

  std::vector<float> scales;
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t i = 0; i < kScales; ++i)
      scales.push_back(scale_of(c, wanted.source_rank[row], wanted.source_token[row], i));
  const CallerArray of_rows(tensors, DataType::float32, {all, kScales});
  group.unpack(got, {.scales = of_rows.view()});
  group.synchronize();
  same("unpacked scales", of_rows, scales);
}

/// Rows without a token become 0; the others stay as they are.
void check_cleared_rows(ep::Group& group, const ep::Dispatched& got, const TensorMover& tensors,
                        const EpCase& c) {
  const Tensor dirty = tensors.download(got.x);
  const std::size_t used = expected_dispatch(c, group.team().my_pe()).source_token.size() *
                           static_cast<std::size_t>(got.x.shape[1]) * size_of(got.x.dtype);
  std::memset(dirty.as<std::byte>() + used, 0x41, got.x.bytes() - used);
  tensors.write(got.x, dirty);
  group.unpack(got, {.clear_unused = true});
  group.synchronize();
  std::memset(dirty.as<std::byte>() + used, 0, got.x.bytes() - used);
  const Tensor after = tensors.download(got.x);
  expect_same(named("rows other than those that are cleared", c), after.data, dirty.data,
              got.x.bytes(), 1);
}

}  // namespace

void check_unpack(ep::Group& group, const EpCase& c, const TensorMover& tensors) {
  const DeviceInputs in(c, group.team().my_pe(), tensors);
  const ep::Routing routing = group.route(in.topk_idx);
  for (const std::int64_t worst : {std::int64_t{0}, c.ranks * c.max_tokens}) {
    const ep::Dispatched got = group.dispatch(
        in.x, routing, {.weights = in.weights, .scales = in.scales, .worst_case_rows = worst});
    check_unpacked_values(group, got, tensors, c);
    unpack_everyhow(group, got, tensors, c);
    const ep::Dispatched again =
        group.dispatch(in.x, got.handle, {.weights = in.weights, .worst_case_rows = worst});
    unpack_everyhow(group, again, tensors, c);
    check_cleared_rows(group, again, tensors, c);
  }
  const ep::Dispatched bare = group.dispatch(in.x, routing);
  unpack_everyhow(group, bare, tensors, c);
  const ep::ExpertMajorDispatched by_expert = group.dispatch_expert_major(
      in.x, routing, {.weights = in.weights, .scales = in.scales, .alignment = kAlignment});
  unpack_everyhow(group, by_expert, tensors, c);
}

namespace {

/// The weights of all top-k slots of each received row, from the source's own.
std::vector<float> all_weights_of(const EpCase& c, std::int32_t rank) {
  const ExpectedDispatch wanted = expected_dispatch(c, rank);
  std::vector<std::vector<float>> sent;
  for (std::int32_t source = 0; source < c.ranks; ++source) sent.push_back(c.weights(source));
  std::vector<float> values;
  for (std::size_t row = 0; row < wanted.source_token.size(); ++row)
    for (std::int32_t k = 0; k < c.top_k; ++k)
      values.push_back(sent[wanted.source_rank[row]][wanted.source_token[row] * c.top_k + k]);
  return values;
}

/// The weights that return to this rank: of the slots that have an expert.
std::vector<float> returned_weights(const EpCase& c, std::int32_t rank) {
  std::vector<float> values = c.weights(rank);
  const auto topk = c.topk(rank);
  for (std::size_t i = 0; i < values.size(); ++i)
    if (topk[i] < 0) values[i] = 0;
  return values;
}

}  // namespace

void check_all_weights(ep::Group& group, const EpCase& c, const TensorMover& tensors) {
  const std::int32_t me = group.team().my_pe();
  const DeviceInputs in(c, me, tensors);
  const std::vector<float> wanted = all_weights_of(c, me);
  const ep::Dispatched first =
      group.dispatch(in.x, group.route(in.topk_idx), {.weights = in.weights, .all_weights = true});
  const ep::Dispatched cached =
      group.dispatch(in.x, first.handle, {.weights = in.weights, .all_weights = true});
  for (const ep::Dispatched* const got : {&first, &cached}) {
    const CallerArray unpacked(tensors, DataType::float32, {got->x.shape[0], c.top_k});
    group.unpack(*got, {.topk_weights = unpacked.view()});
    const auto combine = [&](const TensorView& topk_idx) {
      return *group.combine(got->x, got->handle, {.weights = unpacked.view(), .topk_idx = topk_idx})
                  .topk_weights;
    };
    const CallerArray idx(tensors, DataType::int64, {first.x.shape[0], c.top_k});
    group.unpack(first, {.topk_idx = idx.view()});
    const Tensor sums = combine(idx.view());
    group.synchronize();
    unpacked.expect_values(named("weights of all top-k slots", c), wanted, true);
    expect_tensor(named("returned weights", c), tensors, sums, returned_weights(c, me));
  }
}

namespace {

/// Expert output of single experts: bfloat16, a function of the expert and the token.
std::uint16_t slot_output(const EpCase& c, std::int64_t expert, std::int32_t source,
                          std::int64_t token, std::int64_t channel) {
  return bf16_of(made_up(mix(mix(c.seed + static_cast<std::uint64_t>(expert * 256 + source)) +
                             (static_cast<std::uint64_t>(token) << 20) +
                             static_cast<std::uint64_t>(channel))));
}

/// The sum of a token's rows at `rank`: float32, ascending top-k slots, rounded once.
std::uint16_t rank_output(const EpCase& c, std::int32_t rank, std::int32_t source,
                          std::int64_t token, const std::int64_t* experts, std::int64_t channel) {
  float sum = 0;
  for (std::int32_t k = 0; k < c.top_k; ++k)
    if (experts[k] >= 0 && c.rank_of(experts[k]) == rank)
      sum += float_of_bf16(slot_output(c, experts[k], source, token, channel));
  return bf16_of(sum);
}

/// The sums that combine must return to `rank`.
std::vector<std::uint16_t> expected_sums(const EpCase& c, std::int32_t rank) {
  const auto topk = c.topk(rank);
  std::vector<std::uint16_t> sums(c.tokens(rank) * c.hidden);
  for (std::int64_t t = 0; t < c.tokens(rank); ++t) {
    const std::int64_t* const experts = topk.data() + t * c.top_k;
    const auto owners = ranks_of(c, experts);
    for (std::int64_t ch = 0; ch < c.hidden; ++ch) {
      float sum = 0;
      for (const std::int32_t node : nodes_of(c, owners)) {
        float of_node = 0;
        for (const std::int32_t owner : owners)
          if (c.node_of(owner) == node)
            (c.nodes == 1 ? sum : of_node) +=
                float_of_bf16(rank_output(c, owner, rank, t, experts, ch));
        if (c.nodes > 1) sum += float_of_bf16(bf16_of(of_node));
      }
      sums[t * c.hidden + ch] = bf16_of(sum);
    }
  }
  return sums;
}

/// The expert output of a rank for its rows, in the forms that combine takes.
struct OutputForms {
  OutputForms(const EpCase& c, std::int32_t rank, const TensorMover& tensors);

  Tensor rows;             ///< [rows, hidden]
  Tensor weights;          ///< [rows, top_k]; 0 where topk_idx is -1
  Tensor topk_idx;         ///< [rows, top_k]
  Tensor spoiled_weights;  ///< as `weights`, but other values where topk_idx is -1
  Tensor slots;         ///< [more than rows * top_k, hidden]: the expert-major rows, in any order
  Tensor topk_rows;     ///< [rows, top_k]: where they are in `slots`
  Tensor slot_weights;  ///< one for each row of `slots`
};

OutputForms::OutputForms(const EpCase& c, std::int32_t rank, const TensorMover& tensors) {
  const ExpectedDispatch got = expected_dispatch(c, rank);
  const auto count = static_cast<std::int64_t>(got.source_token.size());
  std::vector<std::vector<std::int64_t>> topk;
  for (std::int32_t source = 0; source < c.ranks; ++source) topk.push_back(c.topk(source));

  std::vector<std::int64_t> used;  // elements of topk_rows that have a row
  for (std::int64_t i = 0; i < count * c.top_k; ++i)
    if (got.topk_idx[i] >= 0) used.push_back(i);
  std::sort(used.begin(), used.end(), [&](std::int64_t a, std::int64_t b) {
    return mix(c.seed + static_cast<std::uint64_t>(a)) <
           mix(c.seed + static_cast<std::uint64_t>(b));
  });
  // Every third row of `slots` is named by no element.
  const auto slot_rows = static_cast<std::int64_t>(used.size() + used.size() / 2);
  rows = Tensor::empty(DataType::bfloat16, {count, c.hidden});
  weights = Tensor::empty(DataType::float32, {count, c.top_k});
  spoiled_weights = Tensor::empty(DataType::float32, {count, c.top_k});
  topk_idx = Tensor::empty(DataType::int64, {count, c.top_k});
  topk_rows = Tensor::empty(DataType::int32, {count, c.top_k});
  slots = Tensor::empty(DataType::bfloat16, {slot_rows, c.hidden});
  slot_weights = Tensor::empty(DataType::float32, {slot_rows});
  const auto fill_with_nan = [](const Tensor& tensor) {
    if (tensor.bytes() > 0) std::memset(tensor.data, 0xff, tensor.bytes());
  };
  fill_with_nan(slots);
  fill_with_nan(slot_weights);
  fill_with_nan(topk_rows);  // -1
  for (std::int64_t row = 0; row < count; ++row) {
    const std::int32_t source = got.source_rank[row];
    const std::int64_t token = got.source_token[row];
    for (std::int64_t ch = 0; ch < c.hidden; ++ch)
      rows.as<std::uint16_t>()[row * c.hidden + ch] =
          rank_output(c, rank, source, token, topk[source].data() + token * c.top_k, ch);
    for (std::int64_t i = row * c.top_k; i < (row + 1) * c.top_k; ++i) {
      topk_idx.as<std::int64_t>()[i] = got.topk_idx[i];
      weights.as<float>()[i] = got.weights[i];
      spoiled_weights.as<float>()[i] =
          got.topk_idx[i] >= 0 ? got.weights[i] : std::numeric_limits<float>::quiet_NaN();
    }
  }
  for (std::size_t u = 0; u < used.size(); ++u) {
    const std::int64_t i = used[u], row = i / c.top_k;
    const auto at = static_cast<std::int64_t>(u + u / 2);
    topk_rows.as<std::int32_t>()[i] = static_cast<std::int32_t>(at);
    slot_weights.as<float>()[at] = got.weights[i];
    for (std::int64_t ch = 0; ch < c.hidden; ++ch)
      slots.as<std::uint16_t>()[at * c.hidden + ch] = slot_output(
          c, c.first_of(rank) + got.topk_idx[i], got.source_rank[row], got.source_token[row], ch);
  }
  for (Tensor* const tensor :
       {&rows, &weights, &topk_idx, &spoiled_weights, &slots, &topk_rows, &slot_weights})
    *tensor = uploaded(tensors, *tensor);
}

}  // namespace

void check_combine_arrays(ep::Group& group, const EpCase& c, const TensorMover& tensors) {
  const std::int32_t me = group.team().my_pe();
  const DeviceInputs in(c, me, tensors);
  const ep::Dispatched got = group.dispatch(in.x, group.route(in.topk_idx));
  const OutputForms forms(c, me, tensors);
  const auto sums = expected_sums(c, me);
  const auto weights = returned_weights(c, me);
  for (int subset = 0; subset < 32; ++subset) {
    const bool idx = (subset & 1) != 0, rows = (subset & 2) != 0, weighted = (subset & 4) != 0,
               out = (subset & 8) != 0, out_weights = (subset & 16) != 0;
    if (out_weights && !weighted) continue;  // refused
    const CallerArray sums_here(tensors, DataType::bfloat16, {c.tokens(me), c.hidden}),
        weights_here(tensors, DataType::float32, {c.tokens(me), c.top_k});
    ep::CombineOptions options;
    if (idx) options.topk_idx = forms.topk_idx;
    if (rows) options.topk_rows = forms.topk_rows;
    if (weighted)
      options.weights = rows ? forms.slot_weights : idx ? forms.spoiled_weights : forms.weights;
    if (out) options.out = sums_here.view();
    if (out_weights) options.out_weights = weights_here.view();
    const ep::Combined combined =
        group.combine(rows ? forms.slots : forms.rows, got.handle, options);
    group.synchronize();
    const std::string which =
        fmt::format("{}{}{}{}{}: {}", idx ? "topk_idx " : "", rows ? "topk_rows " : "",
                    weighted ? "weights " : "", out ? "out " : "", out_weights ? "out_weights" : "",
                    c.describe());
    expect(!out || combined.x.data == sums_here.view().data, "x is not `out`, " + which);
    expect(!out_weights || combined.topk_weights->data == weights_here.view().data,
           "topk_weights is not `out_weights`, " + which);
    expect(combined.topk_weights.has_value() == weighted, "topk_weights, " + which);
    sums_here.expect_values("out, " + which, sums, out);
    weights_here.expect_values("out_weights, " + which, weights, out_weights);
    expect_tensor("sums, " + which, tensors, combined.x, sums);
    if (weighted) expect_tensor("weights, " + which, tensors, *combined.topk_weights, weights);
  }
}

void check_combine_without_rows(ep::Group& group, const EpCase& c, const TensorMover& tensors) {
  const std::int32_t me = group.team().my_pe();
  check_combine_arrays(group, c, tensors);  // leaves rows and weights in the staging area
  const DeviceInputs in(c, me, tensors);
  const ep::Dispatched got = group.dispatch(in.x, group.route(in.topk_idx));
  const Tensor y = uploaded(tensors, Tensor::empty(DataType::bfloat16, {0, c.hidden})),
               weights = uploaded(tensors, Tensor::empty(DataType::float32, {0}));
  const CallerArray topk_rows(tensors, DataType::int32, {got.x.shape[0], c.top_k});  // all -1
  const ep::Combined combined =
      group.combine(y, got.handle, {.weights = weights, .topk_rows = topk_rows.view()});
  group.synchronize();
  expect_tensor(named("sums of no rows", c), tensors, combined.x,
                std::vector<std::uint16_t>(c.tokens(me) * c.hidden));
  expect_tensor(named("weights of no rows", c), tensors, *combined.topk_weights,
                std::vector<float>(c.tokens(me) * c.top_k));
}

}  // namespace shoal::test
