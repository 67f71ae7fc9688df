// SPDX-License-Identifier: Apache-2.0
#include "checks/ep/gpu_normal.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <exception>
#include <stdexcept>

#include "checks/ep/encoded_rows.hpp"
#include "memory/device.hpp"
#include "pe/memory.hpp"
#include "support/made_up.hpp"
#include "support/world/world_local.hpp"

namespace shoal::test {
namespace {

std::uint64_t key(std::uint64_t salt, std::int64_t a, std::int64_t b, std::int64_t c) {
  return mix(mix(salt * 1000003 + static_cast<std::uint64_t>(a)) +
             (static_cast<std::uint64_t>(b) << 32)) +
         static_cast<std::uint64_t>(c);
}

void fill_row(std::uint64_t salt, std::int32_t rank, std::int64_t token, std::byte* row,
              std::size_t bytes) {
  const std::uint64_t first = key(salt, rank, token, 0);
  for (std::size_t at = 0; at < bytes; at += 8) {
    const std::uint64_t word = mix(first + at);
    std::memcpy(row + at, &word, std::min<std::size_t>(8, bytes - at));
  }
}

std::uint32_t scale_of(std::uint64_t salt, std::int32_t rank, std::int64_t token, std::int64_t i) {
  return static_cast<std::uint32_t>(mix(key(salt ^ 0x5ca1e, rank, token, i)));
}

void store(DataType dtype, std::byte* row, std::int64_t channel, std::uint32_t bits) {
  const std::size_t size = size_of(dtype);
  std::memcpy(row + channel * size, &bits, size);
}

std::uint32_t output_bits(std::uint64_t salt, DataType dtype, std::int32_t owner,
                          std::int32_t source, std::int64_t token, std::int64_t channel) {
  return encode(dtype, made_up(mix(key(salt ^ 0xa45e, owner * 256 + source, token, channel))));
}

std::uint32_t bias_bits(std::uint64_t salt, DataType dtype, int which, std::int32_t rank,
                        std::int64_t token, std::int64_t channel) {
  return encode(dtype, made_up(mix(key(salt ^ 0xb1a5, which * 256 + rank, token, channel))));
}

TensorView row_of(const TensorView& tensor, std::int64_t row) {
  TensorView view = tensor;
  view.data =
      static_cast<std::byte*>(tensor.data) + row * tensor.strides[0] * size_of(tensor.dtype);
  view.shape[0] = 1;
  return view;
}

TensorView first_rows(const TensorView& tensor, std::int64_t rows) {
  TensorView view = tensor;
  view.shape[0] = rows;
  return view;
}

/// Rows to compare: all, or about `samples` of them with the first and the last.
std::vector<std::int64_t> chosen(std::int64_t rows, std::int64_t samples) {
  std::vector<std::int64_t> list;
  const std::int64_t step = samples <= 0 || rows <= samples ? 1 : rows / samples;
  for (std::int64_t i = 0; i < rows; i += step) list.push_back(i);
  if (rows > 0 && list.back() != rows - 1) list.push_back(rows - 1);
  return list;
}

/// Rows of `tensor` on the host. Downloads the tensor at once if `all`, otherwise row by row.
class Fetched {
 public:
  Fetched(DeviceTensors& tensors, const TensorView& tensor, bool all)
      : tensors_(tensors), tensor_(tensor) {
    if (all && tensor.bytes() > 0) whole_ = tensors.download(tensor);
  }
  const std::byte* row(std::int64_t i) {
    if (whole_.defined()) return static_cast<const std::byte*>(row_of(whole_, i).data);
    one_ = tensors_.download(row_of(tensor_, i));
    return static_cast<const std::byte*>(one_.data);
  }

