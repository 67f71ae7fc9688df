// The two backends side by side: the same inputs on a world in host memory and on one in GPU memory, of random shapes,
// deliver the same bits (E1 to E4: numbers do not depend on where a group lies). The other tests hold each of them
// against a reference that shares its arithmetic with neither.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>

#include "support/ep_gpu_checks.hpp"

namespace shoal::test {
namespace {

using Bytes = std::vector<std::byte>;
using Delivered = std::map<std::string, Bytes>;  ///< by name, what one PE got

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

template <typename Owner>
Delivered normal_mode(Owner& owner, const EpCase& c) {
  const Inputs<Owner> in(owner, c);
  const ep::Routing routing = owner.group.route(in.topk);
  const ep::Dispatched got = owner.group.dispatch(in.x, routing, {.weights = in.weights});
  const auto y = answers(c, owner.me, got.rows);
  const Tensor sent = owner.tensors.upload(view_of(y, DataType::bfloat16, {got.rows, c.hidden}));
  ep::CombineOptions options;
  options.weights = got.topk_weights;
  options.bias = {in.x};
  const ep::Combined sums = owner.group.combine(sent, got.handle, options);
  owner.group.synchronize();
  Delivered all;
  const std::pair<const char*, const Tensor*> parts[] = {{"x", &got.x},
                                                         {"topk_idx", &got.topk_idx},
                                                         {"topk_weights", &got.topk_weights},
                                                         {"source_token", &got.source_token},
                                                         {"sums", &sums.x},
                                                         {"weights of sums", &sums.topk_weights}};
  for (const auto& [name, tensor] : parts) all[name] = bytes_of(owner.tensors.download(*tensor));
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

ep::GroupOptions options_of(const EpCase& c) {
  ep::GroupOptions options;
  options.max_tokens = options.low_latency_max_tokens = c.max_tokens;
  options.hidden = c.hidden;
  options.top_k = c.top_k;
  options.experts = c.experts;
  return options;
}

/// What `body` delivers on every PE, on the host and on GPUs, compared.
template <typename Body>
void expect_same_bits(const EpCase& c, const Body& body) {
  SCOPED_TRACE(c.describe());
  std::vector<Delivered> host(static_cast<std::size_t>(c.ranks)), gpu = host;
  const ep::GroupOptions options = options_of(c);
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
  for (std::size_t pe = 0; pe < host.size(); ++pe) {
    ASSERT_EQ(host[pe].size(), gpu[pe].size());
    for (const auto& [name, bytes] : host[pe]) {
      const Bytes& other = gpu[pe][name];
      ASSERT_EQ(bytes.size(), other.size()) << name << " of PE " << pe;
      for (std::size_t at = 0; at < bytes.size(); ++at)
        ASSERT_EQ(bytes[at], other[at]) << name << " of PE " << pe << " differs at byte " << at << " of "
                                        << bytes.size();
    }
  }
}

EpCase random_case(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto pick = [&](std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(high - low + 1));
  };
  EpCase c;
  c.ranks = static_cast<std::int32_t>(pick(1, 8));
  c.experts = c.ranks * static_cast<std::int32_t>(pick(1, 5));
  c.top_k = static_cast<std::int32_t>(pick(1, std::min(8, c.experts)));
  c.hidden = 16 * pick(1, 60);  // rows of float8 are a multiple of 16 bytes
  c.max_tokens = pick(1, 40);
  c.seed = seed;
  c.mixed_magnitudes = pick(0, 1) == 1;
  return c;
}

class EpGpuAndHost : public ::testing::TestWithParam<std::uint64_t> {};
INSTANTIATE_TEST_SUITE_P(Seeds, EpGpuAndHost, ::testing::Range<std::uint64_t>(1, 9));

TEST_P(EpGpuAndHost, NormalModeDeliversTheSameBits) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = random_case(GetParam());
  expect_same_bits(c, [&](auto& owner) { return normal_mode(owner, c); });
}

TEST_P(EpGpuAndHost, LowLatencyDeliversTheSameBits) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = random_case(100 + GetParam());
  const LowLatencyForm forms[] = {{ep::Quantize::none, ep::Reduction::per_rank, false, false},
                                  {ep::Quantize::none, ep::Reduction::exact, false, true},
                                  {ep::Quantize::fp8, ep::Reduction::per_rank, true, false},
                                  {ep::Quantize::fp8_power_of_two, ep::Reduction::exact, true, true},
                                  {ep::Quantize::fp8_ue8m0, ep::Reduction::per_rank, false, true}};
  expect_same_bits(c, [&](auto& owner) {
    Delivered all;
    for (std::size_t i = 0; i < std::size(forms); ++i)
      for (auto& [name, bytes] : low_latency(owner, c, forms[i]))
        all["form " + std::to_string(i) + ": " + name] = bytes;
    return all;
  });
}

}  // namespace
}  // namespace shoal::test
