// SPDX-License-Identifier: Apache-2.0
#include "shoal/ep/gate.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "base/check.hpp"
#include "ep/numeric/gate.hpp"
#include "ep/plan/limits.hpp"
#include "ep/plan/place.hpp"
#include "shoal/ep/group.hpp"
#ifdef SHOAL_WITH_CUDA
#include "ep/cuda/gate/gate.cuh"
#endif

namespace shoal::ep {

namespace {

/// The first `count` of `indices` by descending score, the lower index first among equals.
void select_best(std::vector<std::int32_t>& indices, std::size_t count,
                 const std::vector<float>& score) {
  std::partial_sort(indices.begin(), indices.begin() + static_cast<std::ptrdiff_t>(count),
                    indices.end(), [&](std::int32_t a, std::int32_t b) {
                      const float left = score[static_cast<std::size_t>(a)],
                                  right = score[static_cast<std::size_t>(b)];
                      return left != right ? left > right : a < b;
                    });
  indices.resize(count);
}

/// exp takes most of the time: a function call for each fused multiply-add, unless the processor
/// has an instruction for it. Results are the same.
void exp_anywhere(std::span<double> values) {
  for (double& value : values) value = numeric::exp(value);
}
#if defined(__x86_64__)
__attribute__((target("fma"))) void exp_with_fma(std::span<double> values) {
  for (double& value : values) value = numeric::exp(value);
}
#endif

auto exp_here() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("fma") != 0) return exp_with_fma;
#endif
  return exp_anywhere;
}

/// Gates one token at a time. Holds the scratch memory, so that gating a token does not allocate.
class TokenGate {
 public:
  TokenGate(const float* bias, const GateOptions& options)
      : options_(options),
        bias_(bias),
        group_size_(static_cast<std::size_t>(options.experts / options.groups)),
        scores_(static_cast<std::size_t>(options.experts)),
        selection_(scores_.size()),
        terms_(scores_.size()),
        group_score_(static_cast<std::size_t>(options.groups)) {}

  void operator()(std::span<const float> logits, std::int64_t* topk_idx, float* topk_weights) {
    compute_scores(logits);
    choose_candidates();
    select_best(candidates_, static_cast<std::size_t>(options_.top_k), selection_);
    double sum = 0;
    for (const std::int32_t expert : candidates_) sum += scores_[static_cast<std::size_t>(expert)];
    const double factor = numeric::weight_factor(options_.normalize, options_.routed_scaling, sum);
    for (std::size_t k = 0; k < candidates_.size(); ++k) {
      topk_idx[k] = candidates_[k];
      topk_weights[k] = numeric::weight(scores_[static_cast<std::size_t>(candidates_[k])], factor);
    }
  }

 private:
  void compute_scores(std::span<const float> logits) {
    const bool softmax = options_.score == GateScore::softmax;
    const float found = *std::ranges::max_element(logits);
    const float largest = std::isfinite(found) ? found : 0;  // all masked: every score is 0
    for (std::size_t e = 0; e < terms_.size(); ++e)
      terms_[e] = softmax ? numeric::softmax_exponent(logits[e], largest)
                          : numeric::sigmoid_exponent(logits[e]);
    exp_(terms_);
    const double sum = softmax ? sum_of_terms() : 0;
    for (std::size_t e = 0; e < terms_.size(); ++e) {
      scores_[e] = softmax ? numeric::softmax(terms_[e], sum) : numeric::sigmoid(terms_[e]);
      selection_[e] = bias_ ? scores_[e] + bias_[e] : scores_[e];
    }
  }

  double sum_of_terms() const {
    std::array<double, numeric::kSoftmaxParts> parts{};
    for (std::size_t e = 0; e < terms_.size(); ++e) parts[e % parts.size()] += terms_[e];
    for (std::size_t width = parts.size() / 2; width > 0; width /= 2)
      for (std::size_t i = 0; i < width; ++i) parts[i] += parts[i + width];
    return parts[0];
  }

