// SPDX-License-Identifier: Apache-2.0
// The host backend against the GPU backend: the same inputs of random shapes yield the same bits.
// Other tests compare each backend with a reference that shares its arithmetic with neither. Shapes
// of any size are drawn in checks/ep/draws.cpp; tests/property/ep_draws_test.cpp shows what the
// draws cover.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <ranges>

#include "checks/ep/draws.hpp"
#include "shoal/detail/ep_layouts.hpp"
#include "support/draws.hpp"
#include "support/made_up.hpp"

namespace shoal::test {
namespace {

using Bytes = std::vector<std::byte>;
using Delivered = std::map<std::string, Bytes>;  ///< what one PE received, by name

Tensor copy_of(const ConstTensorView& view) {
  Tensor copy = Tensor::empty(view.dtype, {});
  std::int64_t extents[3] = {1, 1, 1}, strides[3] = {0, 0, 0};
  for (int i = 0; i < view.rank; ++i) extents[i] = view.shape[i], strides[i] = view.strides[i];
  copy = Tensor::empty(view.dtype, {extents[0], extents[1], extents[2]});
  const std::size_t size = size_of(view.dtype);
  auto* to = copy.as<std::byte>();
  for (std::int64_t i = 0; i < extents[0]; ++i)
    for (std::int64_t j = 0; j < extents[1]; ++j)
      for (std::int64_t k = 0; k < extents[2]; ++k, to += size)
        std::memcpy(
            to, view.as<std::byte>() + (i * strides[0] + j * strides[1] + k * strides[2]) * size,
            size);
  copy.rank = view.rank;
  return copy;
}

/// A group in host memory with the interface of GpuGroup.
struct HostTensors {
  static Tensor upload(const ConstTensorView& host) { return copy_of(host); }
  static Tensor download(const TensorView& tensor) { return copy_of(tensor); }
  /// Both tensors are contiguous.
  static void write(const TensorView& tensor, const TensorView& host) {
    if (host.bytes() > 0) std::memcpy(tensor.data, host.data, host.bytes());
  }
};
struct HostGroup {
  HostGroup(World& world, const ep::GroupOptions& options)
      : group(world.team(), options), me(world.my_pe()) {}
  HostTensors tensors;
  ep::Group group;
  const std::int32_t me;
};

template <typename T>
ConstTensorView view_of(const std::vector<T>& values, DataType dtype,
                        std::initializer_list<std::int64_t> shape) {
  static const T kNothing{};
  return {values.empty() ? &kNothing : values.data(), dtype, shape};
}

template <typename Owner>
struct Inputs {
  Inputs(Owner& owner, const EpCase& c, bool int32_topk)
      : tokens(c.tokens(owner.me)),
        rows(c.rows(owner.me)),
        indices(c.topk(owner.me)),
        narrow(indices.begin(), indices.end()),
        values(c.weights(owner.me)),
        x(owner.tensors.upload(view_of(rows, DataType::bfloat16, {tokens, c.hidden}))),
        topk(owner.tensors.upload(int32_topk
                                      ? view_of(narrow, DataType::int32, {tokens, c.top_k})
                                      : view_of(indices, DataType::int64, {tokens, c.top_k}))),
        weights(owner.tensors.upload(view_of(values, DataType::float32, {tokens, c.top_k}))) {}
  std::int64_t tokens;
  std::vector<std::uint16_t> rows;
  std::vector<std::int64_t> indices;
  std::vector<std::int32_t> narrow;
  std::vector<float> values;
  Tensor x, topk, weights;
};

Bytes bytes_of(const Tensor& host) {
  const auto* const first = host.as<std::byte>();
  return {first, first + host.bytes()};
}

/// bfloat16 rows that depend only on the rank and the row index.
std::vector<std::uint16_t> expert_output_rows(const EpCase& c, std::int32_t me, std::int64_t rows) {
  std::vector<std::uint16_t> values(static_cast<std::size_t>(rows * c.hidden));
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t channel = 0; channel < c.hidden; ++channel)
      values[static_cast<std::size_t>(row * c.hidden + channel)] = c.value(me, 1000 + row, channel);
  return values;
}

/// Arbitrary bytes: dispatch does not interpret rows and scales.
Tensor opaque(DataType dtype, std::int64_t rows, std::int64_t columns, std::uint64_t seed) {
  Tensor tensor = Tensor::empty(dtype, {rows, columns});
  for (std::size_t at = 0; at < tensor.bytes(); ++at)
    tensor.as<std::uint8_t>()[at] = mix(seed + at) & 0xff;
  return tensor;
}

Tensor numbers(DataType dtype, std::int64_t rows, std::int64_t columns, std::uint64_t seed) {
  Tensor tensor = Tensor::empty(dtype, {rows, columns});
  const std::size_t size = size_of(dtype);
  for (std::size_t i = 0; i < static_cast<std::size_t>(rows * columns); ++i) {
    const std::uint32_t bits = encode(dtype, made_up(mix(seed + i)));
    std::memcpy(tensor.as<std::byte>() + i * size, &bits, size);
  }
  return tensor;
}

/// For each row of a result, true if it holds a token according to its topk_idx on the host.
std::vector<bool> rows_in_use(const Tensor& topk_idx) {
  std::vector<bool> in_use;
  for (std::int64_t row = 0; row < topk_idx.shape[0]; ++row) {
    const auto* const experts = topk_idx.as<std::int64_t>() + row * topk_idx.shape[1];
    in_use.push_back(std::any_of(experts, experts + topk_idx.shape[1],
                                 [](std::int64_t expert) { return expert >= 0; }));
  }
  return in_use;
}

/// The rows in use of a contiguous tensor. The other rows hold old bytes of the memory.
Bytes rows_with_tokens(const Tensor& host, const std::vector<bool>& in_use) {
  Bytes bytes;
  const std::size_t row =
      host.shape[0] == 0 ? 0 : host.bytes() / static_cast<std::size_t>(host.shape[0]);
  for (std::size_t i = 0; i < in_use.size(); ++i)
    if (in_use[i])
      bytes.insert(bytes.end(), host.as<std::byte>() + i * row,
                   host.as<std::byte>() + (i + 1) * row);
  return bytes;
}

Bytes bytes_of(const std::vector<std::int64_t>& values) {
  const auto* const first = reinterpret_cast<const std::byte*>(values.data());
  return {first, first + values.size() * sizeof(std::int64_t)};
}

/// The largest number of rows of a result.
std::int64_t most_rows(const EpCase& c, bool expert_major, std::int32_t alignment) {
  const std::int64_t rank_major = c.ranks * c.max_tokens;
  if (!expert_major) return rank_major;
  return rank_major * std::min(c.top_k, c.local_experts()) +
         std::int64_t{c.local_experts()} * (alignment - 1);
}

template <typename Owner>
Delivered normal_mode(Owner& owner, const EpCase& c, const NormalForm& form) {
  const Inputs<Owner> in(owner, c, form.int32_topk);
  const ep::Routing routing = owner.group.route(in.topk);
  Delivered all;
  ep::Handle first;
  std::vector<bool> in_use;  // rows of x
  for (std::uint64_t pass = 0; pass < (form.cached ? 2U : 1U); ++pass) {
    std::uint64_t seed = mix(c.seed * 1024 + static_cast<std::uint64_t>(owner.me) * 2 + pass);
    const std::int64_t columns = form.columns > 0 ? form.columns : c.hidden;
    const Tensor x = owner.tensors.upload(opaque(form.dtype, in.tokens, columns, seed = mix(seed)));
    ep::detail::AnyDispatchOptions options;
    options.expert_major = form.expert_major;
    options.expert_alignment = form.alignment;
    options.worst_case_rows = form.worst_case ? most_rows(c, form.expert_major, form.alignment) : 0;
    options.copy_out = form.copy_out;
    if (form.weights) options.weights = in.weights;
    Tensor scales;
    if (form.scales > 0) {
      scales =
          owner.tensors.upload(opaque(form.scale_dtype, in.tokens, form.scales, seed = mix(seed)));
      if (form.scale_columns) scales.strides = {1, in.tokens};
      options.scales = scales;
    }
    const ep::detail::AnyDispatched got =
        pass == 0 ? ep::detail::dispatch(owner.group, x, routing, options)
                  : ep::detail::dispatch(owner.group, x, first, options);
    owner.group.synchronize();
    const std::string name = pass == 0 ? "" : "cached: ";
    if (pass == 0) in_use = rows_in_use(owner.tensors.download(got.topk_idx));
    const auto add = [&](const char* part, const Tensor& tensor, bool every_row) {
      if (!tensor.defined()) return;
      const Tensor host = owner.tensors.download(tensor);
      all[name + part] = every_row ? bytes_of(host) : rows_with_tokens(host, in_use);
    };
    add("topk_idx", got.topk_idx, true);
    add("topk_weights", got.topk_weights, true);
    add("source_token", got.source_token, form.expert_major || !form.worst_case);
    add("expert_first_row", got.expert_first_row, true);
    add("x", got.x, false);
    add("scales", got.scales, false);
    all[name + "tokens_per_expert"] = bytes_of(got.tokens_per_expert);
    if (!form.worst_case)
      all[name + "rows_per_source"] = bytes_of(got.rows_per_source);  // unknown on a GPU's host
    std::int64_t rows = got.rows;
    if (rows < 0) rows = owner.tensors.download(got.row_count).template as<std::int32_t>()[0];
    all[name + "rows"] = bytes_of(std::vector<std::int64_t>{rows, got.x.shape[0]});

    const Tensor output = numbers(form.output_dtype, got.x.shape[0], c.hidden, seed = mix(seed));
    Tensor elsewhere;
    TensorView y = got.x;
    y.dtype = form.output_dtype;
    if (form.in_place)
      owner.tensors.write(y, output);
    else
      y = elsewhere = owner.tensors.upload(output);
    std::vector<Tensor> biases;
    for (int b = 0; b < form.biases; ++b)
      biases.push_back(
          owner.tensors.upload(numbers(form.output_dtype, in.tokens, c.hidden, seed = mix(seed))));
    ep::CombineOptions back;
    back.weights = got.topk_weights;
    back.quantize = form.combine_quantize;
    back.bias.assign(biases.begin(), biases.end());
    const ep::Combined sums = owner.group.combine(y, got.handle, back);
    owner.group.synchronize();
    add("sums", sums.x, true);
    add("weights of sums", sums.topk_weights.value_or(Tensor()), true);
    if (form.expert_major) {
      const ep::Combined given =
          owner.group.combine(y, got.handle, {.weights = got.topk_weights, .unsummed = true});
      owner.group.synchronize();
      add("unsummed rows", given.x, true);
      add("weights of unsummed rows", given.topk_weights.value_or(Tensor()), true);
    }
    if (pass == 0) first = got.handle;
  }
  return all;
}

/// Appends the valid rows of every expert, which come first in its block.
void add_valid(Delivered& all, const std::string& name, const Tensor& host,
               const std::int32_t* counts) {
  Bytes& bytes = all[name];
  const std::size_t row = host.bytes() / static_cast<std::size_t>(host.shape[0] * host.shape[1]);
  for (std::int64_t expert = 0; expert < host.shape[0]; ++expert) {
    const auto* const first =
        host.as<std::byte>() + static_cast<std::size_t>(expert * host.shape[1]) * row;
    bytes.insert(bytes.end(), first, first + static_cast<std::size_t>(counts[expert]) * row);
  }
}

template <typename Owner>
Delivered low_latency(Owner& owner, const EpCase& c, const LowLatencyForm& form) {
  const Inputs<Owner> in(owner, c, form.int32_topk);
  ep::LowLatencyDispatchOptions options;
  options.quantize = form.quantize;
  options.scale_layout = form.scale_layout;
  Tensor global;
  if (form.quantize == ep::Quantize::nvfp4)
    options.global_scale = global =
        owner.tensors.upload(ConstTensorView(&kGlobalScale, DataType::float32, {1}));
  if (form.early_weights) options.weights = in.weights;
  const ep::LowLatencyReceived got =
      owner.group.low_latency_dispatch(in.x, in.topk, options).receive();
  owner.group.synchronize();
  const Tensor counts = owner.tensors.download(got.counts);
  Delivered all;
  all["counts"] = bytes_of(counts);
  all["layout"] = bytes_of(owner.tensors.download(got.layout));
  add_valid(all, "x", owner.tensors.download(got.x), counts.as<std::int32_t>());
  add_valid(all, "source_token", owner.tensors.download(got.source_token),
            counts.as<std::int32_t>());
  if (got.scales.has_value())
    add_valid(all, "scales", owner.tensors.download(*got.scales), counts.as<std::int32_t>());
  const std::int64_t experts = c.local_experts(), rows = c.ranks * c.max_tokens;
  const auto y = expert_output_rows(c, owner.me, experts * rows);
  const Tensor sent =
      owner.tensors.upload(view_of(y, DataType::bfloat16, {experts, rows, c.hidden}));
  ep::LowLatencyCombineOptions back{.log_fmt = form.log_fmt,
                                    .quantize = form.combine_quantize,
                                    .reduction = form.reduction,
                                    .defer_receive = form.defer_receive};
  for (const bool unsummed : {false, true}) {
    back.unsummed = unsummed;
    if (unsummed) back.reduction = ep::Reduction::automatic;
    const Tensor result =
        owner.group.low_latency_combine(sent, in.topk, in.weights, got.handle, back).receive();
    owner.group.synchronize();
    all[unsummed ? "unsummed rows" : "sums"] = bytes_of(owner.tensors.download(result));
  }
  return all;
}

/// Group options with room for expert-major results of any form.
ep::GroupOptions options_of(const EpCase& c, DataType widest = DataType::bfloat16,
                            std::int32_t alignment = 1) {
  ep::GroupOptions options;
  const std::int64_t most = most_rows(c, true, alignment);
  options.max_tokens = std::max<std::int64_t>((most + c.ranks - 1) / c.ranks, c.max_tokens);
  options.low_latency_max_tokens = c.max_tokens;
  options.hidden = c.hidden;
  options.top_k = c.top_k;
  options.experts = c.experts;
  options.first_expert = c.first_expert;
  options.dtype = widest;
  options.max_scales = kMostScales;
  return options;
}

/// Runs `body` on every PE, on the host and on GPUs, and compares what it returns.
template <typename Body>
void expect_same_bits(const EpCase& c, const ep::GroupOptions& options, const Body& body) {
  SCOPED_TRACE(c.describe());
  std::vector<Delivered> host(static_cast<std::size_t>(c.ranks)), gpu = host;
  Settings settings;
  settings.symmetric_size = size_hint(options, c.ranks).total() + (std::size_t{16} << 20);
  run_threads(c.ranks, settings, [&](World& world) {
    HostGroup owner(world, options);
    host[static_cast<std::size_t>(world.my_pe())] = body(owner);
  });
  run_threads(c.ranks,
              gpu_settings((size_hint(options, c.ranks, DeviceKind::cuda).total() >> 20) + 16),
              [&](World& world) {
                GpuGroup owner(world, options);
                gpu[static_cast<std::size_t>(world.my_pe())] = body(owner);
              });
  const auto names = [](const Delivered& all) {
    const auto keys = std::views::keys(all);
    return std::vector<std::string>(keys.begin(), keys.end());
  };
  for (std::size_t pe = 0; pe < host.size(); ++pe) {
    ASSERT_EQ(names(host[pe]), names(gpu[pe])) << "PE " << pe;
    for (const auto& [name, bytes] : host[pe]) {
      const Bytes& other = gpu[pe].at(name);
      ASSERT_EQ(bytes.size(), other.size()) << name << " of PE " << pe;
      const auto differs = std::mismatch(bytes.begin(), bytes.end(), other.begin());
      ASSERT_EQ(differs.first - bytes.begin(), static_cast<std::ptrdiff_t>(bytes.size()))
          << name << " of PE " << pe << ": the first byte that differs, of " << bytes.size();
    }
  }
}

/// A small shape with the random load.
EpCase small(std::uint64_t seed) {
  Draws draws(seed);
  EpCase c;
  c.ranks = static_cast<std::int32_t>(draws.pick(1, 8));
  c.experts = c.ranks * static_cast<std::int32_t>(draws.pick(1, 5));
  c.top_k = static_cast<std::int32_t>(draws.pick(1, std::min(8, c.experts)));
  // Rows of float8 are a multiple of 16 channels, those of every format of 64.
  c.hidden = draws.pick(0, 1) == 1 ? 64 * draws.pick(1, 15) : 16 * draws.pick(1, 60);
  c.max_tokens = draws.pick(1, 40);
  c.seed = seed;
  c.mixed_magnitudes = draws.pick(0, 1) == 1;
  return c;
}

/// The results of all forms.
template <typename Form, typename Round>
Delivered each(const std::vector<Form>& forms, const Round& round) {
  Delivered all;
  for (std::size_t i = 0; i < forms.size(); ++i)
    for (auto& [name, bytes] : round(forms[i]))
      all["form " + std::to_string(i) + ": " + name] = bytes;
  return all;
}

class EpGpuAndHost : public ::testing::TestWithParam<std::uint64_t> {};
INSTANTIATE_TEST_SUITE_P(Seeds, EpGpuAndHost, ::testing::Range<std::uint64_t>(1, 9));

TEST_P(EpGpuAndHost, NormalModeDeliversTheSameBits) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = small(GetParam());
  std::vector<NormalForm> forms{{}};
  for (const ep::Quantize quantize : {ep::Quantize::fp8, ep::Quantize::mxfp8})
    for (const bool expert_major : {false, true})
      if (c.hidden % ep::detail::hidden_multiple(quantize) == 0)
        forms.push_back(
            {.expert_major = expert_major, .in_place = expert_major, .combine_quantize = quantize});
  expect_same_bits(c, options_of(c), [&](auto& owner) {
    return each(forms, [&](const NormalForm& form) { return normal_mode(owner, c, form); });
  });
}

