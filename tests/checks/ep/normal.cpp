// SPDX-License-Identifier: Apache-2.0
#include "checks/ep/normal.hpp"

#include <fmt/format.h>

#include <cstring>
#include <stdexcept>

#include "ep/numeric/rows.hpp"
#include "support/made_up.hpp"

namespace shoal::test {

namespace numeric = ep::numeric;

namespace {

template <typename T>
Tensor tensor_of(DataType dtype, const std::vector<T>& values,
                 std::initializer_list<std::int64_t> shape) {
  Tensor tensor = Tensor::empty(dtype, shape);
  expect(tensor.bytes() == values.size() * sizeof(T), "a test tensor has the wrong size");
  if (!values.empty()) std::memcpy(tensor.data, values.data(), tensor.bytes());
  return tensor;
}

void check_dispatched(const EpCase& c, std::int32_t me, const ep::Dispatched& got,
                      const ep::DispatchOptions& options) {
  const ExpectedDispatch wanted = expected_dispatch(c, me);
  const auto rows = static_cast<std::int64_t>(wanted.source_token.size());
  expect(got.rows == rows, fmt::format("received {} rows, expected {} ({})", got.rows.value_or(-1),
                                       rows, c.describe()));
  expect(got.x.shape[0] == std::max(rows, options.worst_case_rows),
         "x has the wrong number of rows");
  expect_same("source_token", got.source_token->data, wanted.source_token.data(), rows * 4, 4);
  expect_same("topk_idx", got.topk_idx->data, wanted.topk_idx.data(), rows * c.top_k * 8, 8);
  for (std::int64_t i = rows * c.top_k; i < got.x.shape[0] * c.top_k; ++i)
    expect(got.topk_idx->as<std::int64_t>()[i] == -1,
           "a row that no token fills has a topk_idx other than -1");
  if (got.topk_weights.has_value())
    expect_same("topk_weights", got.topk_weights->data, wanted.weights.data(), rows * c.top_k * 4,
                4);
  expect(got.rows_per_source == wanted.rows_per_source, "rows_per_source differs");
  if (options.worst_case_rows == 0)
    for (std::size_t e = 0; e < wanted.tokens_per_expert.size(); ++e) {
      const std::int64_t a = options.expert_alignment;
      expect((*got.tokens_per_expert)[e] == (wanted.tokens_per_expert[e] + a - 1) / a * a,
             "tokens_per_expert differs");
    }
  std::vector<std::uint16_t> row(c.hidden);
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t ch = 0; ch < c.hidden; ++ch)
      row[ch] = c.value(wanted.source_rank[i], wanted.source_token[i], ch);
    expect_same(fmt::format("row {} of x ({})", i, c.describe()),
                got.x.as<std::uint16_t>() + i * c.hidden, row.data(), c.hidden * 2, 2);
  }
}

}  // namespace

Settings ep_settings() {
  Settings settings;
  settings.symmetric_size = std::size_t{256} << 20;
  settings.timeout = std::chrono::seconds(20);
  return settings;
}

ep::GroupOptions options_for(const EpCase& c) {
  ep::GroupOptions options;
  options.max_tokens = c.max_tokens;
  options.low_latency_max_tokens = c.max_tokens;
  options.hidden = c.hidden;
  options.top_k = c.top_k;
  options.experts = c.experts;
  options.first_expert = c.first_expert;
  options.none_expert = c.none_expert;
  return options;
}

Inputs::Inputs(const EpCase& c, std::int32_t rank) {
  const std::int64_t tokens = c.tokens(rank);
  x = tensor_of(DataType::bfloat16, c.rows(rank), {tokens, c.hidden});
  topk_idx = tensor_of(DataType::int64, c.given_topk(rank), {tokens, c.top_k});
  weights = tensor_of(DataType::float32, c.weights(rank), {tokens, c.top_k});
}

Tensor expert_output_of(const EpCase& c, std::int32_t rank, const ep::Dispatched& received) {
  Tensor y = Tensor::empty(DataType::bfloat16, {received.x.shape[0], c.hidden});
  if (y.bytes() > 0) std::memset(y.data, 0, y.bytes());
  for (std::int64_t i = 0; i < received.rows; ++i)
    for (std::int64_t ch = 0; ch < c.hidden; ++ch)
      y.as<std::uint16_t>()[i * c.hidden + ch] =
          expert_output(c, rank, received.x.as<std::uint16_t>()[i * c.hidden + ch],
                        received.topk_idx->as<std::int64_t>() + i * c.top_k,
                        received.topk_weights->as<float>() + i * c.top_k);
  return y;
}

