// SPDX-License-Identifier: Apache-2.0
#include "ep/plan/routing.hpp"

#include <algorithm>
#include <utility>

#include "base/align.hpp"
#include "base/check.hpp"

namespace shoal::ep {

bool Routing::is_token_in_rank(std::int64_t token, std::int32_t rank) const {
  require(
      state_ != nullptr && token >= 0 && token < state_->tokens && rank >= 0 &&
          rank < state_->shape.ranks,
      Code::invalid_argument,
      "SHOAL-N602: is_token_in_rank(token {}, rank {}); this routing has {} tokens and {} ranks",
      token, rank, state_ ? state_->tokens : 0, state_ ? state_->shape.ranks : 0);
  if (state_->read_experts != nullptr) {
    std::int64_t experts[kMaxTopK];
    state_->read_experts(*state_, token, experts);
    return std::any_of(experts, experts + state_->shape.top_k, [&](std::int64_t expert) {
      return expert >= 0 && state_->shape.rank_of(expert) == rank;
    });
  }
  const auto copies = state_->copies_of(token);
  return std::any_of(copies.begin(), copies.end(),
                     [rank](const detail::Copy& copy) { return copy.rank == rank; });
}

namespace detail {

std::int32_t ranks_by_last_topk_slot(std::span<const std::int64_t> experts, const Shape& shape,
                                     std::int32_t* ranks) {
  std::int32_t count = 0;
  for (std::size_t topk_slot = experts.size(); topk_slot-- > 0;) {
    if (experts[topk_slot] < 0) continue;
    const std::int32_t rank = shape.rank_of(experts[topk_slot]);
    if (std::find(ranks, ranks + count, rank) == ranks + count) ranks[count++] = rank;
  }
  std::reverse(ranks, ranks + count);
  return count;
}

void check_topk(const ConstTensorView& topk_idx, const Shape& shape, const Device& device,
                std::int64_t max_tokens, const char* call) {
  require(
      topk_idx.rank == 2 && topk_idx.shape[1] == shape.top_k && topk_idx.contiguous() &&
          (topk_idx.dtype == DataType::int64 || topk_idx.dtype == DataType::int32),
      Code::invalid_argument,
      "SHOAL-N570: {}: topk_idx is {}; it must be contiguous int64 or int32 [tokens, {}]", call,
      [&] { return topk_idx.describe(); }, shape.top_k);
  check_device(device, call, "topk_idx", topk_idx);
  const std::int64_t tokens = topk_idx.shape[0];
  require(tokens <= max_tokens, Code::invalid_argument,
          "SHOAL-N575: {}: {} tokens; this group was made for at most {} (GroupOptions.max_tokens, "
          "low_latency_max_tokens)",
          call, tokens, max_tokens);
  require(tokens == 0 || topk_idx.data != nullptr, Code::invalid_argument,
          "SHOAL-N572: {}: topk_idx has no data", call);
}

Tensor checked_topk(const ConstTensorView& topk_idx, const Shape& shape, std::int64_t max_tokens,
                    const char* call) {
  check_topk(topk_idx, shape, Device{}, max_tokens, call);
  const std::int64_t tokens = topk_idx.shape[0];
  Tensor copy = Tensor::empty(DataType::int64, {tokens, shape.top_k});
  auto* out = copy.as<std::int64_t>();
  for (std::int64_t t = 0; t < tokens; ++t) {
    std::int64_t* row = out + t * shape.top_k;
    for (std::int32_t k = 0; k < shape.top_k; ++k) {
      const std::int64_t i = t * shape.top_k + k;
      const std::int64_t given = topk_idx.dtype == DataType::int64 ? topk_idx.as<std::int64_t>()[i]
                                                                   : topk_idx.as<std::int32_t>()[i];
      const std::int64_t expert = given == shape.none_expert ? -1 : given;
      require(expert >= -1 && expert < shape.experts, Code::invalid_argument,
              "SHOAL-N543: {}: topk_idx[{}, {}] is {}; allowed: 0 to {}, or {} for none", call, t,
              k, expert, shape.experts - 1, [&] { return shape.none_ids(); });
      require(
          expert < 0 || std::find(row, row + k, expert) == row + k, Code::invalid_argument,
          "SHOAL-N545: {}: topk_idx[{}] names expert {} twice; each expert may stand once in a row",
          call, t, expert);
      row[k] = expert;
    }
  }
  return copy;
}

Tensor even_topk(std::int64_t tokens, std::int32_t top_k, std::int32_t experts) {
  Tensor topk = Tensor::empty(DataType::int64, {tokens, top_k});
  const std::int64_t stride = std::max(1, experts / top_k);
  for (std::int64_t t = 0; t < tokens; ++t)
    for (std::int32_t k = 0; k < top_k; ++k)
      topk.as<std::int64_t>()[t * top_k + k] = k < experts ? (t + k * stride) % experts : -1;
  return topk;
}

std::shared_ptr<const RoutingState> make_routing(Tensor topk_idx, const Shape& shape) {
  auto state = std::make_shared<RoutingState>();
  state->shape = shape;
  state->tokens = topk_idx.shape[0];
  state->topk_idx = std::move(topk_idx);
  state->first_copy.reserve(state->tokens + 1);
  state->copies.reserve(state->tokens * std::min(shape.top_k, shape.ranks));
  state->first_copy.push_back(0);
  state->expert_row_index.reserve(state->tokens * shape.top_k);
  state->tokens_per_rank.assign(shape.ranks, 0);
  state->tokens_per_expert.assign(shape.experts, 0);
  std::int32_t ranks[kMaxTopK];
  for (std::int64_t t = 0; t < state->tokens; ++t) {
    for (const std::int64_t expert : state->experts_of(t))
      state->expert_row_index.push_back(expert >= 0 ? state->tokens_per_expert[expert]++ : -1);
    const std::int32_t count = ranks_by_last_topk_slot(state->experts_of(t), shape, ranks);
    for (std::int32_t i = 0; i < count; ++i)
      state->copies.push_back({ranks[i], state->tokens_per_rank[ranks[i]]++});
    state->first_copy.push_back(static_cast<std::int32_t>(state->copies.size()));
  }
  return state;
}

std::vector<std::int32_t> count_by_node(const RoutingState& routing,
                                        std::span<const std::int32_t> node_of, std::int32_t nodes) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(nodes), 0);
  std::vector<std::int64_t> last(static_cast<std::size_t>(nodes), -1);  // token that counted last
  for (std::int64_t token = 0; token < routing.tokens; ++token)
    for (const Copy& copy : routing.copies_of(token)) {
      const std::int32_t node = node_of[static_cast<std::size_t>(copy.rank)];
      if (std::exchange(last[static_cast<std::size_t>(node)], token) != token)
        ++tokens[static_cast<std::size_t>(node)];
    }
  return tokens;
}

