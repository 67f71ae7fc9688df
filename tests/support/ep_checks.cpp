#include "support/ep_checks.hpp"

#include <fmt/format.h>

#include <cstring>
#include <stdexcept>

#include "ep/numeric/rows.hpp"

namespace shoal::test {
namespace {

void expect(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what);
}

template <typename T>
Tensor tensor_of(DataType dtype, const std::vector<T>& values, std::initializer_list<std::int64_t> shape) {
  Tensor tensor = Tensor::empty(dtype, shape);
  expect(tensor.bytes() == values.size() * sizeof(T), "a test tensor has the wrong size");
  if (!values.empty()) std::memcpy(tensor.data, values.data(), tensor.bytes());
  return tensor;
}

void check_dispatched(const EpCase& c, std::int32_t me, const ep::Dispatched& got, const ep::DispatchOptions& options) {
  const ExpectedDispatch wanted = expected_dispatch(c, me);
  const auto rows = static_cast<std::int64_t>(wanted.source_token.size());
  expect(got.rows == rows, fmt::format("received {} rows, expected {} ({})", got.rows, rows, c.describe()));
  expect(got.x.shape[0] == std::max(rows, options.worst_case_rows), "x has the wrong number of rows");
  expect_same("source_token", got.source_token.data, wanted.source_token.data(), rows * 4, 4);
  expect_same("topk_idx", got.topk_idx.data, wanted.topk_idx.data(), rows * c.top_k * 8, 8);
  for (std::int64_t i = rows * c.top_k; i < got.x.shape[0] * c.top_k; ++i)
    expect(got.topk_idx.as<std::int64_t>()[i] == -1, "a row that no token fills has a topk_idx other than -1");
  if (got.topk_weights.defined())
    expect_same("topk_weights", got.topk_weights.data, wanted.weights.data(), rows * c.top_k * 4, 4);
  expect(got.rows_per_source == wanted.rows_per_source, "rows_per_source differs");
  if (options.worst_case_rows == 0)
    for (std::size_t e = 0; e < wanted.tokens_per_expert.size(); ++e) {
      const std::int64_t a = options.expert_alignment;
      expect(got.tokens_per_expert[e] == (wanted.tokens_per_expert[e] + a - 1) / a * a, "tokens_per_expert differs");
    }
  std::vector<std::uint16_t> row(c.hidden);
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t ch = 0; ch < c.hidden; ++ch) row[ch] = c.value(wanted.source_rank[i], wanted.source_token[i], ch);
    expect_same(fmt::format("row {} of x ({})", i, c.describe()), got.x.as<std::uint16_t>() + i * c.hidden, row.data(),
                c.hidden * 2, 2);
  }
}

}  // namespace

ep::GroupOptions options_for(const EpCase& c) {
  ep::GroupOptions options;
  options.max_tokens = c.max_tokens;
  options.low_latency_max_tokens = c.max_tokens;
  options.hidden = c.hidden;
  options.top_k = c.top_k;
  options.experts = c.experts;
  return options;
}

Inputs::Inputs(const EpCase& c, std::int32_t rank) {
  const std::int64_t tokens = c.tokens(rank);
  x = tensor_of(DataType::bfloat16, c.rows(rank), {tokens, c.hidden});
  topk_idx = tensor_of(DataType::int64, c.topk(rank), {tokens, c.top_k});
  weights = tensor_of(DataType::float32, c.weights(rank), {tokens, c.top_k});
}

Tensor answers_to(const EpCase& c, std::int32_t rank, const ep::Dispatched& received) {
  Tensor y = Tensor::empty(DataType::bfloat16, {received.x.shape[0], c.hidden});
  if (y.bytes() > 0) std::memset(y.data, 0, y.bytes());
  for (std::int64_t i = 0; i < received.rows; ++i)
    for (std::int64_t ch = 0; ch < c.hidden; ++ch)
      y.as<std::uint16_t>()[i * c.hidden + ch] =
          answer(c, rank, received.x.as<std::uint16_t>()[i * c.hidden + ch],
                 received.topk_idx.as<std::int64_t>() + i * c.top_k, received.topk_weights.as<float>() + i * c.top_k);
  return y;
}

void check_normal(ep::Group& group, const EpCase& c, const ep::DispatchOptions& extra) {
  const std::int32_t me = group.team().my_pe();
  const Inputs in(c, me);
  ep::DispatchOptions options = extra;
  options.weights = in.weights;
  const ep::Routing routing = group.route(in.topk_idx);
  const ep::Dispatched received = group.dispatch(in.x, routing, options);
  check_dispatched(c, me, received, options);

  Tensor y = answers_to(c, me, received);
  const bool in_place =
      c.seed % 2 == 0 && !options.copy_out;  // answers in the heap are fetched from there, others are staged
  if (in_place && y.bytes() > 0) std::memcpy(received.x.data, y.data, y.bytes());
  const ep::Combined combined = group.combine(in_place ? static_cast<const TensorView&>(received.x) : y,
                                              received.handle, {.weights = received.topk_weights});
  const auto wanted = expected_combine(c, me);
  expect_same("combined x (" + c.describe() + ")", combined.x.data, wanted.data(), wanted.size() * 2, 2);
  for (std::int64_t i = 0; i < c.tokens(me) * c.top_k;
       ++i) {  // each lane's weight comes back from the one member that has its expert
    const float w = in.topk_idx.as<std::int64_t>()[i] >= 0 ? in.weights.as<float>()[i] : 0.0F;
    expect(combined.topk_weights.as<float>()[i] == w, "a combined weight differs");
  }
}