TEST_P(EpGpuAndHost, LowLatencyDeliversTheSameBits) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = small(100 + GetParam());
  std::vector<LowLatencyForm> forms = {
      {ep::Quantize::none, {}, ep::Reduction::per_rank, false, false},
      {ep::Quantize::none, {}, ep::Reduction::exact, false, true},
      {ep::Quantize::fp8, {}, ep::Reduction::per_rank, true, false},
      {ep::Quantize::fp8_power_of_two, ep::ScaleLayout::rows, ep::Reduction::exact, true, true},
      {ep::Quantize::fp8_ue8m0, {}, ep::Reduction::per_rank, false, true},
      {ep::Quantize::mxfp8, {}, ep::Reduction::per_rank, false, false},
      {ep::Quantize::mxfp8, ep::ScaleLayout::rows, ep::Reduction::exact, false, true},
      {ep::Quantize::nvfp4, ep::ScaleLayout::rows, ep::Reduction::per_rank, false, false},
      {ep::Quantize::nvfp4, ep::ScaleLayout::columns, ep::Reduction::exact, false, true}};
  for (const ep::Quantize quantize : {ep::Quantize::fp8, ep::Quantize::mxfp8})
    for (const ep::Reduction reduction : {ep::Reduction::per_rank, ep::Reduction::exact})
      for (const bool defer : {true, false})
        forms.push_back({.quantize = quantize,
                         .reduction = reduction,
                         .early_weights = defer,
                         .defer_receive = defer,
                         .combine_quantize = quantize});
  const std::vector<ep::Quantize> possible = quantizations_for(c.hidden);
  std::erase_if(forms, [&](const LowLatencyForm& form) {
    return std::ranges::find(possible, form.quantize) == possible.end();
  });
  expect_same_bits(c, options_of(c), [&](auto& owner) {
    return each(forms, [&](const LowLatencyForm& form) { return low_latency(owner, c, form); });
  });
}