void check_normal(ep::Group& group, const EpCase& c, const ep::DispatchOptions& extra,
                  ep::Quantize quantize) {
  const std::int32_t me = group.team().my_pe();
  const Inputs in(c, me);
  ep::DispatchOptions options = extra;
  options.weights = in.weights;
  const ep::Routing routing = group.route(in.topk_idx);
  const ep::Dispatched received = group.dispatch(in.x, routing, options);
  check_dispatched(c, me, received, options);

  Tensor y = expert_output_of(c, me, received);
  // Expert output in the heap is fetched from there; other output is staged.
  const bool in_place = c.seed % 2 == 0 && !options.copy_out;
  if (in_place && y.bytes() > 0) std::memcpy(received.x.data, y.data, y.bytes());
  const ep::Combined combined =
      group.combine(in_place ? static_cast<const TensorView&>(received.x) : y, received.handle,
                    {.weights = received.topk_weights.value_or(Tensor()), .quantize = quantize});
  const auto wanted = expected_combine(c, me, nullptr, nullptr,
                                       quantize == ep::Quantize::none
                                           ? Travel()
                                           : combine_travel(ep::detail::encoding_of(quantize)));
  expect_same("combined x (" + c.describe() + ")", combined.x.data, wanted.data(),
              wanted.size() * 2, 2);
  // The weight of each top-k slot returns from the one rank that has its expert.
  const std::vector<std::int64_t> topk = c.topk(me);
  for (std::size_t i = 0; i < topk.size(); ++i) {
    const float w = topk[i] >= 0 ? in.weights.as<float>()[i] : 0.0F;
    expect(combined.topk_weights->as<float>()[i] == w, "a combined weight differs");
  }
}

namespace {

numeric::ScaleRounding rounding_of(ep::Quantize quantize) {
  return quantize == ep::Quantize::fp8 ? numeric::ScaleRounding::none
                                       : numeric::ScaleRounding::power_of_two;
}

std::span<const numeric::Bf16> as_numeric(std::span<const std::uint16_t> row) {
  return {reinterpret_cast<const numeric::Bf16*>(row.data()), row.size()};
}

bool has_bytes(ep::Quantize quantize) {
  return quantize >= ep::Quantize::fp8_ue8m0;
}

std::int64_t channels_of_scale(ep::Quantize quantize) {
  return quantize == ep::Quantize::nvfp4 ? 16 : quantize == ep::Quantize::mxfp8 ? 32 : 128;
}

/// Byte `g` of the scales of a received row, which are bytes, as ScaleLayout describes them.
std::uint8_t scale_byte(const TensorView& scales, std::int64_t expert, std::int64_t row,
                        std::int64_t g) {
  const auto* const bytes = scales.as<std::uint8_t>();
  if (scales.rank == 4)  // tiles
    return bytes[((expert * scales.shape[1] + row / 128) * scales.shape[2] + g / 4) * 512 +
                 row % 32 * 16 + row % 128 / 32 * 4 + g % 4];
  const std::int64_t at = expert * scales.strides[0] + row * scales.strides[1];
  return scales.dtype == DataType::int32 ? bytes[(at + g / 4 * scales.strides[2]) * 4 + g % 4]
                                         : bytes[at + g * scales.strides[2]];
}

/// Scale `g` of a received row.
float scale_at(const TensorView& scales, ep::Quantize quantize, std::int64_t expert,
               std::int64_t row, std::int64_t g) {
  if (!has_bytes(quantize))
    return scales
        .as<float>()[expert * scales.strides[0] + row * scales.strides[1] + g * scales.strides[2]];
  const std::uint8_t byte = scale_byte(scales, expert, row, g);
  return quantize == ep::Quantize::nvfp4 ? numeric::div(numeric::decode_e4m3(byte), kGlobalScale)
                                         : numeric::decode_ue8m0(byte);
}

/// Channel `ch` of the row whose codes these are, without its scale.
float decoded(ep::Quantize quantize, const std::uint8_t* codes, std::int64_t ch) {
  if (quantize != ep::Quantize::nvfp4) return numeric::decode_e4m3(codes[ch]);
  return numeric::decode_e2m1(codes[ch / 2] >> (ch % 2 * 4) & 0xfU);
}

/// A row by numeric/.
struct EncodedRow {
  std::vector<std::uint8_t> codes;
  std::vector<float> scales;

