// SPDX-License-Identifier: Apache-2.0
#include "workload.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <ctime>
#include <vector>

#include "base/check.hpp"
#include "shoal/numeric.hpp"

namespace shoal::bench {

namespace {

constexpr std::int64_t kMostExperts = 65536;  // of a group

/// splitmix64: fills rows of a hundred megabytes quickly. The distribution is irrelevant; values
/// must not repeat.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    state_ += 0x9e3779b97f4a7c15u;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  std::int64_t below(std::int64_t limit) {
    return static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(limit));
  }

 private:
  std::uint64_t state_;
};

/// Four bfloat16 values of either sign with magnitudes from 1/32 to 1/2: below 1 when multiplied by
/// the factor of any expert, so that LogFMT-10 casts them.
std::uint64_t random_values(std::uint64_t bits) {
  std::uint64_t values = 0;
  for (int part = 0; part < 4; ++part) {
    const std::uint64_t raw = bits >> (16 * part) & 0xffff;
    const std::uint64_t value = (raw & 0x807f) | ((122 + (raw >> 7 & 3)) << 7);
    values |= value << (16 * part);
  }
  return values;
}

void fill_routing(Batch& batch, const Shape& shape, Random& random) {
  std::vector<std::int64_t> experts(static_cast<std::size_t>(shape.experts));
  for (std::size_t e = 0; e < experts.size(); ++e) experts[e] = static_cast<std::int64_t>(e);
  for (std::int64_t token = 0; token < batch.tokens; ++token) {
    std::int64_t* const chosen = batch.topk_idx.as<std::int64_t>() + token * shape.top_k;
    float* const weights = batch.weights.as<float>() + token * shape.top_k;
    float total = 0;
    for (std::int64_t k = 0; k < shape.top_k; ++k) {
      std::swap(experts[static_cast<std::size_t>(k)],
                experts[static_cast<std::size_t>(k + random.below(shape.experts - k))]);
      chosen[k] = experts[static_cast<std::size_t>(k)];
      weights[k] = 0.25f + static_cast<float>(random.below(1024)) / 1024;
      total += weights[k];
    }
    for (std::int64_t k = 0; k < shape.top_k; ++k) weights[k] /= total;
  }
}

void fill_rows(Batch& batch, const Shape& shape, Random& random) {
  batch.x = Tensor::empty(DataType::bfloat16, {batch.tokens, shape.hidden});
  auto* const words = batch.x.as<std::uint64_t>();
  for (std::size_t i = 0; i < batch.x.bytes() / 8; ++i) words[i] = random_values(random.next());
}

float widen(std::uint16_t value) {
  return float_from_bfloat16(value);
}

}  // namespace

void Shape::validate() const {
  const auto at_least_one = [](const char* option, std::int64_t value) {
    require(value >= 1, Code::invalid_argument, "{} is {}; allowed: 1 or more", option, value);
  };
  at_least_one("--tokens", tokens);
  at_least_one("--low-latency-tokens", low_latency_tokens);
  at_least_one("--iterations", iterations);
  require(hidden >= 8 && hidden % 8 == 0, Code::invalid_argument,
          "--hidden is {}; allowed: multiples of 8", hidden);
  require(experts >= 1 && experts <= kMostExperts, Code::invalid_argument,
          "--experts is {}; allowed: 1 to {}", experts, kMostExperts);
  require(top_k >= 1 && top_k <= std::min<std::int64_t>(ep::kMaxTopK, experts),
          Code::invalid_argument, "--top-k is {}; allowed: 1 to {}, and at most the {} experts",
          top_k, ep::kMaxTopK, experts);
}

Batch make_batch(const Shape& shape, std::int64_t tokens, std::int32_t pe, std::int32_t set) {
  Random random(shape.seed * 1'000'003 + static_cast<std::uint64_t>(pe) * 1009 +
                static_cast<std::uint64_t>(set));
  Batch batch;
  batch.tokens = tokens;
  batch.topk_idx = Tensor::empty(DataType::int64, {tokens, shape.top_k});
  batch.weights = Tensor::empty(DataType::float32, {tokens, shape.top_k});
  fill_routing(batch, shape, random);
  fill_rows(batch, shape, random);
  return batch;
}

std::vector<Batch> make_batches(const Shape& shape, std::int64_t tokens, std::int32_t pe) {
  std::vector<Batch> batches;
  for (std::int32_t set = 0; set < kBatches; ++set)
    batches.push_back(make_batch(shape, tokens, pe, set));
  return batches;
}

float expert_factor(std::int64_t expert) {
  const std::uint64_t bits = Random(static_cast<std::uint64_t>(expert) + 77).next();
  const float size = 0.5f + static_cast<float>(bits >> 40) * 0x1.8p-24f;  // 0.5 to 2
  return (bits & 1) != 0 ? size : -size;
}

void apply_experts(std::uint16_t* target, const std::uint16_t* x, const std::int64_t* topk_idx,
                   const float* weights, std::int64_t first_expert, const Shape& shape) {
  float factor = 0;
  for (std::int64_t k = 0; k < shape.top_k; ++k)
    if (topk_idx[k] >= 0) factor += weights[k] * expert_factor(first_expert + topk_idx[k]);
  for (std::int64_t i = 0; i < shape.hidden; ++i)
    target[i] = bfloat16_from_float(widen(x[i]) * factor);
}

void apply_expert(std::uint16_t* target, const std::uint16_t* x, std::int64_t expert,
                  const Shape& shape) {
  const float factor = expert_factor(expert);
  for (std::int64_t i = 0; i < shape.hidden; ++i)
    target[i] = bfloat16_from_float(widen(x[i]) * factor);
}

void check_output(const Batch& batch, const std::uint16_t* output, const Shape& shape,
                  const ep::detail::CombineError& error, const char* what) {
  for (std::int64_t token = 0; token < batch.tokens; ++token) {
    float factor = 0, size = 0;
    for (std::int64_t k = 0; k < shape.top_k; ++k) {
      const std::int64_t at = token * shape.top_k + k;
      const float term =
          batch.weights.as<float>()[at] * expert_factor(batch.topk_idx.as<std::int64_t>()[at]);
      factor += term;
      size += std::fabs(term);
    }
    for (std::int64_t i = 0; i < shape.hidden; ++i) {
      const float x = widen(batch.row(token)[i]);
      const float got = widen(output[token * shape.hidden + i]);
      const bool close =
          std::fabs(got - x * factor) <= error.bound(size * std::fabs(x), x * factor);
      require(close, Code::mismatch, "{}: token {}, channel {} is {}; expected {}", what, token, i,
              got, x * factor);
    }
  }
}

Times time_memcpy(std::size_t bytes, std::int64_t iterations,
                  const std::function<void()>& barrier) {
  const auto length = static_cast<std::int64_t>(bytes);
  const Tensor source = Tensor::empty(DataType::uint8, {length}),
               target = Tensor::empty(DataType::uint8, {length});
  std::memset(source.data, 1, bytes);
  std::memset(target.data, 2, bytes);
  barrier();
  const Times start = now();
  for (std::int64_t i = 0; i < iterations; ++i) std::memcpy(target.data, source.data, bytes);
  barrier();
  return (now() - start) / static_cast<double>(iterations);
}

Times now() {
  const auto seconds = [](clockid_t clock) {
    timespec time{};
    clock_gettime(clock, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
  };
  return {seconds(CLOCK_MONOTONIC), seconds(CLOCK_PROCESS_CPUTIME_ID)};
}

}  // namespace shoal::bench