std::vector<std::int64_t> rows_before(std::span<const std::int32_t> counts, std::int32_t ranks,
                                      std::int32_t source) {
  std::vector<std::int64_t> rows(ranks, 0);
  for (std::int32_t before = 0; before < source; ++before) {
    const std::int32_t* const sent = counts.data() + static_cast<std::size_t>(before) * ranks;
    for (std::int32_t rank = 0; rank < ranks; ++rank) rows[rank] += sent[rank];
  }
  return rows;
}

std::vector<std::int32_t> first_rows(std::span<const std::int32_t> counts, std::int32_t ranks,
                                     std::int32_t source) {
  const std::vector<std::int64_t> rows = rows_before(counts, ranks, source);
  return {rows.begin(), rows.end()};
}

ExpertRows make_expert_rows(const Shape& shape, std::span<const std::int32_t* const> counts,
                            std::int32_t me, std::int32_t alignment) {
  ExpertRows rows;
  rows.first.reserve(shape.experts);
  for (std::int32_t rank = 0; rank < shape.ranks; ++rank) {
    std::int64_t block = 0;
    for (std::int32_t local = 0; local < shape.experts_of(rank); ++local) {
      const std::int32_t expert = shape.first_expert(rank) + local;
      std::int64_t tokens = 0, before = 0;
      for (std::int32_t source = 0; source < shape.ranks; ++source) {
        if (source == me) before = tokens;
        tokens += counts[source][expert];
      }
      rows.first.push_back(static_cast<std::int32_t>(block + before));
      if (rank == me) {
        rows.blocks.push_back(static_cast<std::int32_t>(block));
        rows.counts.push_back(static_cast<std::int32_t>(tokens));
      }
      block += static_cast<std::int64_t>(align_up(tokens, alignment));
    }
    if (rank == me) rows.blocks.push_back(static_cast<std::int32_t>(block));
    rows.end.push_back(block);
  }
  return rows;
}

}  // namespace detail
}  // namespace shoal::ep
