// SPDX-License-Identifier: Apache-2.0
#include "moe/inputs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string_view>

#include "base/check.hpp"

namespace shoal::moe {

namespace {

// Keeps products of three extents below 2^63.
constexpr std::int64_t kMostColumns = 1 << 20;

/// Counter-based random numbers: element i of a stream is a function of (seed, stream, i). Any PE
/// can generate any part of an array, and the same seed gives the same run on any number of PEs.
class Random {
 public:
  Random(std::uint64_t seed, std::uint64_t stream) : key_(mix(mix(seed) + stream)) {}

  std::uint64_t bits(std::uint64_t index) const {
    return mix(key_ + index * 0x9e37'79b9'7f4a'7c15u);
  }

  /// Uniform in [-1, 1), 24 bits.
  float uniform(std::uint64_t index) const {
    return to_uniform(static_cast<std::uint32_t>(bits(index)));
  }

  /// Nearly normal with mean 0 and variance 1: the sum of four uniform numbers.
  float normal(std::uint64_t index) const {
    const std::uint64_t a = bits(2 * index), b = bits(2 * index + 1);
    const float sum = to_uniform(static_cast<std::uint32_t>(a)) +
                      to_uniform(static_cast<std::uint32_t>(a >> 32)) +
                      to_uniform(static_cast<std::uint32_t>(b)) +
                      to_uniform(static_cast<std::uint32_t>(b >> 32));
    return sum * 0.8660254f;  // the variance of the sum is 4/3
  }

 private:
  static float to_uniform(std::uint32_t word) {
    return static_cast<float>(static_cast<std::int32_t>(word) >> 8) * 0x1p-23f;
  }
  /// A bijection of 64-bit words that changes half of the bits on average (xor-shift and multiply,
  /// as in SplitMix64).
  static std::uint64_t mix(std::uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58'476d'1ce4'e5b9u;
    x = (x ^ (x >> 27)) * 0x94d0'49bb'1331'11ebu;
    return x ^ (x >> 31);
  }
  std::uint64_t key_;
};

/// The streams of one seed. Every expert has its own, from `weights` on.
enum Stream : std::uint64_t {
  tokens_stream = 1,
  router_stream,
  bias_stream,
  popularity_stream,
  weights_stream = 1000
};

/// Rows [first, first + count) of a file with rows of `columns` values. All must be finite.
std::vector<float> read_rows(const std::string& path, std::int64_t columns, std::int64_t first,
                             std::int64_t count) {
  std::vector<float> values(static_cast<std::size_t>(columns * count));
  const auto bytes = static_cast<std::streamsize>(values.size() * sizeof(float));
  std::ifstream file(path, std::ios::binary);
  file.seekg(first * columns * static_cast<std::int64_t>(sizeof(float)));
  require(static_cast<bool>(file.read(reinterpret_cast<char*>(values.data()), bytes)), Code::system,
          "{}: {} bytes cannot be read", path, bytes);
  const auto bad = std::ranges::find_if(values, [](float value) { return !std::isfinite(value); });
  if (bad != values.end())
    fail(Code::invalid_argument, "{}: element [{}, {}] is {}; allowed: finite numbers", path,
         first + (bad - values.begin()) / columns, (bad - values.begin()) % columns, *bad);
  return values;
}

/// The rows of a file with rows of `columns` values. Throws unless they are whole and, unless
/// `wanted` is -1, as many as that.
std::int64_t count_rows(const std::string& path, std::int64_t columns, std::int64_t wanted) {
  std::error_code error;
  const auto bytes = static_cast<std::int64_t>(std::filesystem::file_size(path, error));
  require(!error, Code::system, "{}: cannot be read: {}", path, error.message());
  const std::int64_t row = columns * static_cast<std::int64_t>(sizeof(float)), rows = bytes / row;
  require(bytes == rows * row && (wanted < 0 || rows == wanted), Code::invalid_argument,
          "{}: {} bytes; allowed: {}{} bytes, float32 rows of {} values (--hidden, --ffn and "
          "--experts give the shapes)",
          path, bytes, wanted < 0 ? "multiples of " : "", wanted < 0 ? row : wanted * row, columns);
  return rows;
}

/// The amount that the skew subtracts from each expert's logit.
std::vector<float> popularity(const Shape& shape, const Options& options) {
  const Random random(options.seed, popularity_stream);
  std::vector<std::int32_t> order(static_cast<std::size_t>(shape.gate.experts));
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, {}, [&](std::int32_t expert) {
    return random.bits(static_cast<std::uint64_t>(expert));
  });
  std::vector<float> penalty(order.size());
  for (std::size_t rank = 0; rank < order.size(); ++rank)
    penalty[static_cast<std::size_t>(order[rank])] =
        static_cast<float>(options.skew * std::log(1.0 + static_cast<double>(rank)));
  return penalty;
}

std::vector<float> make_logits(const Options& options, const Shape& shape, std::int64_t first,
                               std::int64_t count) {
  const Random random(options.seed, router_stream);
  const std::vector<float> penalty = popularity(shape, options);
  std::vector<float> logits;
  logits.reserve(static_cast<std::size_t>(count) * penalty.size());
  for (std::int64_t token = first; token < first + count; ++token)
    for (std::size_t expert = 0; expert < penalty.size(); ++expert)
      logits.push_back(random.normal(static_cast<std::uint64_t>(token) * penalty.size() + expert) -
                       penalty[expert]);
  return logits;
}

std::vector<float> make_bias(const Options& options, const Shape& shape) {
  std::vector<float> bias(static_cast<std::size_t>(shape.gate.experts));
  if (!options.bias_file.empty()) {
    bias = read_rows(options.bias_file, shape.gate.experts, 0, 1);
  } else if (options.router_file.empty()) {
    const Random random(options.seed, bias_stream);
    for (std::size_t expert = 0; expert < bias.size(); ++expert)
      bias[expert] = 0.02f * random.uniform(expert);
  }
  return bias;
}

/// The number of tokens. Throws unless all files have the sizes of the options.
std::int64_t count_tokens(const Options& options, std::int32_t pes) {
  const std::int64_t experts = options.experts;
  std::int64_t tokens = -1;
  if (!options.tokens_file.empty()) tokens = count_rows(options.tokens_file, options.hidden, -1);
  if (!options.router_file.empty()) tokens = count_rows(options.router_file, experts, tokens);
  if (!options.bias_file.empty()) count_rows(options.bias_file, experts, 1);
  if (!options.weights_file.empty())
    count_rows(options.weights_file, 3 * options.hidden * options.ffn, experts);
  return tokens < 0 ? options.tokens_per_pe * pes : tokens;
}

void check_writable(const std::string& path, std::string_view option) {
  if (path.empty()) return;
  const auto directory = std::filesystem::absolute(path).parent_path();
  require(std::filesystem::is_directory(directory) && !std::filesystem::is_directory(path),
          Code::invalid_argument, "{} {}: no file can be written there", option, path);
}

}  // namespace

Shape resolve_shape(const Options& options, std::int32_t pes) {
  check_writable(options.output_file, "--output");
  check_writable(options.json_file, "--json");
  require(options.experts >= 1 && options.experts <= 65536, Code::invalid_argument,
          "--experts is {}; allowed: 1 to 65536", options.experts);
  const std::int64_t multiple = options.row_format == RowFormat::fp8 ? 16 : 8;
  require(options.hidden >= multiple && options.hidden <= kMostColumns &&
              options.hidden % multiple == 0,
          Code::invalid_argument,
          "--hidden is {}; allowed: multiples of {} (rows are whole units of 16 bytes) up to {}",
          options.hidden, multiple, kMostColumns);
  require(options.ffn >= 1 && options.ffn <= kMostColumns, Code::invalid_argument,
          "--ffn is {}; allowed: 1 to {}", options.ffn, kMostColumns);
  Shape shape;
  shape.pes = pes;
  shape.tokens = count_tokens(options, pes);
  shape.hidden = options.hidden;
  shape.ffn = options.ffn;
  shape.gate = {.experts = options.experts,
                .groups = options.groups,
                .groups_kept = options.groups_kept,
                .top_k = options.top_k,
                .routed_scaling = options.routed_scaling};
  shape.gate.validate();
  return shape;
}

Inputs load_inputs(const Options& options, const Shape& shape, std::int32_t pe) {
  const std::int64_t first = shape.first_token(pe), count = shape.tokens_of(pe);
  Inputs inputs;
  if (options.tokens_file.empty()) {
    const Random random(options.seed, tokens_stream);
    for (std::int64_t i = first * shape.hidden; i < (first + count) * shape.hidden; ++i)
      inputs.x.push_back(ep::numeric::to_bf16(random.normal(static_cast<std::uint64_t>(i))));
  } else {
    for (const float value : read_rows(options.tokens_file, shape.hidden, first, count))
      inputs.x.push_back(ep::numeric::to_bf16(value));
  }
  inputs.logits = options.router_file.empty()
                      ? make_logits(options, shape, first, count)
                      : read_rows(options.router_file, shape.gate.experts, first, count);
  inputs.bias = make_bias(options, shape);
  return inputs;
}

std::vector<float> load_weights(const Options& options, const Shape& shape, std::int64_t expert) {
  const std::int64_t matrix = shape.hidden * shape.ffn;
  std::vector<float> weights;
  if (!options.weights_file.empty()) {
    weights = read_rows(options.weights_file, 3 * matrix, expert, 1);
  } else {
    // The variance keeps the output of each matrix near variance 1.
    const Random random(options.seed, weights_stream + static_cast<std::uint64_t>(expert));
    for (std::int64_t i = 0; i < 3 * matrix; ++i)
      weights.push_back(
          std::sqrt(3.0f / static_cast<float>(i < 2 * matrix ? shape.hidden : shape.ffn)) *
          random.uniform(static_cast<std::uint64_t>(i)));
  }
  for (float& value : weights) value = ep::numeric::to_float(ep::numeric::to_bf16(value));
  return weights;
}

}  // namespace shoal::moe