 private:
  DeviceTensors& tensors_;
  const TensorView tensor_;
  Tensor whole_, one_;
};

template <typename T>
void expect_values(DeviceTensors& tensors, const std::string& what, const TensorView& got,
                   const std::vector<T>& wanted) {
  expect(got.size() == static_cast<std::int64_t>(wanted.size()) && size_of(got.dtype) == sizeof(T),
         fmt::format("{} is {}, expected {} elements", what, got.describe(), wanted.size()));
  const Tensor values = tensors.download(got);
  expect_same(what, values.data, wanted.data(), wanted.size() * sizeof(T), sizeof(T));
}

}  // namespace

Settings gpu_settings(std::size_t mebibytes) {
  Settings settings = ep_settings();
  settings.heap = "cuda";
  settings.symmetric_size = mebibytes << 20;
  return settings;
}

GpuGroup::GpuGroup(World& owner, const ep::GroupOptions& options)
    : world(owner),
      tensors(owner),
      group(owner.team(), options),
      me(group.team().my_pe()),
      stream_(group.stream()) {
  tensors.follow(stream_);
}

GpuGroup::~GpuGroup() {
  try {
    tensors.unfollow(stream_);
  } catch (const std::exception&) {  // the test has failed, or fails when the group is destroyed
  }
}

void GpuGroup::settle() {
  tensors.settle();
  group.synchronize();
}

TensorMover mover(GpuGroup& group) {
  DeviceTensors& tensors = group.tensors;
  return {
      .upload = [&tensors](const Tensor& tensor) { return tensors.upload(tensor); },
      .download = [&tensors](const TensorView& view) { return tensors.download(view); },
      .write = [&tensors](const TensorView& to, const Tensor& from) { tensors.write(to, from); },
      .bulk_copies = state_of(group.world).memory().cuda()->compute_capability >= 90};
}

GpuRound::GpuRound(GpuGroup& owner, const EpCase& c, const GpuCall& call)
    : owner_(owner),
      case_(c),
      call_(call),
      salt_(c.seed),
      tokens_(call.padded ? c.max_tokens : c.tokens(owner.me)),
      columns_(call.columns > 0 ? call.columns : c.hidden),
      expected_(expected_dispatch(c, owner.me)) {
  DeviceTensors& tensors = owner_.tensors;
  x_ = tensors.upload(rows_on_host());
  topk_ = tensors.upload(topk_on_host());
  if (call.weights) weights_ = tensors.upload(weights_on_host());
  if (call.scales > 0) {
    scale_memory_ = tensors.upload(scales_on_host());
    scales_ = TensorView(scale_memory_.data, call.scale_dtype, {tokens_, call.scales});
    scales_.device = tensors.device();
    if (call.scale_order == ScaleOrder::padded) scales_.strides = {call.scales + 3, 1};
    if (call.scale_order == ScaleOrder::columns) scales_.strides = {1, tokens_};
  }
  for (int b = 0; b < call.biases; ++b) biases_.push_back(tensors.upload(bias_on_host(b)));
  if (call.out)
    out_ = tensors.empty(call.output_dtype,
                         {tokens_ + 1, c.hidden});  // the last row must stay as it is
  if (call.place == OutputPlace::heap)
    heap_ = owner.world.heap().malloc(
        std::max<std::size_t>(c.ranks * c.max_tokens * c.hidden * size_of(call.output_dtype), 1));
}

GpuRound::~GpuRound() {
  if (heap_ == nullptr || std::uncaught_exceptions() > 0) return;
  try {
    owner_.tensors.settle();
    owner_.world.heap().free(heap_);
  } catch (const std::exception&) {  // the world has failed and frees its memory
  }
}

std::size_t GpuRound::row_bytes() const {
  return columns_ * size_of(call_.dtype);
}

std::vector<std::int64_t> GpuRound::topk_values() const {
  auto values = case_.topk(owner_.me);
  values.resize(tokens_ * case_.top_k, -1);
  return values;
}

Tensor GpuRound::topk_on_host() const {
  Tensor topk =
      Tensor::empty(call_.int32_topk ? DataType::int32 : DataType::int64, {tokens_, case_.top_k});
  auto values = case_.given_topk(owner_.me);
  values.resize(tokens_ * case_.top_k, -1);
  if (call_.int32_topk)
    std::copy(values.begin(), values.end(), topk.as<std::int32_t>());
  else
    std::copy(values.begin(), values.end(), topk.as<std::int64_t>());
  return topk;
}

Tensor GpuRound::weights_on_host() const {
  Tensor weights = Tensor::empty(DataType::float32, {tokens_, case_.top_k});
  auto values = case_.weights(owner_.me);
  values.resize(tokens_ * case_.top_k, 0.5F);
  std::copy(values.begin(), values.end(), weights.as<float>());
  return weights;
}

Tensor GpuRound::rows_on_host() const {
  Tensor rows = Tensor::empty(call_.dtype, {tokens_, columns_});
  for (std::int64_t t = 0; t < tokens_; ++t)
    fill_row(salt_, owner_.me, t, rows.as<std::byte>() + t * row_bytes(), row_bytes());
  return rows;
}

Tensor GpuRound::scales_on_host() const {
  const std::int64_t n = call_.scales, pitch = call_.scale_order == ScaleOrder::padded ? n + 3 : n;
  Tensor memory = Tensor::empty(call_.scale_dtype, {tokens_ * pitch});
  if (memory.bytes() > 0) std::memset(memory.data, 0xff, memory.bytes());
  const bool columns = call_.scale_order == ScaleOrder::columns;
  for (std::int64_t t = 0; t < tokens_; ++t)
    for (std::int64_t i = 0; i < n; ++i)
      memory.as<std::uint32_t>()[columns ? i * tokens_ + t : t * pitch + i] =
          scale_of(salt_, owner_.me, t, i);
  return memory;
}

Tensor GpuRound::bias_on_host(int which) const {
  Tensor bias = Tensor::empty(call_.output_dtype, {tokens_, case_.hidden});
  const std::size_t bytes = case_.hidden * size_of(call_.output_dtype);
  for (std::int64_t t = 0; t < tokens_; ++t)
    for (std::int64_t ch = 0; ch < case_.hidden; ++ch)
      store(call_.output_dtype, bias.as<std::byte>() + t * bytes, ch,
            bias_bits(salt_, call_.output_dtype, which, owner_.me, t, ch));
  return bias;
}

void GpuRound::change_rows(std::uint64_t seed) {
  salt_ = seed;
  owner_.tensors.write(x_, rows_on_host());
  if (call_.scales > 0) owner_.tensors.write(scale_memory_, scales_on_host());
  for (int b = 0; b < call_.biases; ++b) owner_.tensors.write(biases_[b], bias_on_host(b));
}

void GpuRound::change_case(const EpCase& now) {
  case_ = now;
  expected_ = expected_dispatch(now, owner_.me);
  owner_.tensors.write(topk_, topk_on_host());
  if (call_.weights) owner_.tensors.write(weights_, weights_on_host());
  change_rows(now.seed);
}

ep::DispatchOptions GpuRound::dispatch_options() const {
  ep::DispatchOptions options = call_.dispatch;
  options.weights = weights_;
  options.scales = scales_;
  return options;
}

void GpuRound::run() {
  const ep::Routing routing = route();
  check(routing);
  const ep::Dispatched got = dispatch(routing);
  check(got);
  write_expert_output(got);
  check(combine(got));
  poison(got);
}

ep::Routing GpuRound::route(const ep::Launch& launch) {
  return owner_.group.route(topk_, launch);
}
ep::Dispatched GpuRound::dispatch(const ep::Routing& routing) {
  return owner_.group.dispatch(x_, routing, dispatch_options());
}
ep::Dispatched GpuRound::dispatch(const ep::Handle& handle) {
  return owner_.group.dispatch(x_, handle, dispatch_options());
}

void GpuRound::write_expert_output(const ep::Dispatched& got) {
  const DataType dtype = call_.output_dtype;
  const std::int64_t hidden = case_.hidden;
  Tensor output = Tensor::empty(dtype, {got.x.shape[0], hidden});
  if (output.bytes() > 0)
    std::memset(output.data, 0xff, output.bytes());  // NaN, which must not be read
  const std::size_t bytes = hidden * size_of(dtype);
  for (std::int64_t i = 0; i < rows(); ++i)
    for (std::int64_t ch = 0; ch < hidden; ++ch)
      store(dtype, output.as<std::byte>() + i * bytes, ch,
            output_bits(salt_, dtype, owner_.me, expected_.source_rank[i],
                        expected_.source_token[i], ch));
  if (call_.place == OutputPlace::staged) {
    if (staged_.defined() && staged_.shape == output.shape)
      owner_.tensors.write(staged_, output);  // a captured graph has the address
    else
      staged_ = owner_.tensors.upload(output);
    y_ = staged_;
    return;
  }
  y_ = TensorView(call_.place == OutputPlace::in_place ? got.x.data : heap_, dtype,
                  {got.x.shape[0], hidden});
  y_.device = owner_.tensors.device();
  owner_.tensors.write(y_, output);
}

ep::Combined GpuRound::combine(const ep::Dispatched& got) {
  ep::CombineOptions options;
  options.launch = call_.combine;
  options.quantize = call_.combine_quantize;
  if (call_.weights && call_.combine_weights) options.weights = *got.topk_weights;
  for (const Tensor& bias : biases_) options.bias.push_back(bias);
  if (call_.out) options.out = first_rows(out_, tokens_);
  return owner_.group.combine(y_, got.handle, options);
}

void GpuRound::check(const ep::Routing& routing) {
  std::vector<std::int32_t> per_rank(case_.ranks), per_expert(case_.experts);
  const auto topk = topk_values();
  for (std::int64_t t = 0; t < tokens_; ++t)
    for (const std::int32_t rank : ranks_of(case_, topk.data() + t * case_.top_k)) ++per_rank[rank];
  for (const std::int64_t expert : topk)
    if (expert >= 0) ++per_expert[expert];
  expect(routing.tokens() == tokens_, "the routing has the wrong number of tokens");
  std::vector<std::int32_t> per_node(case_.nodes);
  for (std::int64_t t = 0; t < tokens_; ++t)
    for (const std::int32_t node : nodes_of(case_, ranks_of(case_, topk.data() + t * case_.top_k)))
      ++per_node[node];
  expect(!routing.counts && routing.device_counts, "a routing on a GPU has counts on the host");
  expect_values(owner_.tensors, "Routing.topk_idx", routing.topk_idx, topk);
  expect_values(owner_.tensors, "tokens_per_rank", routing.device_counts->tokens_per_rank,
                per_rank);
  expect_values(owner_.tensors, "tokens_per_expert", routing.device_counts->tokens_per_expert,
                per_expert);
  expect_values(owner_.tensors, "tokens_per_node", routing.device_counts->tokens_per_node,
                per_node);
}

void GpuRound::check(const ep::Dispatched& got, bool from_cache, bool worst_case_layout) {
  owner_.settle();
  const std::int64_t worst = call_.dispatch.worst_case_rows;
  const bool sizes_here = from_cache ? !worst_case_layout : worst == 0;
  expect(got.x.dtype == call_.dtype && got.x.rank == 2 && got.x.shape[1] == columns_ &&
             got.x.contiguous() && got.x.device == owner_.tensors.device(),
         "x is " + got.x.describe());
  if (worst > 0)
    expect(got.x.shape[0] == worst, "x does not have worst_case_rows rows");
  else if (sizes_here)
    expect(got.x.shape[0] == rows(), fmt::format("x has {} rows, not {}", got.x.shape[0], rows()));
  expect(got.rows == (sizes_here ? std::optional(rows()) : std::nullopt),
         fmt::format("rows is {}, expected {}", got.rows.value_or(-1), rows()));
  expect(got.handle.valid() && got.handle.received_rows() == got.rows,
         "received_rows() differs from rows");
  expect(
      got.rows_per_source == (sizes_here ? std::optional(expected_.rows_per_source) : std::nullopt),
      "rows_per_source differs");
  std::vector<std::int64_t> aligned;
  const std::int64_t alignment = call_.dispatch.expert_alignment;
  if (worst == 0 && !from_cache)
    for (const std::int64_t tokens : expected_.tokens_per_expert)
      aligned.push_back((tokens + alignment - 1) / alignment * alignment);
  expect(
      got.tokens_per_expert == (worst == 0 && !from_cache ? std::optional(aligned) : std::nullopt),
      "tokens_per_expert differs");
  expect_values(owner_.tensors, "rows", got.device_counts->rows,
                std::vector{static_cast<std::int32_t>(rows())});
  expect_values(owner_.tensors, "tokens_per_expert", got.device_counts->tokens_per_expert,
                std::vector<std::int32_t>(expected_.tokens_per_expert.begin(),
                                          expected_.tokens_per_expert.end()));
  check_side(got, from_cache);
  check_rows(got);
}

void GpuRound::check_side(const ep::Dispatched& got, bool from_cache) {
  const std::int64_t filler = (got.x.shape[0] - rows()) * case_.top_k;
  const bool filled = call_.dispatch.worst_case_rows > 0;
  const auto table = [&](const char* name, const std::optional<Tensor>& given, bool expected,
                         DataType dtype, std::int64_t columns) {
    expect(given.has_value() == expected, fmt::format("{} is given: {}", name, given.has_value()));
    if (!expected) return false;
    const Tensor& tensor = *given;
    expect(tensor.dtype == dtype && tensor.shape[0] == got.x.shape[0] &&
               tensor.device == owner_.tensors.device(),
           fmt::format("{} is {}", name, tensor.describe()));
    expect(tensor.rank == 1 || (tensor.shape[1] == columns && tensor.strides[1] == 1),
           fmt::format("{} is {}", name, tensor.describe()));
    return true;
  };
  if (table("topk_idx", got.topk_idx, !from_cache, DataType::int64, case_.top_k)) {
    std::vector<std::int64_t> wanted = expected_.topk_idx;
    wanted.insert(wanted.end(), filler, -1);
    expect_values(owner_.tensors, "topk_idx", *got.topk_idx, wanted);
  }
  if (table("topk_weights", got.topk_weights, call_.weights, DataType::float32, case_.top_k)) {
    std::vector<float> wanted = expected_.weights;
    if (filled) wanted.insert(wanted.end(), filler, 0.0F);
    expect_values(owner_.tensors, "topk_weights",
                  filled ? TensorView(*got.topk_weights) : first_rows(*got.topk_weights, rows()),
                  wanted);
  }
  if (table("source_token", got.source_token, !from_cache, DataType::int32, 1))
    expect_values(owner_.tensors, "source_token", first_rows(*got.source_token, rows()),
                  expected_.source_token);
  if (table("scales", got.scales, call_.scales > 0, call_.scale_dtype, call_.scales)) {
    std::vector<std::uint32_t> wanted;
    for (std::int64_t i = 0; i < rows(); ++i)
      for (std::int64_t s = 0; s < call_.scales; ++s)
        wanted.push_back(scale_of(salt_, expected_.source_rank[i], expected_.source_token[i], s));
    expect_values(owner_.tensors, "scales", first_rows(*got.scales, rows()), wanted);
  }
}

void GpuRound::check_rows(const ep::Dispatched& got) {
  Fetched fetched(owner_.tensors, first_rows(got.x, rows()), call_.samples == 0);
  std::vector<std::byte> wanted(row_bytes());
  for (const std::int64_t i : chosen(rows(), call_.samples)) {
    fill_row(salt_, expected_.source_rank[i], expected_.source_token[i], wanted.data(),
             row_bytes());
    expect_same(fmt::format("row {} of x, token {} of rank {} ({})", i, expected_.source_token[i],
                            expected_.source_rank[i], case_.describe()),
                fetched.row(i), wanted.data(), row_bytes(), 1);
  }
}

std::vector<std::uint32_t> GpuRound::expected_sum(std::int64_t token,
                                                  const std::int64_t* experts) const {
  const auto owners = ranks_of(case_, experts);
  const DataType dtype = call_.output_dtype;
  std::vector<std::uint32_t> wanted(case_.hidden);
  std::vector<float> sums(case_.hidden);
  for (std::int64_t ch = 0; ch < case_.hidden; ++ch)
    for (int b = 0; b < call_.biases; ++b)
      sums[ch] += decode(dtype, bias_bits(salt_, dtype, b, owner_.me, token, ch));
  // Adds the sum of the outputs of some ranks after its way.
  const auto add = [&](const auto& among) {
    std::vector<float> row(case_.hidden);
    for (const std::int32_t owner : owners)
      for (std::int64_t ch = 0; among(owner) && ch < case_.hidden; ++ch)
        row[ch] += decode(dtype, output_bits(salt_, dtype, owner, owner_.me, token, ch));
    for (float& value : row) value = decode(dtype, encode(dtype, value));
    if (call_.combine_quantize != ep::Quantize::none) ep::pass_combine(call_.combine_quantize, row);
    for (std::int64_t ch = 0; ch < case_.hidden; ++ch) sums[ch] += row[ch];
  };
  if (case_.nodes == 1)
    for (const std::int32_t rank : owners) add([&](std::int32_t owner) { return owner == rank; });
  else
    for (const std::int32_t node : nodes_of(case_, owners))
      add([&](std::int32_t owner) { return case_.node_of(owner) == node; });
  std::ranges::transform(sums, wanted.begin(), [&](float sum) { return encode(dtype, sum); });
  return wanted;
}

void GpuRound::check(const ep::Combined& got) {
  owner_.settle();
  expect(got.x.dtype == call_.output_dtype && got.x.rank == 2 && got.x.shape[0] == tokens_ &&
             got.x.shape[1] == case_.hidden && got.x.contiguous(),
         "the combined x is " + got.x.describe());
  if (call_.out) {
    expect(got.x.data == out_.data, "combine did not write to CombineOptions.out");
    const Tensor rest = owner_.tensors.download(row_of(out_, tokens_));
    const std::vector<std::uint8_t> untouched(rest.bytes(), 0xff);
    expect_same("the row after CombineOptions.out", rest.data, untouched.data(), rest.bytes(), 1);
  }
  const auto topk = topk_values();
  const std::size_t element = size_of(call_.output_dtype);
  Fetched fetched(owner_.tensors, got.x, call_.samples == 0);
  std::vector<std::byte> wanted(case_.hidden * element);
  for (const std::int64_t t : chosen(tokens_, call_.samples)) {
    const auto bits = expected_sum(t, topk.data() + t * case_.top_k);
    for (std::int64_t ch = 0; ch < case_.hidden; ++ch)
      store(call_.output_dtype, wanted.data(), ch, bits[ch]);
    expect_same(fmt::format("combined token {} ({})", t, case_.describe()), fetched.row(t),
                wanted.data(), wanted.size(), element);
  }
  expect(got.topk_weights.has_value() == (call_.weights && call_.combine_weights),
         "combined weights");
  if (!got.topk_weights.has_value()) return;
  std::vector<float> back = case_.weights(owner_.me);
  back.resize(topk.size());
  for (std::size_t i = 0; i < back.size(); ++i)
    if (topk[i] < 0) back[i] = 0;
  expect_values(owner_.tensors, "combined weights", *got.topk_weights, back);
}

void GpuRound::poison(const ep::Dispatched& got) {
  for (const Tensor& tensor :
       {got.x, got.topk_idx.value_or(Tensor()), got.topk_weights.value_or(Tensor()),
        got.source_token.value_or(Tensor()), got.scales.value_or(Tensor())})
    if (tensor.defined()) owner_.tensors.poison(tensor);
}

}  // namespace shoal::test
