// SPDX-License-Identifier: Apache-2.0
#include "moe/reference.hpp"

#include <fmt/format.h>

#include <cmath>
#include <set>
#include <span>
#include <vector>

#include "ep/numeric/rows.hpp"
#include "ep/plan/combine_error.hpp"
#include "moe/experts.hpp"

namespace shoal::moe {

namespace {

namespace numeric = ep::numeric;

constexpr double kFloatUnit = 0x1p-24;
// Multiplications of a reference: about a second of one core.
constexpr std::int64_t kReferenceWork = 1 << 29;

int levels(const Options& options, const Shape& shape) {
  return options.mode == Mode::normal
             ? ep::detail::normal_mode_levels(shape.pes, shape.nodes, options.on_gpu())
             : ep::detail::low_latency_levels();
}

/// The tokens of this PE that are compared, evenly spaced and the first among them: all, or as many
/// as kReferenceWork allows.
std::vector<std::size_t> compared_tokens(const Shape& shape, std::int64_t tokens) {
  const std::int64_t work = 3 * shape.hidden * shape.ffn * shape.gate.top_k,
                     count = std::min(tokens, std::max<std::int64_t>(kReferenceWork / work, 1));
  std::vector<std::size_t> compared;
  for (std::int64_t i = 0; i < count; ++i)
    compared.push_back(static_cast<std::size_t>(i * tokens / count));
  return compared;
}

/// The compared tokens as the experts receive them.
std::vector<float> delivered_tokens(const Options& options, const Shape& shape,
                                    const Inputs& inputs,
                                    const std::vector<std::size_t>& compared) {
  const auto hidden = static_cast<std::size_t>(shape.hidden);
  std::vector<float> x(compared.size() * hidden);
  std::vector<std::uint8_t> codes(hidden);
  std::vector<float> scales(numeric::group_count(hidden));
  for (std::size_t first = 0; first < x.size(); first += hidden) {
    const auto row = std::span(inputs.x).subspan(compared[first / hidden] * hidden, hidden);
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
  std::vector<double> sum;        // [compared tokens, hidden]
  std::vector<double> magnitude;  // the sum of the magnitudes of the terms
};

Reference compute(const Options& options, const Shape& shape, const Inputs& inputs,
                  const std::vector<std::size_t>& compared, const ep::Gated& gated) {
  const auto hidden = static_cast<std::size_t>(shape.hidden);
  const std::vector<float> x = delivered_tokens(options, shape, inputs, compared);
  Reference reference{std::vector<double>(x.size()), std::vector<double>(x.size())};
  FeedForward<double> feed_forward(shape);
  const auto top_k = static_cast<std::size_t>(shape.gate.top_k);
  for (std::int64_t expert = 0; expert < shape.gate.experts; ++expert) {
    std::vector<float> weights;  // loaded for the first of its tokens
    for (std::size_t i = 0; i < compared.size() * top_k; ++i) {
      const std::size_t slot = compared[i / top_k] * top_k + i % top_k, row = i / top_k * hidden;
      if (gated.topk_idx.as<std::int64_t>()[slot] != expert) continue;
      if (weights.empty()) weights = load_weights(options, shape, expert);
      const double weight = gated.topk_weights.as<float>()[slot];
      const std::vector<double>& y = feed_forward(weights, x.data() + row);
      for (std::size_t h = 0; h < hidden; ++h) {
        reference.sum[row + h] += weight * y[h];
        reference.magnitude[row + h] += std::abs(weight * y[h]);
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

void compare_row(Check& check, const Options& options, const Shape& shape,
                 const numeric::Bf16* output, std::span<const double> sum,
                 std::span<const double> magnitude) {
  const double float_error =
      static_cast<double>(shape.hidden + shape.ffn) * kFloatUnit * root_mean_square(magnitude);
  const ep::detail::CombineError combine = ep::detail::combine_error(levels(options, shape));
  for (std::size_t i = 0; i < sum.size(); ++i) {
    const double error = std::abs(numeric::to_float(output[i]) - sum[i]);
    const double bound = combine.bound(magnitude[i], sum[i]) + float_error;
    // Not a comparison with max: NaN must fail the check.
    if (!(error <= check.worst * bound))
      check.worst = bound > 0 && std::isfinite(error) ? error / bound : INFINITY;
    check.squared_error += error * error;
    check.squared_reference += sum[i] * sum[i];
  }
}

}  // namespace

std::string describe_tolerance(const Options& options, const Shape& shape) {
  const int count = levels(options, shape);
  return fmt::format(
      "|output - reference| <= 2^-8 * ({}sum|w_k expert_k(x)| + |reference|) + {} * 2^-24 * rms",
      count == 1 ? "" : fmt::format("{} * ", count), shape.hidden + shape.ffn);
}

Check check_output(const Options& options, const Shape& shape, const Inputs& inputs,
                   const ep::Gated& gated, const Tensor& output) {
  const auto hidden = static_cast<std::size_t>(shape.hidden);
  const std::vector<std::size_t> compared = compared_tokens(shape, output.shape[0]);
  const Reference reference = compute(options, shape, inputs, compared, gated);
  Check check;
  check.tokens = static_cast<std::int64_t>(compared.size());
  for (std::size_t row = 0; row < reference.sum.size(); row += hidden)
    compare_row(check, options, shape, output.as<numeric::Bf16>() + compared[row / hidden] * hidden,
                std::span(reference.sum).subspan(row, hidden),
                std::span(reference.magnitude).subspan(row, hidden));
  return check;
}

std::int64_t count_misrouted(const Peers& peers, const Shape& shape, const Layer& layer) {
  const auto top_k = static_cast<std::size_t>(shape.gate.top_k);
  const Tensor& topk_idx = layer.gated().topk_idx;
  std::vector<std::int32_t> rows_to(static_cast<std::size_t>(shape.pes));
  std::vector<std::int32_t> owner;
  for (std::int32_t pe = 0; pe < shape.pes; ++pe)
    owner.insert(owner.end(), static_cast<std::size_t>(shape.experts_of(pe)), pe);
  std::vector<std::int64_t> tokens_to(static_cast<std::size_t>(shape.gate.experts));
  for (std::size_t token = 0; token < static_cast<std::size_t>(topk_idx.shape[0]); ++token) {
    std::set<std::int32_t> ranks;
    for (std::size_t k = 0; k < top_k; ++k) {
      const std::int64_t expert = topk_idx.as<std::int64_t>()[token * top_k + k];
      ++tokens_to[static_cast<std::size_t>(expert)];
      ranks.insert(owner[static_cast<std::size_t>(expert)]);
    }
    for (const std::int32_t rank : ranks) ++rows_to[static_cast<std::size_t>(rank)];
  }
  std::int64_t wrong = 0;
  for (std::size_t pe = 0; pe < rows_to.size(); ++pe)
    wrong += rows_to[pe] != layer.rows_to().at(pe) ? 1 : 0;
  const std::vector<std::int64_t> all = peers.gather<std::int64_t>(tokens_to);
  const auto first = static_cast<std::size_t>(shape.first_expert(peers.me()));
  for (std::size_t e = 0; e < layer.expert_load().size(); ++e) {
    std::int64_t tokens = 0;
    for (std::size_t pe = 0; pe < rows_to.size(); ++pe)
      tokens += all[pe * tokens_to.size() + first + e];
    wrong += tokens != layer.expert_load()[e] ? 1 : 0;
  }
  return wrong;
}

}  // namespace shoal::moe