void check_low_latency(ep::Group& group, const EpCase& c, ep::Reduction reduction, bool zero_copy) {
  const std::int32_t me = group.team().my_pe();
  const Inputs in(c, me);
  const ep::LowLatencyReceived got =
      group.low_latency_dispatch(in.x, in.topk_idx, {.quantize = ep::Quantize::none}).receive();

  const std::int64_t rows = got.x.shape[1];
  Tensor plain;
  if (!zero_copy) plain = Tensor::empty(DataType::bfloat16, {c.local_experts(), rows, c.hidden});
  const TensorView y = zero_copy ? group.next_combine_buffer() : static_cast<const TensorView&>(plain);
  for (std::int32_t e = 0; e < c.local_experts(); ++e) {
    std::int64_t row = 0;
    for (std::int32_t source = 0; source < c.ranks; ++source) {
      const auto lanes = c.topk(source);
      for (std::int64_t t = 0; t < c.tokens(source); ++t)
        for (std::int32_t k = 0; k < c.top_k; ++k) {
          if (lanes[t * c.top_k + k] != me * c.local_experts() + e) continue;
          expect(got.source_token.as<std::int32_t>()[e * rows + row] == t, "source_token differs");
          for (std::int64_t ch = 0; ch < c.hidden; ++ch) {
            const std::uint16_t x = got.x.as<std::uint16_t>()[(e * rows + row) * c.hidden + ch];
            expect(x == c.value(source, t, ch), "a low-latency row differs (" + c.describe() + ")");
            y.as<std::uint16_t>()[e * y.strides[0] + row * y.strides[1] + ch] =
                bf16_of(expert_factor(me * c.local_experts() + e) * float_of_bf16(x));
          }
          ++row;
        }
    }
    expect(got.counts.as<std::int32_t>()[e] == row, "counts differ");
  }
  const Tensor out =
      group
          .low_latency_combine(y, in.topk_idx, in.weights, got.handle, {.zero_copy = zero_copy, .reduction = reduction})
          .receive();
  const auto wanted = expected_low_latency(c, me, reduction);
  expect_same("low-latency result (" + c.describe() + ")", out.data, wanted.data(), wanted.size() * 2, 2);
}

void check_low_latency_fp8(ep::Group& group, const EpCase& c, ep::Quantize quantize) {
  namespace numeric = ep::numeric;
  const std::int32_t me = group.team().my_pe();
  const Inputs in(c, me);
  const ep::LowLatencyReceived got = group.low_latency_dispatch(in.x, in.topk_idx, {.quantize = quantize}).receive();
  const std::int64_t rows = got.x.shape[1], groups = (c.hidden + 127) / 128;
  const auto rounding =
      quantize == ep::Quantize::fp8 ? numeric::ScaleRounding::none : numeric::ScaleRounding::power_of_two;
  for (std::int32_t e = 0; e < c.local_experts(); ++e) {
    std::int64_t row = 0;
    for (std::int32_t source = 0; source < c.ranks; ++source) {
      const auto lanes = c.topk(source);
      for (std::int64_t t = 0; t < c.tokens(source); ++t)
        for (std::int32_t k = 0; k < c.top_k; ++k) {
          if (lanes[t * c.top_k + k] != me * c.local_experts() + e) continue;
          std::vector<numeric::Bf16> x(c.hidden);
          for (std::int64_t ch = 0; ch < c.hidden; ++ch) x[ch].bits = c.value(source, t, ch);
          std::vector<std::uint8_t> codes(c.hidden);
          std::vector<float> inverse(groups);
          numeric::quantize_row(x, rounding, codes, inverse);
          expect_same("float8 row", got.x.as<std::uint8_t>() + (e * rows + row) * c.hidden, codes.data(), c.hidden, 1);
          for (std::int64_t g = 0; g < groups; ++g) {
            const TensorView& s = got.scales;
            if (quantize != ep::Quantize::fp8_ue8m0) {
              const float scale = s.as<float>()[e * s.strides[0] + row * s.strides[1] + g * s.strides[2]];
              expect(scale == inverse[g], "a scale differs");
            } else {
              const auto word = static_cast<std::uint32_t>(
                  s.as<std::int32_t>()[e * s.strides[0] + row * s.strides[1] + g / 4 * s.strides[2]]);
              const std::uint32_t exponent = word >> (8 * (g % 4)) & 0xffU;
              expect(exponent == (numeric::bits_of(inverse[g]) >> 23 & 0xffU), "a UE8M0 scale differs");
            }
          }
          ++row;
        }
    }
    expect(got.counts.as<std::int32_t>()[e] == row, "counts differ");
  }
  // Leave the group in step: a combine follows each dispatch.
  const TensorView y = group.next_combine_buffer();
  for (std::int64_t e = 0; e < y.shape[0]; ++e)
    for (std::int64_t row = 0; row < got.counts.as<std::int32_t>()[e]; ++row)
      std::memset(y.as<std::uint16_t>() + e * y.strides[0] + row * y.strides[1], 0, c.hidden * 2);
  const Tensor out = group.low_latency_combine(y, in.topk_idx, in.weights, got.handle, {.zero_copy = true}).receive();
  for (std::int64_t i = 0; i < out.size(); ++i)
    expect(out.as<std::uint16_t>()[i] == 0, "zeros were combined to something else");
}

}  // namespace shoal::test