  EncodedRow(ep::Quantize quantize, std::span<const std::uint16_t> row) : codes(row.size()) {
    const auto channels = static_cast<std::size_t>(channels_of_scale(quantize));
    scales.resize((row.size() + channels - 1) / channels);
    std::vector<std::uint8_t> bytes(scales.size());
    if (quantize == ep::Quantize::nvfp4) {
      codes.resize(row.size() / 2);
      numeric::quantize_nvfp4_row(as_numeric(row), kGlobalScale, codes, bytes);
      for (std::size_t g = 0; g < bytes.size(); ++g)
        scales[g] = numeric::div(numeric::decode_e4m3(bytes[g]), kGlobalScale);
    } else if (quantize == ep::Quantize::mxfp8) {
      numeric::quantize_mxfp8_row(as_numeric(row), codes, bytes);
      for (std::size_t g = 0; g < bytes.size(); ++g) scales[g] = numeric::decode_ue8m0(bytes[g]);
    } else {
      numeric::quantize_row(as_numeric(row), rounding_of(quantize), codes, scales);
    }
  }
};

}  // namespace

std::vector<ep::Quantize> quantizations_for(std::int64_t hidden) {
  using enum ep::Quantize;
  std::vector<ep::Quantize> all{none};
  if (hidden % 16 == 0) all.insert(all.end(), {fp8, fp8_power_of_two, fp8_ue8m0});
  if (hidden % 32 == 0) all.push_back(mxfp8);
  if (hidden % 64 == 0) all.push_back(nvfp4);
  return all;
}

void check_low_latency_scales(const EpCase& c, std::int32_t rank, const ep::LowLatencyReceived& got,
                              ep::Quantize quantize) {
  const ExpectedLowLatency wanted = expected_low_latency_dispatch(c, rank);
  const std::int64_t rows = got.x.shape[1], channels = channels_of_scale(quantize),
                     groups = (c.hidden + channels - 1) / channels, words = (groups + 3) / 4;
  const TensorView& s = *got.scales;
  const bool bytes = has_bytes(quantize),
             columns = bytes ? s.dtype == DataType::int32 : s.strides[2] == rows;
  if (s.rank == 4) {
    expect(bytes && s.shape[0] == c.local_experts() && s.shape[1] == (rows + 127) / 128 &&
               s.shape[2] == words && s.shape[3] == 512,
           "scales are " + s.describe());
  } else {
    const std::int64_t n = bytes && columns ? words : groups;
    expect(s.dtype == (!bytes                            ? DataType::float32
                       : columns                         ? DataType::int32
                       : quantize == ep::Quantize::nvfp4 ? DataType::float8_e4m3
                                                         : DataType::uint8),
           "scales have the wrong dtype");
    expect(s.rank == 3 && s.shape[0] == c.local_experts() && s.shape[1] == rows && s.shape[2] == n,
           "scales are " + s.describe());
    const std::int64_t pitch = bytes ? 4 * words : groups;  // of a row, where rows lie together
    expect(columns ? s.strides[0] == n * rows && s.strides[2] == rows
                   : s.strides[0] == pitch * rows && s.strides[1] == pitch && s.strides[2] == 1,
           "scales have the wrong strides");
  }
  std::vector<std::uint16_t> row(c.hidden);
  for (std::size_t e = 0; e < wanted.rows.size(); ++e)
    for (std::size_t i = 0; i < wanted.rows[e].size(); ++i) {
      const auto [source, token] = wanted.rows[e][i];
      for (std::int64_t ch = 0; ch < c.hidden; ++ch) row[ch] = c.value(source, token, ch);
      const EncodedRow encoded(quantize, row);
      expect_same("quantized row", got.x.as<std::uint8_t>() + (e * rows + i) * encoded.codes.size(),
                  encoded.codes.data(), encoded.codes.size(), 1);
      for (std::int64_t g = 0; g < groups; ++g) {
        const float scale = scale_at(s, quantize, e, i, g);
        expect(scale == encoded.scales[g] || (scale != scale && encoded.scales[g] != scale),
               [&] { return "a scale differs (" + c.describe() + ")"; });
      }
      // Bytes of a word that no group fills are 0.
      for (std::int64_t g = groups; bytes && columns && g < 4 * words; ++g)
        expect(scale_byte(s, e, i, g) == 0, "a byte without a group is not 0");
    }
}

Travel quantized_travel(ep::Quantize quantize) {
  return [quantize](std::span<const std::uint16_t> row, std::span<float> arrived) {
    const EncodedRow encoded(quantize, row);
    const std::int64_t channels = channels_of_scale(quantize);
    for (std::size_t ch = 0; ch < row.size(); ++ch)
      arrived[ch] =
          numeric::mul(decoded(quantize, encoded.codes.data(), ch), encoded.scales[ch / channels]);
  };
}