class EpGpuAndHostOfAnyShape : public ::testing::TestWithParam<std::uint64_t> {};
INSTANTIATE_TEST_SUITE_P(Seeds, EpGpuAndHostOfAnyShape,
                         ::testing::Range<std::uint64_t>(1, kComparedSeeds + 1));

TEST_P(EpGpuAndHostOfAnyShape, NormalModeDeliversTheSameBits) {
  SHOAL_SKIP_WITHOUT_GPU();
  const NormalComparison drawn = draw_normal_comparison(GetParam());
  const EpCase& c = drawn.c;
  ep::GroupOptions options = options_of(c, DataType::float32, drawn.most_alignment);
  options.low_latency_max_tokens = 0;
  expect_same_bits(c, options, [&](auto& owner) {
    return each(drawn.forms, [&](const NormalForm& form) { return normal_mode(owner, c, form); });
  });
}

TEST_P(EpGpuAndHostOfAnyShape, LowLatencyDeliversTheSameBits) {
  SHOAL_SKIP_WITHOUT_GPU();
  const LowLatencyComparison drawn = draw_low_latency_comparison(GetParam());
  const EpCase& c = drawn.c;
  ep::GroupOptions options = options_of(c);
  options.max_tokens = 0;
  expect_same_bits(c, options, [&](auto& owner) {
    return each(drawn.forms,
                [&](const LowLatencyForm& form) { return low_latency(owner, c, form); });
  });
}

}  // namespace
}  // namespace shoal::test