  /// The experts of the groups that are kept.
  void choose_candidates() {
    candidates_.resize(scores_.size());
    std::iota(candidates_.begin(), candidates_.end(), 0);
    if (options_.groups_kept == options_.groups) return;
    for (std::size_t g = 0; g < group_score_.size(); ++g) group_score_[g] = score_of_group(g);
    groups_.resize(group_score_.size());
    std::iota(groups_.begin(), groups_.end(), 0);
    select_best(groups_, static_cast<std::size_t>(options_.groups_kept), group_score_);
    candidates_.clear();
    for (const std::int32_t group : groups_)
      for (std::size_t e = 0; e < group_size_; ++e)
        candidates_.push_back(
            static_cast<std::int32_t>(static_cast<std::size_t>(group) * group_size_ + e));
  }

  float score_of_group(std::size_t group) const {
    const auto experts = std::span(selection_).subspan(group * group_size_, group_size_);
    if (experts.size() == 1) return experts[0];
    float best = std::max(experts[0], experts[1]), second = std::min(experts[0], experts[1]);
    for (const float value : experts.subspan(2)) {
      second = std::max(second, std::min(best, value));
      best = std::max(best, value);
    }
    return best + second;
  }

  const GateOptions& options_;
  const float* bias_;
  std::size_t group_size_;
  void (*const exp_)(std::span<double>) = exp_here();
  std::vector<float> scores_, selection_;
  std::vector<double> terms_;
  std::vector<float> group_score_;
  std::vector<std::int32_t> groups_, candidates_;
};

/// Shapes and types.
void check_inputs(const ConstTensorView& logits, const ConstTensorView& bias,
                  const GateOptions& options) {
  options.validate();
  require(
      logits.dtype == DataType::float32 && logits.rank == 2 && logits.shape[1] == options.experts &&
          logits.contiguous(),
      Code::invalid_argument,
      "SHOAL-N501: gate: logits are {}; contiguous float32 [tokens, {}] is wanted "
      "(GateOptions::experts)",
      [&] { return logits.describe(); }, options.experts);
  require(
      !bias.defined() || (bias.dtype == DataType::float32 && bias.rank == 1 &&
                          bias.shape[0] == options.experts && bias.contiguous()),
      Code::invalid_argument,
      "SHOAL-N501: gate: the bias is {}; contiguous float32 [{}] is wanted (GateOptions::experts)",
      [&] { return bias.describe(); }, options.experts);
  require(logits.shape[0] == 0 || logits.data != nullptr, Code::invalid_argument,
          "SHOAL-N502: gate: logits have no data");
}

/// Values, which only the host reads.
void check_values(const ConstTensorView& logits, const ConstTensorView& bias,
                  const GateOptions& options) {
  for (std::int64_t i = 0; i < logits.size(); ++i)
    require(
        logits.as<float>()[i] < std::numeric_limits<float>::infinity(), Code::invalid_argument,
        "SHOAL-N503: gate: the logit of token {} for expert {} is {}; a finite number or -infinity "
        "is wanted",
        i / options.experts, i % options.experts, logits.as<float>()[i]);
  if (!bias.defined()) return;
  for (std::int64_t e = 0; e < bias.size(); ++e)
    require(std::isfinite(bias.as<float>()[e]), Code::invalid_argument,
            "SHOAL-N503: gate: the bias of expert {} is {}; it must be finite", e,
            bias.as<float>()[e]);
}

void check_array(const char* name, const ConstTensorView& array, DataType dtype,
                 const ConstTensorView& logits, const GateOptions& options) {
  require(
      array.dtype == dtype && array.rank == 2 && array.shape[0] == logits.shape[0] &&
          array.shape[1] == options.top_k && array.contiguous() && array.device == logits.device &&
          (array.size() == 0 || array.data != nullptr),
      Code::invalid_argument,
      "SHOAL-N501: gate: GateArrays.{} is {} {}; contiguous {} [{}, {}] {} is wanted, where the "
      "logits are",
      name, [&] { return array.describe(); }, [&] { return detail::describe(array.device); },
      name_of(dtype), logits.shape[0], options.top_k,
      [&] { return detail::describe(logits.device); });
}

