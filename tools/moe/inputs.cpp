// SPDX-License-Identifier: Apache-2.0
#include "moe/inputs.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <string_view>

#include "base/check.hpp"
#include "moe/npy.hpp"
#include "moe/random.hpp"

namespace shoal::moe {

namespace {

using tools::NpyReader;

/// Rows [first, first + count) of a matrix. All must be finite.
std::vector<float> read_matrix(const std::string& path, std::int64_t first, std::int64_t count) {
  NpyReader reader(path);
  std::vector<float> values = reader.read_rows<float>(first, count);
  const auto bad = std::ranges::find_if(values, [](float value) { return !std::isfinite(value); });
  const std::int64_t at = bad - values.begin();
  require(bad == values.end(), Code::invalid_argument,
          "{}: element [{}, {}] is {}; allowed: finite numbers", path,
          first + at / std::max<std::int64_t>(1, reader.row_size()),
          at % std::max<std::int64_t>(1, reader.row_size()), bad == values.end() ? 0 : *bad);
  return values;
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
    NpyReader reader(options.bias_file);
    bias = reader.read_rows<float>(0, shape.gate.experts);
  } else if (options.router_file.empty()) {
    const Random random(options.seed, bias_stream);
    for (std::size_t expert = 0; expert < bias.size(); ++expert)
      bias[expert] = 0.02f * random.uniform(expert);
  }
  return bias;
}

/// The sizes of tokens, hidden, experts and ffn that the files give. Each must agree with earlier
/// files and with the options.
class ShapeFinder {
 public:
  explicit ShapeFinder(const Options& options)
      : hidden_(options.hidden.value_or(-1)),
        experts_(options.experts.value_or(-1)),
        ffn_(options.ffn.value_or(-1)) {
    take(options.tokens_file, {{"tokens", &tokens_}, {"hidden", &hidden_}});
    take(options.router_file, {{"tokens", &tokens_}, {"experts", &experts_}});
    take(options.bias_file, {{"experts", &experts_}});
    std::int64_t matrices = 3;
    take(options.weights_file,
         {{"experts", &experts_}, {"matrices", &matrices}, {"hidden", &hidden_}, {"ffn", &ffn_}});
  }
  std::int64_t tokens() const { return tokens_; }
  std::int64_t hidden() const { return hidden_ < 0 ? kDefaultHidden : hidden_; }
  std::int64_t experts() const { return experts_ < 0 ? kDefaultExperts : experts_; }
  std::int64_t ffn() const { return ffn_ < 0 ? kDefaultFfn : ffn_; }

 private:
  struct Dimension {
    std::string_view name;
    std::int64_t* extent;  ///< -1: unknown so far
  };
  static void take(const std::string& path, const std::vector<Dimension>& dimensions) {
    if (path.empty()) return;
    const NpyReader reader(path);
    std::vector<std::int64_t> wanted;
    std::vector<std::string_view> names;
    for (const Dimension& dimension : dimensions) {
      wanted.push_back(*dimension.extent);
      names.push_back(dimension.name);
    }
    reader.require_shape(wanted, names);
    for (std::size_t i = 0; i < dimensions.size(); ++i) *dimensions[i].extent = reader.shape()[i];
  }

  std::int64_t tokens_ = -1, hidden_, experts_, ffn_;
};

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
  const ShapeFinder found(options);
  Shape shape;
  shape.pes = pes;
  shape.tokens = found.tokens() < 0 ? options.tokens_per_pe * pes : found.tokens();
  shape.hidden = found.hidden();
  shape.ffn = found.ffn();
  require(found.experts() <= 65536, Code::invalid_argument,
          "--experts is {}; allowed: at most 65536", found.experts());
  shape.gate = {.experts = static_cast<std::int32_t>(found.experts()),
                .groups = options.groups,
                .groups_kept = options.groups_kept,
                .top_k = options.top_k,
                .routed_scaling = options.routed_scaling};
  shape.gate.validate();
  require(
      shape.gate.experts % pes == 0, Code::invalid_argument,
      "{} experts cannot be spread evenly over {} PEs; choose --experts or the number of PEs so that they divide",
      shape.gate.experts, pes);
  const std::int64_t multiple = options.row_format == RowFormat::fp8 ? 16 : 8;
  require(shape.hidden >= multiple && shape.hidden % multiple == 0, Code::invalid_argument,
          "hidden is {}; allowed: positive multiples of {} (rows are whole units of 16 bytes)",
          shape.hidden, multiple);
  require(shape.ffn >= 1, Code::invalid_argument, "ffn is {}; allowed: at least 1", shape.ffn);
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
    for (const float value : read_matrix(options.tokens_file, first, count))
      inputs.x.push_back(ep::numeric::to_bf16(value));
  }
  inputs.logits = options.router_file.empty() ? make_logits(options, shape, first, count)
                                              : read_matrix(options.router_file, first, count);
  inputs.bias = make_bias(options, shape);
  return inputs;
}

}  // namespace shoal::moe
