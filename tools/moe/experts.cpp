// SPDX-License-Identifier: Apache-2.0
#include "moe/experts.hpp"

#include "moe/random.hpp"
#include "shoal/numeric.hpp"

namespace shoal::moe {

void ExpertWeights::round() {
  for (std::vector<float>* matrix : {&gate, &up, &down})
    for (float& value : *matrix) value = float_from_bfloat16(bfloat16_from_float(value));
}

WeightSource::WeightSource(const Options& options, const Shape& shape)
    : hidden_(shape.hidden), ffn_(shape.ffn), seed_(options.seed) {
  if (!options.weights_file.empty()) file_.emplace(options.weights_file);
}

ExpertWeights WeightSource::load(std::int32_t expert) {
  const auto count = static_cast<std::size_t>(hidden_ * ffn_);
  ExpertWeights weights;
  if (file_) {
    const std::vector<float> all = file_->read_rows<float>(expert, 1);
    const auto matrix = [&](std::size_t i) {
      return all.begin() + static_cast<std::ptrdiff_t>(i * count);
    };
    weights.gate.assign(matrix(0), matrix(1));
    weights.up.assign(matrix(1), matrix(2));
    weights.down.resize(count);
    for (std::int64_t h = 0; h < hidden_; ++h)
      for (std::int64_t f = 0; f < ffn_; ++f)
        weights.down[static_cast<std::size_t>(f * hidden_ + h)] = matrix(2)[h * ffn_ + f];
    return weights;
  }
  // Uniform, with the variance that keeps the output of each matrix near variance 1.
  const Random random(seed_, weights_stream + static_cast<std::uint64_t>(expert));
  const float inner = std::sqrt(3.0f / static_cast<float>(hidden_)),
              outer = std::sqrt(3.0f / static_cast<float>(ffn_));
  std::uint64_t index = 0;
  for (auto [matrix, scale] :
       {std::pair{&weights.gate, inner}, {&weights.up, inner}, {&weights.down, outer}}) {
    matrix->resize(count);
    for (float& value : *matrix) value = scale * random.uniform(index++);
  }
  return weights;
}

}  // namespace shoal::moe
