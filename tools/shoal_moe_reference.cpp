#include "shoal_moe_reference.hpp"

#include <fmt/format.h>

#include <cmath>
#include <span>
#include <vector>

#include "ep/numeric/rows.hpp"
#include "shoal_moe_experts.hpp"

namespace shoal::moe {

namespace {

namespace numeric = ep::numeric;

constexpr double kBf16Unit = 0x1p-8;  // largest relative rounding error of bfloat16
constexpr double kFloatUnit = 0x1p-24;
constexpr double kSecondOrder = 1.02;  // roundings of rounded values

int row_roundings(const Options& options) {
  return options.mode == Mode::normal ? 1 : 2;
}

/// The tokens of this PE as the experts get to see them.
std::vector<float> delivered_tokens(const Options& options, const Shape& shape, const Inputs& inputs) {
  const auto hidden = static_cast<std::size_t>(shape.hidden);
  std::vector<float> x(inputs.x.size());
  std::vector<std::uint8_t> codes(hidden);
  std::vector<float> scales(numeric::group_count(hidden));
  for (std::size_t first = 0; first < x.size(); first += hidden) {
    const auto row = std::span(inputs.x).subspan(first, hidden);
    if (options.row_format == RowFormat::bf16) {
      for (std::size_t i = 0; i < hidden; ++i) x[first + i] = numeric::to_float(row[i]);
      continue;
    }
    numeric::quantize_row(row, numeric::ScaleRounding::none, codes, scales);
    numeric::dequantize_row(codes, scales, std::span(x).subspan(first, hidden));
  }
  return x;
}

struct Reference {
  std::vector<double> sum;        // [tokens, hidden]
  std::vector<double> magnitude;  // the sum of the terms' magnitudes
};

Reference compute(const Options& options, const Shape& shape, const std::vector<float>& x, const ep::Gated& gated,
                  const std::function<void(std::int64_t)>& progress) {
  const auto hidden = static_cast<std::size_t>(shape.hidden), top_k = static_cast<std::size_t>(shape.gate.top_k);
  std::vector<std::vector<std::size_t>> choices(static_cast<std::size_t>(shape.gate.experts));  // token * top_k + k
  for (std::size_t i = 0; i < x.size() / hidden * top_k; ++i)
    choices[static_cast<std::size_t>(gated.topk_idx.as<std::int64_t>()[i])].push_back(i);

  Reference reference{std::vector<double>(x.size()), std::vector<double>(x.size())};
  FeedForward<double> feed_forward(shape);
  WeightSource source(options, shape);
  for (std::size_t expert = 0; expert < choices.size(); ++expert) {
    progress(static_cast<std::int64_t>(expert));
    if (choices[expert].empty()) continue;
    const ExpertWeights weights = source.load(static_cast<std::int32_t>(expert));
    for (const std::size_t choice : choices[expert]) {
      const std::size_t row = choice / top_k * hidden;
      const double weight = gated.topk_weights.as<float>()[choice];
      const std::vector<double>& y = feed_forward(weights, x.data() + row);
      for (std::size_t i = 0; i < hidden; ++i) {
        reference.sum[row + i] += weight * y[i];
        reference.magnitude[row + i] += std::abs(weight * y[i]);
      }
    }
  }
  return reference;
}

double root_mean_square(std::span<const double> values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return std::sqrt(sum / static_cast<double>(values.size()));
}

void compare_row(Check& check, const Options& options, const Shape& shape, const numeric::Bf16* output,
                 std::span<const double> sum, std::span<const double> magnitude) {
  const double float_error = static_cast<double>(shape.hidden + shape.ffn) * kFloatUnit * root_mean_square(magnitude);
  for (std::size_t i = 0; i < sum.size(); ++i) {
    const double error = std::abs(numeric::to_float(output[i]) - sum[i]);
    const double bound =
        kSecondOrder * kBf16Unit * (row_roundings(options) * magnitude[i] + std::abs(sum[i])) + float_error;
    // Not a comparison with max: a NaN must fail.
    if (!(error <= check.worst * bound)) check.worst = bound > 0 && std::isfinite(error) ? error / bound : INFINITY;
    check.squared_error += error * error;
    check.squared_reference += sum[i] * sum[i];
  }
}

}  // namespace

std::string describe_tolerance(const Options& options, const Shape& shape) {
  return fmt::format("|output - reference| <= 2^-8 * ({}sum|w_k expert_k(x)| + |reference|) + {} * 2^-24 * rms",
                     row_roundings(options) == 1 ? "" : "2 * ", shape.hidden + shape.ffn);
}

Check check_output(const Options& options, const Shape& shape, const Inputs& inputs, const ep::Gated& gated,
                   const Tensor& output, const std::function<void(std::int64_t, std::int64_t)>& progress) {
  const auto hidden = static_cast<std::size_t>(shape.hidden);
  const std::int64_t experts = shape.gate.experts, steps = options.row_format == RowFormat::fp8 ? 2 * experts : experts;
  const Reference reference = compute(options, shape, delivered_tokens(options, shape, inputs), gated,
                                      [&](std::int64_t expert) { progress(expert, steps); });
  Check check;
  for (std::size_t row = 0; row < reference.sum.size(); row += hidden)
    compare_row(check, options, shape, output.as<numeric::Bf16>() + row, std::span(reference.sum).subspan(row, hidden),
                std::span(reference.magnitude).subspan(row, hidden));
  if (options.row_format == RowFormat::fp8) {
    Options unquantized = options;
    unquantized.row_format = RowFormat::bf16;
    const Reference exact = compute(options, shape, delivered_tokens(unquantized, shape, inputs), gated,
                                    [&](std::int64_t expert) { progress(experts + expert, steps); });
    for (std::size_t i = 0; i < exact.sum.size(); ++i)
      check.squared_quantization += (exact.sum[i] - reference.sum[i]) * (exact.sum[i] - reference.sum[i]);
  }
  return check;
}

}  // namespace shoal::moe
