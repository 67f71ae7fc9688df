// The two backends side by side: the same inputs on a world in host memory and on one in GPU memory, of random shapes,
// deliver the same bits (E1 to E4: numbers do not depend on where a group lies). The other tests hold each of them
// against a reference that shares its arithmetic with neither.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <ranges>

#include "support/draws.hpp"
#include "support/ep_gpu_checks.hpp"
#include "support/made_up.hpp"

namespace shoal::test {
namespace {

using Bytes = std::vector<std::byte>;
using Delivered = std::map<std::string, Bytes>;  ///< by name, what one PE got

constexpr std::int64_t kMostScales = 32;
constexpr std::int32_t kMostAlignment = 32;
/// Channels that the experts of a member are sent at most; keeps a seed to a second or two.
constexpr std::int64_t kMostChannels = std::int64_t{1} << 21;

Tensor copy_of(const TensorView& view) {
  Tensor copy = Tensor::empty(view.dtype, {});
  std::int64_t extents[3] = {1, 1, 1}, strides[3] = {0, 0, 0};
  for (int i = 0; i < view.rank; ++i) extents[i] = view.shape[i], strides[i] = view.strides[i];
  copy = Tensor::empty(view.dtype, {extents[0], extents[1], extents[2]});
  const std::size_t size = size_of(view.dtype);
  auto* to = copy.as<std::byte>();
  for (std::int64_t i = 0; i < extents[0]; ++i)
    for (std::int64_t j = 0; j < extents[1]; ++j)
      for (std::int64_t k = 0; k < extents[2]; ++k, to += size)
        std::memcpy(to, view.as<std::byte>() + (i * strides[0] + j * strides[1] + k * strides[2]) * size, size);
  copy.rank = view.rank;
  return copy;
}

/// A group in host memory, with what GpuGroup has.
struct HostTensors {
  static Tensor upload(const TensorView& host) { return copy_of(host); }
  static Tensor download(const TensorView& tensor) { return copy_of(tensor); }
};
struct HostGroup {
  HostGroup(World& world, const ep::GroupOptions& options) : group(world.team(), options), me(world.my_pe()) {}
  HostTensors tensors;
  ep::Group group;
  const std::int32_t me;
};

template <typename T>
TensorView view_of(const std::vector<T>& values, DataType dtype, std::initializer_list<std::int64_t> shape) {
  static const T kNothing{};
  return {values.empty() ? &kNothing : values.data(), dtype, shape};
}

template <typename Owner>
struct Inputs {
  Inputs(Owner& owner, const EpCase& c)
      : tokens(c.tokens(owner.me)),
        rows(c.rows(owner.me)),
        lanes(c.topk(owner.me)),
        values(c.weights(owner.me)),
        x(owner.tensors.upload(view_of(rows, DataType::bfloat16, {tokens, c.hidden}))),
        topk(owner.tensors.upload(view_of(lanes, DataType::int64, {tokens, c.top_k}))),
        weights(owner.tensors.upload(view_of(values, DataType::float32, {tokens, c.top_k}))) {}
  std::int64_t tokens;
  std::vector<std::uint16_t> rows;
  std::vector<std::int64_t> lanes;
  std::vector<float> values;
  Tensor x, topk, weights;
};

Bytes bytes_of(const Tensor& host) {
  const auto* const first = host.as<std::byte>();
  return {first, first + host.bytes()};
}

/// Rows of bfloat16 that depend on their place alone.
std::vector<std::uint16_t> answers(const EpCase& c, std::int32_t me, std::int64_t rows) {
  std::vector<std::uint16_t> values(static_cast<std::size_t>(rows * c.hidden));
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t channel = 0; channel < c.hidden; ++channel)
      values[static_cast<std::size_t>(row * c.hidden + channel)] = c.value(me, 1000 + row, channel);
  return values;
}

/// What a round of normal mode does beside its case.
struct NormalForm {
  DataType dtype = DataType::bfloat16, answer = DataType::bfloat16;
  std::int64_t scales = 0;     ///< a row; 0: none
  bool scale_columns = false;  ///< one scale of all tokens after another
  bool expanded = false;
  std::int32_t alignment = 1;
  bool weights = true;
  int biases = 1;
  bool cached = false;  ///< a second dispatch with the handle of the first
};

/// Any bytes: rows and scales are not looked into.
Tensor opaque(DataType dtype, std::int64_t rows, std::int64_t columns, std::uint64_t seed) {
  Tensor tensor = Tensor::empty(dtype, {rows, columns});
  for (std::size_t at = 0; at < tensor.bytes(); ++at) tensor.as<std::uint8_t>()[at] = mix(seed + at) & 0xff;
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

/// Rows of a contiguous tensor, those between the blocks of experts left out.
Bytes rows_with_tokens(const Tensor& host, const std::vector<std::int32_t>& sources) {
  Bytes bytes;
  const std::size_t row = host.shape[0] == 0 ? 0 : host.bytes() / static_cast<std::size_t>(host.shape[0]);
  for (std::size_t i = 0; i < sources.size(); ++i)
    if (sources[i] >= 0)
      bytes.insert(bytes.end(), host.as<std::byte>() + i * row, host.as<std::byte>() + (i + 1) * row);
  return bytes;
}

Bytes bytes_of(const std::vector<std::int64_t>& values) {
  const auto* const first = reinterpret_cast<const std::byte*>(values.data());
  return {first, first + values.size() * sizeof(std::int64_t)};
}

template <typename Owner>
Delivered normal_mode(Owner& owner, const EpCase& c, const NormalForm& form) {
  const Inputs<Owner> in(owner, c);
  const ep::Routing routing = owner.group.route(in.topk);
  Delivered all;
  ep::Dispatched first;
  std::vector<std::int32_t> sources;  // of the rows: -1 between blocks
  for (std::uint64_t pass = 0; pass < (form.cached ? 2U : 1U); ++pass) {
    std::uint64_t seed = mix(c.seed * 1024 + static_cast<std::uint64_t>(owner.me) * 2 + pass);
    const Tensor x = owner.tensors.upload(opaque(form.dtype, in.tokens, c.hidden, seed = mix(seed)));
    ep::DispatchOptions options;
    options.expanded = form.expanded;
    options.expert_alignment = form.alignment;
    if (form.weights) options.weights = in.weights;
    Tensor scales;
    if (form.scales > 0) {
      scales = owner.tensors.upload(opaque(DataType::float32, in.tokens, form.scales, seed = mix(seed)));
      if (form.scale_columns) scales.strides = {1, in.tokens};
      options.scales = scales;
    }
    const ep::Dispatched got =
        pass == 0 ? owner.group.dispatch(x, routing, options) : owner.group.dispatch(x, first.handle, options);
    const Tensor y = owner.tensors.upload(numbers(form.answer, got.x.shape[0], c.hidden, seed = mix(seed)));
    std::vector<Tensor> biases;
    for (int b = 0; b < form.biases; ++b)
      biases.push_back(owner.tensors.upload(numbers(form.answer, in.tokens, c.hidden, seed = mix(seed))));
    ep::CombineOptions back;
    back.weights = got.topk_weights;
    back.bias.assign(biases.begin(), biases.end());
    const ep::Combined sums = owner.group.combine(y, got.handle, back);
    owner.group.synchronize();

    if (pass == 0) {
      const Tensor tokens = owner.tensors.download(got.source_token);
      sources.assign(tokens.as<std::int32_t>(), tokens.as<std::int32_t>() + tokens.size());
    }
    const std::string name = pass == 0 ? "" : "cached: ";
    const std::pair<const char*, const Tensor*> parts[] = {{"topk_idx", &got.topk_idx},
                                                           {"topk_weights", &got.topk_weights},
                                                           {"source_token", &got.source_token},
                                                           {"expert_first_row", &got.expert_first_row},
                                                           {"sums", &sums.x},
                                                           {"weights of sums", &sums.topk_weights}};
    for (const auto& [part, tensor] : parts)
      if (tensor->defined()) all[name + part] = bytes_of(owner.tensors.download(*tensor));
    all[name + "x"] = rows_with_tokens(owner.tensors.download(got.x), sources);
    if (got.scales.defined()) all[name + "scales"] = rows_with_tokens(owner.tensors.download(got.scales), sources);
    all[name + "rows_per_source"] = bytes_of(got.rows_per_source);
    all[name + "tokens_per_expert"] = bytes_of(got.tokens_per_expert);
    all[name + "rows"] = bytes_of(std::vector<std::int64_t>{got.rows, got.x.shape[0]});
    if (pass == 0) first = got;
  }
  return all;
}

struct LowLatencyForm {
  ep::Quantize quantize;
  ep::Reduction reduction;
  bool log_fmt, early_weights;
};

/// The first rows of every expert.
void add_valid(Delivered& all, const std::string& name, const Tensor& host, const std::int32_t* counts) {
  Bytes& bytes = all[name];
  const std::size_t row = host.bytes() / static_cast<std::size_t>(host.shape[0] * host.shape[1]);
  for (std::int64_t expert = 0; expert < host.shape[0]; ++expert) {
    const auto* const first = host.as<std::byte>() + static_cast<std::size_t>(expert * host.shape[1]) * row;
    bytes.insert(bytes.end(), first, first + static_cast<std::size_t>(counts[expert]) * row);
  }
}

template <typename Owner>
Delivered low_latency(Owner& owner, const EpCase& c, const LowLatencyForm& form) {
  const Inputs<Owner> in(owner, c);
  ep::LowLatencyDispatchOptions options;
  options.quantize = form.quantize;
  if (form.early_weights) options.weights = in.weights;
  const ep::LowLatencyReceived got = owner.group.low_latency_dispatch(in.x, in.topk, options).receive();
  owner.group.synchronize();
  const Tensor counts = owner.tensors.download(got.counts);
  Delivered all;
  all["counts"] = bytes_of(counts);
  all["layout"] = bytes_of(owner.tensors.download(got.layout));
  add_valid(all, "x", owner.tensors.download(got.x), counts.as<std::int32_t>());
  add_valid(all, "source_token", owner.tensors.download(got.source_token), counts.as<std::int32_t>());
  if (got.scales.defined()) add_valid(all, "scales", owner.tensors.download(got.scales), counts.as<std::int32_t>());
  const std::int64_t experts = c.local_experts(), rows = c.ranks * c.max_tokens;
  const auto y = answers(c, owner.me, experts * rows);
  const Tensor sent = owner.tensors.upload(view_of(y, DataType::bfloat16, {experts, rows, c.hidden}));
  const Tensor sums = owner.group
                          .low_latency_combine(sent, in.topk, in.weights, got.handle,
                                               {.log_fmt = form.log_fmt, .reduction = form.reduction})
                          .receive();
  owner.group.synchronize();
  all["sums"] = bytes_of(owner.tensors.download(sums));
  return all;
}

/// With room for expert-major results of any form.
ep::GroupOptions options_of(const EpCase& c, DataType widest = DataType::bfloat16, std::int32_t alignment = 1) {
  ep::GroupOptions options;
  const std::int64_t most =
      c.ranks * c.max_tokens * std::min(c.top_k, c.local_experts()) + std::int64_t{c.local_experts()} * (alignment - 1);
  options.max_tokens = std::max<std::int64_t>((most + c.ranks - 1) / c.ranks, c.max_tokens);
  options.low_latency_max_tokens = c.max_tokens;
  options.hidden = c.hidden;
  options.top_k = c.top_k;
  options.experts = c.experts;
  options.dtype = widest;
  options.max_scales = kMostScales;
  return options;
}

/// What `body` delivers on every PE, on the host and on GPUs, compared.
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
  run_threads(c.ranks, gpu_settings((size_hint(options, c.ranks, DeviceKind::cuda).total() >> 20) + 16),
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

/// Small shapes of a plain load, and those of any size and load.
class Draw : Draws {
 public:
  explicit Draw(std::uint64_t seed) : Draws(seed), seed_(seed) {}

  EpCase small() {
    EpCase c;
    c.ranks = static_cast<std::int32_t>(pick(1, 8));
    c.experts = c.ranks * static_cast<std::int32_t>(pick(1, 5));
    c.top_k = static_cast<std::int32_t>(pick(1, std::min(8, c.experts)));
    c.hidden = 16 * pick(1, 60);  // rows of float8 are a multiple of 16 bytes
    c.max_tokens = pick(1, 40);
    c.seed = seed_;
    c.mixed_magnitudes = pick(0, 1) == 1;
    return c;
  }

  EpCase any() {
    EpCase c;
    c.ranks = static_cast<std::int32_t>(pick(1, 8));
    c.experts = c.ranks * static_cast<std::int32_t>(log_pick(1, 64));
    c.top_k = static_cast<std::int32_t>(pick(1, ep::kMaxTopK));
    c.holes = static_cast<double>(pick(0, 4)) / 8;
    c.load = pick(0, 9) < 6 ? Load::random : one_of(Load::all_to_one, Load::some_idle, Load::none);
    c.hidden = 16 * log_pick(1, 256);
    c.max_tokens = log_pick(1, std::clamp<std::int64_t>(kMostChannels / (c.experts * c.hidden), 1, 256));
    c.seed = seed_;
    c.mixed_magnitudes = pick(0, 1) == 1;
    return c;
  }

  NormalForm normal_form() {
    NormalForm form;
    form.dtype = one_of(DataType::bfloat16, DataType::float16, DataType::float32, DataType::float8_e4m3);
    form.answer = one_of(DataType::bfloat16, DataType::float16, DataType::float32);
    form.scales = pick(0, 1) == 1 ? pick(1, kMostScales) : 0;
    form.scale_columns = pick(0, 1) == 1;
    form.expanded = pick(0, 1) == 1;
    form.alignment = static_cast<std::int32_t>(pick(1, kMostAlignment));
    form.weights = pick(0, 3) > 0;
    form.biases = static_cast<int>(pick(0, 2));
    form.cached = pick(0, 1) == 1;
    return form;
  }

  LowLatencyForm low_latency_form() {
    return {one_of(ep::Quantize::none, ep::Quantize::fp8, ep::Quantize::fp8_power_of_two, ep::Quantize::fp8_ue8m0),
            one_of(ep::Reduction::per_rank, ep::Reduction::exact), pick(0, 1) == 1, pick(0, 1) == 1};
  }

 private:
  std::uint64_t seed_;
};

/// What every form delivers.
template <typename Form, typename Round>
Delivered each(const std::vector<Form>& forms, const Round& round) {
  Delivered all;
  for (std::size_t i = 0; i < forms.size(); ++i)
    for (auto& [name, bytes] : round(forms[i])) all["form " + std::to_string(i) + ": " + name] = bytes;
  return all;
}

class EpGpuAndHost : public ::testing::TestWithParam<std::uint64_t> {};
INSTANTIATE_TEST_SUITE_P(Seeds, EpGpuAndHost, ::testing::Range<std::uint64_t>(1, 9));

TEST_P(EpGpuAndHost, NormalModeDeliversTheSameBits) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = Draw(GetParam()).small();
  expect_same_bits(c, options_of(c), [&](auto& owner) { return normal_mode(owner, c, {}); });
}

TEST_P(EpGpuAndHost, LowLatencyDeliversTheSameBits) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = Draw(100 + GetParam()).small();
  const std::vector<LowLatencyForm> forms = {{ep::Quantize::none, ep::Reduction::per_rank, false, false},
                                             {ep::Quantize::none, ep::Reduction::exact, false, true},
                                             {ep::Quantize::fp8, ep::Reduction::per_rank, true, false},
                                             {ep::Quantize::fp8_power_of_two, ep::Reduction::exact, true, true},
                                             {ep::Quantize::fp8_ue8m0, ep::Reduction::per_rank, false, true}};
  expect_same_bits(c, options_of(c), [&](auto& owner) {
    return each(forms, [&](const LowLatencyForm& form) { return low_latency(owner, c, form); });
  });
}

class EpGpuAndHostOfAnyShape : public ::testing::TestWithParam<std::uint64_t> {};
INSTANTIATE_TEST_SUITE_P(Seeds, EpGpuAndHostOfAnyShape, ::testing::Range<std::uint64_t>(1, 21));

TEST_P(EpGpuAndHostOfAnyShape, NormalModeDeliversTheSameBits) {
  SHOAL_SKIP_WITHOUT_GPU();
  Draw draw(200 + GetParam());
  const EpCase c = draw.any();
  std::vector<NormalForm> forms;
  for (int i = 0; i < 4; ++i) forms.push_back(draw.normal_form());
  expect_same_bits(c, options_of(c, DataType::float32, kMostAlignment), [&](auto& owner) {
    return each(forms, [&](const NormalForm& form) { return normal_mode(owner, c, form); });
  });
}

TEST_P(EpGpuAndHostOfAnyShape, LowLatencyDeliversTheSameBits) {
  SHOAL_SKIP_WITHOUT_GPU();
  Draw draw(300 + GetParam());
  const EpCase c = draw.any();
  std::vector<LowLatencyForm> forms;
  for (int i = 0; i < 4; ++i) forms.push_back(draw.low_latency_form());
  expect_same_bits(c, options_of(c), [&](auto& owner) {
    return each(forms, [&](const LowLatencyForm& form) { return low_latency(owner, c, form); });
  });
}

}  // namespace
}  // namespace shoal::test