Travel combine_travel(ep::detail::CombineEncoding encoding) {
  return [encoding](std::span<const std::uint16_t> row, std::span<float> arrived) {
    std::ranges::copy(ep::after_combine(encoding, row), arrived.begin());
  };
}

Travels combine_travels(ep::detail::CombineEncoding encoding, bool sums) {
  Travels travels{.to_experts = {}, .back = combine_travel(encoding)};
  if (sums) travels.sums = travels.back;
  return travels;
}

ep::detail::CombineEncoding combine_encoding(bool log_fmt, ep::Quantize quantize) {
  return encoding_of(ep::detail::agreed_form(log_fmt, quantize, false));
}

void check_low_latency_received(const EpCase& c, std::int32_t rank,
                                const ep::LowLatencyReceived& got, const std::vector<int>& masked) {
  const ExpectedLowLatency wanted = expected_low_latency_dispatch(c, rank, masked);
  const std::int64_t rows = got.x.shape[1];
  expect(got.layout.dtype == DataType::int64 && got.layout.rank == 2 &&
             got.layout.shape[0] == c.local_experts() && got.layout.shape[1] == c.ranks,
         "layout is " + got.layout.describe());
  expect_same("layout", got.layout.data, wanted.layout.data(), wanted.layout.size() * 8, 8);
  for (std::size_t e = 0; e < wanted.rows.size(); ++e) {
    expect(got.counts.as<std::int32_t>()[e] == static_cast<std::int32_t>(wanted.rows[e].size()),
           "counts differ");
    for (std::size_t i = 0; i < wanted.rows[e].size(); ++i) {
      const auto [source, token] = wanted.rows[e][i];
      expect(got.source_token.as<std::int32_t>()[e * rows + i] == token, "source_token differs");
      if (got.x.dtype != DataType::bfloat16) continue;
      const std::uint16_t* x = got.x.as<std::uint16_t>() + (e * rows + i) * c.hidden;
      for (std::int64_t ch = 0; ch < c.hidden; ++ch)
        expect(x[ch] == c.value(source, token, ch),
               [&] { return "a low-latency row differs (" + c.describe() + ")"; });
    }
  }
}

void write_low_latency_expert_output(const EpCase& c, std::int32_t rank,
                                     const ep::LowLatencyReceived& got, const TensorView& y,
                                     ep::Quantize quantize) {
  const std::int64_t rows = got.x.shape[1];
  for (std::int64_t e = 0; e < c.experts_of(rank); ++e) {
    const float factor = expert_factor(static_cast<std::int32_t>(c.first_of(rank) + e));
    for (std::int64_t i = 0; i < got.counts.as<std::int32_t>()[e]; ++i) {
      const std::int64_t from = (e * rows + i) * got.x.shape[2];
      std::uint16_t* to = y.as<std::uint16_t>() + e * y.strides[0] + i * y.strides[1];
      for (std::int64_t ch = 0; ch < c.hidden; ++ch) {
        const float x =
            got.x.dtype == DataType::bfloat16
                ? float_of_bf16(got.x.as<std::uint16_t>()[from + ch])
                : decoded(quantize, got.x.as<std::uint8_t>() + from, ch) *
                      scale_at(*got.scales, quantize, e, i, ch / channels_of_scale(quantize));
        to[ch] = bf16_of(factor * x);
      }
    }
  }
}

void check_low_latency(ep::Group& group, const EpCase& c, ep::Reduction reduction, bool zero_copy,
                       bool early_weights) {
  const std::int32_t me = group.team().my_pe();
  const Inputs in(c, me);
  const ep::LowLatencyReceived got =
      group
          .low_latency_dispatch(
              in.x, in.topk_idx,
              {.quantize = ep::Quantize::none,
               .weights =
                   early_weights ? static_cast<const TensorView&>(in.weights) : TensorView{}})
          .receive();
  expect(!got.scales.has_value(), "bfloat16 rows have scales");
  check_low_latency_received(c, me, got);

  Tensor plain;
  if (!zero_copy)
    plain = Tensor::empty(DataType::bfloat16, {c.local_experts(), got.x.shape[1], c.hidden});
  const TensorView y =
      zero_copy ? group.next_combine_buffer() : static_cast<const TensorView&>(plain);
  write_low_latency_expert_output(c, me, got, y);
  const Tensor out = group
                         .low_latency_combine(y, in.topk_idx, in.weights, got.handle,
                                              {.zero_copy = zero_copy, .reduction = reduction})
                         .receive();
  const auto wanted = expected_low_latency(c, me, reduction);
  expect_same("low-latency result (" + c.describe() + ")", out.data, wanted.data(),
              wanted.size() * 2, 2);
}

