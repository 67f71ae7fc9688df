// SPDX-License-Identifier: Apache-2.0
#include "checks/ep/rounds.hpp"

#include <stdexcept>

namespace shoal::test {

NormalRound::NormalRound(const EpCase& c, std::int32_t rank)
    : case_(c),
      in_(c, rank),
      received_(expected_dispatch(c, rank)),
      combined_(expected_combine(c, rank)) {
  for (std::size_t i = 0; i < received_.source_token.size(); ++i)
    for (std::int64_t ch = 0; ch < c.hidden; ++ch) {
      x_.push_back(c.value(received_.source_rank[i], received_.source_token[i], ch));
      y_.push_back(expert_output(c, rank, x_.back(), received_.topk_idx.data() + i * c.top_k,
                                 received_.weights.data() + i * c.top_k));
    }
}

void NormalRound::run(ep::Group& group) const {
  const ep::Dispatched got =
      group.dispatch(in_.x, group.route(in_.topk_idx), {.weights = in_.weights});
  const auto rows = static_cast<std::int64_t>(received_.source_token.size());
  if (got.rows != rows) throw std::runtime_error("the number of rows differs");
  expect_same("x", got.x.data, x_.data(), x_.size() * 2, 2);
  expect_same("topk_idx", got.topk_idx->data, received_.topk_idx.data(),
              received_.topk_idx.size() * 8, 8);
  expect_same("topk_weights", got.topk_weights->data, received_.weights.data(),
              received_.weights.size() * 4, 4);
  expect_same("source_token", got.source_token->data, received_.source_token.data(), rows * 4, 4);
  const ConstTensorView y(y_.data(), DataType::bfloat16, {rows, case_.hidden});
  const ep::Combined back = group.combine(y, got.handle);
  expect_same("combined", back.x.data, combined_.data(), combined_.size() * 2, 2);
}

LowLatencyRound::LowLatencyRound(const EpCase& c, std::int32_t rank, ep::Reduction reduction,
                                 std::vector<int> masked, bool early_weights, bool unsummed)
    : case_(c),
      rank_(rank),
      reduction_(reduction),
      early_weights_(early_weights),
      unsummed_(unsummed),
      in_(c, rank),
      received_(expected_low_latency_dispatch(c, rank, masked)),
      combined_(unsummed ? expected_unsummed(c, rank, masked)
                         : expected_low_latency(c, rank, reduction, masked)),
      y_(Tensor::empty(DataType::bfloat16, {c.local_experts(), c.ranks * c.max_tokens, c.hidden})) {
  for (const auto& rows : received_.rows) {
    auto& x = x_.emplace_back();
    for (const auto& [source, token] : rows)
      for (std::int64_t ch = 0; ch < c.hidden; ++ch) x.push_back(c.value(source, token, ch));
  }
}

void LowLatencyRound::run(ep::Group& group, bool zero_copy) const {
  const ep::LowLatencyReceived got = send(group).receive();
  check(got);
  check(combine(group, got, zero_copy).receive());
}

ep::PendingDispatch LowLatencyRound::send(ep::Group& group) const {
  return group.low_latency_dispatch(
      in_.x, in_.topk_idx,
      {.quantize = ep::Quantize::none,
       .weights = early_weights_ ? static_cast<const TensorView&>(in_.weights) : TensorView{}});
}

void LowLatencyRound::check(const ep::LowLatencyReceived& got) const {
  expect_same("layout", got.layout.data, received_.layout.data(), received_.layout.size() * 8, 8);
  const std::int64_t stride = got.x.shape[1] * case_.hidden;
  for (std::size_t e = 0; e < x_.size(); ++e)
    expect_same("x", got.x.as<std::uint16_t>() + e * stride, x_[e].data(), x_[e].size() * 2, 2);
}

ep::PendingCombine LowLatencyRound::combine(ep::Group& group, const ep::LowLatencyReceived& got,
                                            bool zero_copy) const {
  const TensorView y = zero_copy ? group.next_combine_buffer() : static_cast<const TensorView&>(y_);
  write_low_latency_expert_output(case_, rank_, got, y);
  return group.low_latency_combine(
      y, in_.topk_idx, in_.weights, got.handle,
      {.zero_copy = zero_copy, .reduction = reduction_, .unsummed = unsummed_});
}

void LowLatencyRound::check(const Tensor& out) const {
  expect_same("low-latency result", out.data, combined_.data(), combined_.size() * 2, 2);
}

}  // namespace shoal::test