void gate_on_host(const ConstTensorView& logits, const ConstTensorView& bias,
                  const GateOptions& options, const GateArrays& to) {
  check_values(logits, bias, options);
  TokenGate gate_token(bias.defined() ? bias.as<float>() : nullptr, options);
  const auto experts = static_cast<std::size_t>(options.experts);
  for (std::int64_t t = 0; t < logits.shape[0]; ++t)
    gate_token({logits.as<float>() + t * options.experts, experts},
               to.topk_idx.as<std::int64_t>() + t * options.top_k,
               to.topk_weights.as<float>() + t * options.top_k);
}

}  // namespace

void GateOptions::validate() const {
  require(experts >= 1 && experts <= detail::kMaxExperts, Code::invalid_argument,
          "SHOAL-N504: GateOptions::experts is {}; 1 to {} is allowed", experts,
          detail::kMaxExperts);
  require(groups >= 1 && experts % groups == 0, Code::invalid_argument,
          "SHOAL-N504: GateOptions::groups is {}; a divisor of the {} experts is wanted", groups,
          experts);
  require(groups_kept >= 1 && groups_kept <= groups, Code::invalid_argument,
          "SHOAL-N504: GateOptions::groups_kept is {}; 1 to {} (GateOptions::groups) is allowed",
          groups_kept, groups);
  const std::int64_t candidates = std::int64_t{groups_kept} * (experts / groups);
  require(
      top_k >= 1 && top_k <= std::min<std::int64_t>(kMaxTopK, candidates), Code::invalid_argument,
      "SHOAL-N504: GateOptions::top_k is {}; 1 to {} is allowed (at most {}, and at most the {} "
      "experts of the {} kept groups)",
      top_k, std::min<std::int64_t>(kMaxTopK, candidates), kMaxTopK, candidates, groups_kept);
  require(std::isfinite(routed_scaling) && routed_scaling > 0, Code::invalid_argument,
          "SHOAL-N504: GateOptions::routed_scaling is {}; a finite number above 0 is wanted",
          routed_scaling);
}

Gated gate(const ConstTensorView& logits, const ConstTensorView& bias, const GateOptions& options) {
  check_inputs(logits, bias, options);
  require(logits.device.kind == DeviceKind::host && bias.device.kind == DeviceKind::host,
          Code::unsupported,
          "SHOAL-N505: gate: logits or bias are in GPU memory; give arrays for the result "
          "(GateArrays)");
  const std::int64_t tokens = logits.shape[0];
  Gated result{Tensor::empty(DataType::int64, {tokens, options.top_k}),
               Tensor::empty(DataType::float32, {tokens, options.top_k})};
  gate_on_host(logits, bias, options, {result.topk_idx, result.topk_weights});
  return result;
}

void gate(const ConstTensorView& logits, const ConstTensorView& bias, const GateOptions& options,
          const GateArrays& to) {
  check_inputs(logits, bias, options);
  require(
      !bias.defined() || bias.device == logits.device, Code::invalid_argument,
      "SHOAL-N506: gate: the logits are {}, the bias is {}; both must be on one device",
      [&] { return detail::describe(logits.device); },
      [&] { return detail::describe(bias.device); });
  check_array("topk_idx", to.topk_idx, DataType::int64, logits, options);
  check_array("topk_weights", to.topk_weights, DataType::float32, logits, options);
  if (logits.device.kind == DeviceKind::host) return gate_on_host(logits, bias, options, to);
#ifdef SHOAL_WITH_CUDA
  cuda::gate(logits, bias, options, to);
#else
  fail(Code::unsupported, "SHOAL-N507: gate: logits are in GPU memory; this build has no CUDA");
#endif
}

}  // namespace shoal::ep