void check_low_latency_unsummed(ep::Group& group, const EpCase& c) {
  using ep::detail::CombineEncoding;
  const std::int32_t me = group.team().my_pe();
  const Inputs in(c, me);
  const Tensor plain =
      Tensor::empty(DataType::bfloat16, {c.local_experts(), c.ranks * c.max_tokens, c.hidden});
  for (const CombineEncoding encoding : {CombineEncoding::bfloat16, CombineEncoding::log_fmt,
                                         CombineEncoding::fp8, CombineEncoding::mxfp8}) {
    const auto quantize = encoding == CombineEncoding::fp8     ? ep::Quantize::fp8
                          : encoding == CombineEncoding::mxfp8 ? ep::Quantize::mxfp8
                                                               : ep::Quantize::none;
    if (c.hidden % ep::detail::hidden_multiple(quantize) != 0) continue;
    // Then some ranks sum, which the others need not know.
    for (const bool all : {true, false}) {
      ep::LowLatencyDispatchOptions dispatch{.quantize = ep::Quantize::none};
      if (all) dispatch.weights = in.weights;
      const ep::LowLatencyReceived got =
          group.low_latency_dispatch(in.x, in.topk_idx, dispatch).receive();
      const bool unsummed = all || me % 2 == 0;
      ep::LowLatencyCombineOptions options{
          .log_fmt = encoding == CombineEncoding::log_fmt,
          .quantize = quantize,
          .zero_copy = all && encoding == CombineEncoding::bfloat16,
          .reduction = unsummed ? ep::Reduction::automatic : ep::Reduction::exact,
          .unsummed = unsummed,
          .defer_receive = all};
      const TensorView y =
          options.zero_copy ? group.next_combine_buffer() : static_cast<const TensorView&>(plain);
      write_low_latency_expert_output(c, me, got, y);
      const Tensor room = Tensor::empty(DataType::bfloat16, {c.tokens(me), c.top_k, c.hidden});
      if (unsummed && !all) options.out = room;
      ConstTensorView weights;
      if (!all) weights = in.weights;
      const Tensor out =
          group.low_latency_combine(y, in.topk_idx, weights, got.handle, options).receive();
      const Travels travels{.to_experts = {}, .back = combine_travel(encoding)};
      const auto wanted = unsummed ? expected_unsummed(c, me, {}, travels)
                                   : expected_low_latency(c, me, ep::Reduction::exact, {}, travels);
      expect(out.rank == (unsummed ? 3 : 2) && out.size() == std::ssize(wanted),
             "the result is " + out.describe());
      expect_same(fmt::format("{} rows ({})", name_of(encoding), c.describe()), out.data,
                  wanted.data(), wanted.size() * 2, 2);
    }
  }
}

void check_low_latency_quantized(ep::Group& group, const EpCase& c, ep::Quantize quantize,
                                 ep::Reduction reduction, ep::ScaleLayout layout) {
  const std::int32_t me = group.team().my_pe();
  const Inputs in(c, me);
  ep::LowLatencyDispatchOptions options{.quantize = quantize, .scale_layout = layout};
  if (quantize == ep::Quantize::nvfp4)
    options.global_scale = ConstTensorView(&kGlobalScale, DataType::float32, {1});
  const ep::LowLatencyReceived got =
      group.low_latency_dispatch(in.x, in.topk_idx, options).receive();
  check_low_latency_received(c, me, got);
  check_low_latency_scales(c, me, got, quantize);

  const TensorView y = group.next_combine_buffer();
  write_low_latency_expert_output(c, me, got, y, quantize);
  const Tensor out = group
                         .low_latency_combine(y, in.topk_idx, in.weights, got.handle,
                                              {.zero_copy = true, .reduction = reduction})
                         .receive();
  const auto wanted = expected_low_latency(c, me, reduction, {},
                                           {.to_experts = quantized_travel(quantize), .back = {}});
  expect_same("quantized low-latency result (" + c.describe() + ")", out.data, wanted.data(),
              wanted.size() * 2, 2);
}

void check_low_latency_formats(ep::Group& group, const EpCase& c) {
  using enum ep::ScaleLayout;
  for (const ep::Quantize quantize : quantizations_for(c.hidden))
    for (const ep::ScaleLayout layout : {automatic, rows, columns, tiles}) {
      if (quantize == ep::Quantize::none || (layout == tiles && !has_bytes(quantize))) continue;
      check_low_latency_quantized(group, c, quantize, ep::Reduction::per_rank, layout);
    }
}

}  // namespace shoal::test
