// SPDX-License-Identifier: Apache-2.0
#include "checks/ep/case.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <random>
#include <stdexcept>

#include "support/made_up.hpp"

namespace shoal::test {
std::uint16_t bf16_of(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}
float float_of_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

std::int32_t EpCase::first_of(std::int32_t rank) const {
  if (rank == ranks) return experts;
  return first_expert.empty() ? rank * (experts / ranks) + std::min(rank, experts % ranks)
                              : first_expert[static_cast<std::size_t>(rank)];
}
std::int32_t EpCase::local_experts() const {
  std::int32_t most = 0;
  for (std::int32_t rank = 0; rank < ranks; ++rank) most = std::max(most, experts_of(rank));
  return most;
}
std::int32_t EpCase::rank_of(std::int64_t expert) const {
  std::int32_t rank = 0;
  while (expert >= first_of(rank + 1)) ++rank;
  return rank;
}

std::int64_t EpCase::tokens(std::int32_t rank) const {
  if (load == Load::none) return 0;
  if (load == Load::some_idle && rank % 2 == 0) return 0;
  if (full) return max_tokens;
  return static_cast<std::int64_t>(mix(seed * 1000003 + rank) % (max_tokens + 1));
}

std::vector<std::int64_t> EpCase::topk(std::int32_t rank) const {
  std::mt19937_64 random(mix(seed ^ (0xabcdULL + rank)));
  std::vector<std::int64_t> topk_idx(tokens(rank) * top_k, -1);
  std::vector<std::int64_t> order(experts);
  for (std::int64_t t = 0; t < tokens(rank); ++t) {
    std::iota(order.begin(), order.end(), 0);
    for (std::int32_t k = 0; k < std::min(top_k, experts); ++k) {
      std::swap(order[k], order[k + random() % (experts - k)]);
      topk_idx[t * top_k + k] =
          std::uniform_real_distribution<double>(0, 1)(random) < holes ? -1 : order[k];
    }
    if (load == Load::all_to_one) {
      std::fill_n(topk_idx.begin() + t * top_k, top_k, -1);
      topk_idx[t * top_k] = experts - 1;
    }
  }
  return topk_idx;
}

std::vector<std::int64_t> EpCase::given_topk(std::int32_t rank) const {
  std::vector<std::int64_t> given = topk(rank);
  bool other = false;
  for (std::int64_t& expert : given)
    if (expert < 0 && (other = !other)) expert = none_expert;
  return given;
}

std::vector<float> EpCase::weights(std::int32_t rank) const {
  std::mt19937 random(static_cast<std::uint32_t>(mix(seed ^ (0x1234ULL + rank))));
  std::vector<float> values(tokens(rank) * top_k);
  for (float& w : values) w = std::uniform_real_distribution<float>(0.05F, 1.0F)(random);
  return values;
}

std::uint16_t EpCase::value(std::int32_t rank, std::int64_t token, std::int64_t channel) const {
  const std::uint64_t h = mix(seed + (static_cast<std::uint64_t>(rank) << 48) +
                              (static_cast<std::uint64_t>(token) << 24) + channel);
  const float value = static_cast<float>(static_cast<std::int64_t>(h % 4001) - 2000) / 1000.0F;
  if (!mixed_magnitudes) return bf16_of(value);
  const bool large = (token + channel / 512) % 3 == 0;
  return token % 5 == 4 ? 0 : bf16_of(large ? value : value / 8);
}

std::vector<std::uint16_t> EpCase::rows(std::int32_t rank) const {
  std::vector<std::uint16_t> values(tokens(rank) * hidden);
  for (std::int64_t t = 0; t < tokens(rank); ++t)
    for (std::int64_t c = 0; c < hidden; ++c) values[t * hidden + c] = value(rank, t, c);
  return values;
}

std::string EpCase::describe() const {
  return fmt::format(
      "ranks {} experts {}{}{} top_k {} hidden {} max_tokens {}{} load {} seed {}", ranks, experts,
      first_expert.empty() ? "" : fmt::format(" from {}", fmt::join(first_expert, " ")),
      none_expert == -1 ? "" : fmt::format(" or {}", none_expert), top_k, hidden, max_tokens,
      full ? " (all)" : "", static_cast<int>(load), seed);
}

std::vector<std::int32_t> ranks_of(const EpCase& c, const std::int64_t* experts) {
  std::vector<std::int32_t> ranks;
  for (std::int32_t rank = 0; rank < c.ranks; ++rank)
    if (std::any_of(experts, experts + c.top_k,
                    [&](std::int64_t e) { return e >= 0 && c.rank_of(e) == rank; }))
      ranks.push_back(rank);
  const auto last_topk_slot = [&](std::int32_t rank) {
    std::int32_t last = -1;
    for (std::int32_t k = 0; k < c.top_k; ++k)
      if (experts[k] >= 0 && c.rank_of(experts[k]) == rank) last = k;
    return last;
  };
  std::sort(ranks.begin(), ranks.end(),
            [&](std::int32_t a, std::int32_t b) { return last_topk_slot(a) < last_topk_slot(b); });
  return ranks;
}

ExpectedDispatch expected_dispatch(const EpCase& c, std::int32_t rank) {
  ExpectedDispatch e;
  e.tokens_per_expert.assign(c.experts_of(rank), 0);
  const std::int64_t first = c.first_of(rank);
  for (std::int32_t source = 0; source < c.ranks; ++source) {
    const auto topk_idx = c.topk(source);
    const auto weights = c.weights(source);
    std::int64_t rows = 0;
    for (std::int64_t t = 0; t < c.tokens(source); ++t) {
      const std::int64_t* row = topk_idx.data() + t * c.top_k;
      const auto here = [&](std::int64_t expert) {
        return expert >= first && expert < c.first_of(rank + 1);
      };
      if (std::none_of(row, row + c.top_k, here)) continue;
      ++rows;
      e.source_rank.push_back(source);
      e.source_token.push_back(static_cast<std::int32_t>(t));
      for (std::int32_t k = 0; k < c.top_k; ++k) {
        e.topk_idx.push_back(here(row[k]) ? row[k] - first : -1);
        e.weights.push_back(here(row[k]) ? weights[t * c.top_k + k] : 0.0F);
        if (here(row[k])) ++e.tokens_per_expert[row[k] - first];
      }
    }
    e.rows_per_source.push_back(rows);
  }
  return e;
}

ExpectedExpertMajor expected_expert_major(const EpCase& c, std::int32_t rank,
                                          std::int32_t alignment) {
  ExpectedExpertMajor e;
  const auto push = [&e](std::int32_t source, std::int64_t token, std::int32_t topk_slot,
                         std::int64_t local, float weight) {
    e.source_rank.push_back(source);
    e.source_token.push_back(static_cast<std::int32_t>(token));
    e.topk_slot.push_back(topk_slot);
    e.topk_idx.push_back(local);
    e.weights.push_back(weight);
  };
  e.rows_per_source.assign(c.ranks, 0);
  std::vector<std::vector<std::int64_t>> topk_idx_of;
  std::vector<std::vector<float>> weights_of;
  for (std::int32_t source = 0; source < c.ranks; ++source) {
    topk_idx_of.push_back(c.topk(source));
    weights_of.push_back(c.weights(source));
  }
  for (std::int32_t local = 0; local < c.experts_of(rank); ++local) {
    const std::int64_t first = e.rows();
    e.first_row.push_back(static_cast<std::int32_t>(first));
    for (std::int32_t source = 0; source < c.ranks; ++source) {
      const auto& topk_idx = topk_idx_of[source];
      for (std::size_t i = 0; i < topk_idx.size(); ++i) {
        if (topk_idx[i] != c.first_of(rank) + local) continue;
        push(source, static_cast<std::int64_t>(i) / c.top_k, static_cast<std::int32_t>(i) % c.top_k,
             local, weights_of[source][i]);
        ++e.rows_per_source[source];
      }
    }
    while (e.rows() % alignment != 0) push(-1, -1, -1, -1, 0.0F);
    e.tokens_per_expert.push_back(e.rows() - first);
  }
  e.first_row.push_back(static_cast<std::int32_t>(e.rows()));
  return e;
}

float expert_factor(std::int32_t expert) {
  return 0.5F + static_cast<float>(expert % 61) / 32.0F;
}

std::uint16_t expert_output(const EpCase& c, std::int32_t rank, std::uint16_t x,
                            const std::int64_t* local_idx, const float* weights) {
  float sum = 0;
  for (std::int32_t k = 0; k < c.top_k; ++k)
    if (local_idx[k] >= 0) {
      const float term =
          weights[k] * expert_factor(c.first_of(rank) + static_cast<std::int32_t>(local_idx[k]));
      sum += term * float_of_bf16(x);
    }
  return bf16_of(sum);
}

std::vector<std::int32_t> nodes_of(const EpCase& c, const std::vector<std::int32_t>& ranks) {
  std::vector<std::int32_t> nodes;
  for (const std::int32_t rank : ranks) {
    std::erase(nodes, c.node_of(rank));
    nodes.push_back(c.node_of(rank));
  }
  return nodes;
}

std::vector<std::uint16_t> expected_combine(const EpCase& c, std::int32_t rank,
                                            const std::vector<std::uint16_t>* bias0,
                                            const std::vector<std::uint16_t>* bias1,
                                            const Travel& travel) {
  const auto topk_idx = c.topk(rank);
  const auto weights = c.weights(rank);
  std::vector<std::uint16_t> out(c.tokens(rank) * c.hidden), added(c.hidden);
  std::vector<std::int64_t> local(c.top_k);
  std::vector<float> of_node(c.hidden), arrived(c.hidden), sum(c.hidden);
  for (std::int64_t t = 0; t < c.tokens(rank); ++t) {
    const std::int64_t* row = topk_idx.data() + t * c.top_k;
    const auto ranks = ranks_of(c, row);
    const auto output_of = [&](std::int32_t owner, std::int64_t channel) {
      for (std::int32_t k = 0; k < c.top_k; ++k)
        local[k] = row[k] >= 0 && c.rank_of(row[k]) == owner ? c.local_of(row[k]) : -1;
      return expert_output(c, owner, c.value(rank, t, channel), local.data(),
                           weights.data() + t * c.top_k);
    };
    const auto add = [&] {
      if (travel)
        travel(added, arrived);
      else
        std::ranges::transform(added, arrived.begin(), float_of_bf16);
      for (std::int64_t ch = 0; ch < c.hidden; ++ch) sum[ch] += arrived[ch];
    };
    for (std::int64_t ch = 0; ch < c.hidden; ++ch)
      sum[ch] = (bias0 ? float_of_bf16((*bias0)[t * c.hidden + ch]) : 0.0F) +
                (bias1 ? float_of_bf16((*bias1)[t * c.hidden + ch]) : 0.0F);
    if (c.nodes == 1)
      for (const std::int32_t owner : ranks) {
        for (std::int64_t ch = 0; ch < c.hidden; ++ch) added[ch] = output_of(owner, ch);
        add();
      }
    else
      for (const std::int32_t node : nodes_of(c, ranks)) {
        std::ranges::fill(of_node, 0.0F);
        for (const std::int32_t owner : ranks)
          for (std::int64_t ch = 0; c.node_of(owner) == node && ch < c.hidden; ++ch)
            of_node[ch] += float_of_bf16(output_of(owner, ch));
        std::ranges::transform(of_node, added.begin(), bf16_of);
        add();
      }
    std::ranges::transform(sum, out.begin() + t * c.hidden, bf16_of);
  }
  return out;
}

ExpectedLowLatency expected_low_latency_dispatch(const EpCase& c, std::int32_t rank,
                                                 const std::vector<int>& masked) {
  ExpectedLowLatency e;
  e.rows.resize(c.local_experts());
  e.layout.assign(static_cast<std::size_t>(c.local_experts()) * c.ranks, 0);
  for (std::int32_t source = 0; source < c.ranks; ++source) {
    for (std::int32_t local = 0; local < c.local_experts(); ++local)
      e.layout[local * c.ranks + source] = static_cast<std::int64_t>(e.rows[local].size()) << 32;
    if (!masked.empty() && masked[source] != 0) continue;
    const auto topk_idx = c.topk(source);
    for (std::size_t i = 0; i < topk_idx.size(); ++i) {
      if (topk_idx[i] < 0 || c.rank_of(topk_idx[i]) != rank) continue;
      const std::int64_t local = c.local_of(topk_idx[i]);
      e.rows[local].push_back({source, static_cast<std::int32_t>(i / c.top_k)});
      ++e.layout[local * c.ranks + source];
    }
  }
  return e;
}

namespace {

void travel(const Travel& how, std::span<const std::uint16_t> row, std::span<float> arrived) {
  if (how) return how(row, arrived);
  std::transform(row.begin(), row.end(), arrived.begin(), float_of_bf16);
}

/// The expert output for token `t` of rank `rank`, after its way back: [top_k][hidden].
std::vector<float> low_latency_expert_output(const EpCase& c, std::int32_t rank, std::int64_t t,
                                             const std::int64_t* experts, const Travel& to_experts,
                                             const Travel& back) {
  const auto hidden = static_cast<std::size_t>(c.hidden);
  std::vector<std::uint16_t> row(hidden);
  std::vector<float> x(hidden), output(c.top_k * hidden);
  for (std::size_t ch = 0; ch < hidden; ++ch)
    row[ch] = c.value(rank, t, static_cast<std::int64_t>(ch));
  travel(to_experts, row, x);
  for (std::int32_t k = 0; k < c.top_k; ++k) {
    if (experts[k] < 0) continue;
    const float factor = expert_factor(static_cast<std::int32_t>(experts[k]));
    for (std::size_t ch = 0; ch < hidden; ++ch) row[ch] = bf16_of(factor * x[ch]);
    travel(back, row, {output.data() + k * hidden, hidden});
  }
  return output;
}

}  // namespace

std::vector<std::uint16_t> expected_low_latency(const EpCase& c, std::int32_t rank,
                                                ep::Reduction reduction,
                                                const std::vector<int>& masked,
                                                const Travels& travels) {
  const auto topk_idx = c.topk(rank);
  const auto weights = c.weights(rank);
  std::vector<std::uint16_t> out(c.tokens(rank) * c.hidden);
  for (std::int64_t t = 0; t < c.tokens(rank); ++t) {
    const std::int64_t* row = topk_idx.data() + t * c.top_k;
    const auto outputs = [&](const Travel& back) {
      return low_latency_expert_output(c, rank, t, row, travels.to_experts, back);
    };
    const auto arrived = outputs(travels.back);
    const auto owner_of = [&](std::int32_t k) { return c.rank_of(row[k]); };
    const auto counts = [&](std::int32_t k) {
      return row[k] >= 0 && (masked.empty() || masked[owner_of(k)] == 0);
    };
    const auto hidden = static_cast<std::size_t>(c.hidden);
    std::vector<float> sum(hidden), level(hidden);
    const auto add = [&](std::int32_t k, const std::vector<float>& output, std::vector<float>& to) {
      for (std::size_t ch = 0; ch < hidden; ++ch)
        to[ch] += weights[t * c.top_k + k] * output[k * hidden + ch];
    };
    if (reduction == ep::Reduction::exact) {
      for (std::int32_t k = 0; k < c.top_k; ++k)
        if (counts(k)) add(k, arrived, sum);
    } else {
      const auto plain = travels.sums ? outputs({}) : std::vector<float>();
      std::vector<std::uint16_t> rounded(hidden);
      for (const std::int32_t owner : ranks_of(c, row)) {
        const bool sums =
            travels.sums && (travels.unsummed.empty() || travels.unsummed[owner] == 0);
        std::ranges::fill(level, 0.0F);
        for (std::int32_t k = 0; k < c.top_k; ++k)
          if (counts(k) && owner_of(k) == owner) add(k, sums ? plain : arrived, level);
        std::ranges::transform(level, rounded.begin(), bf16_of);
        travel(sums ? travels.sums : Travel(), rounded, level);
        for (std::size_t ch = 0; ch < hidden; ++ch) sum[ch] += float_of_bf16(bf16_of(level[ch]));
      }
    }
    std::ranges::transform(sum, out.begin() + t * c.hidden, bf16_of);
  }
  return out;
}

std::vector<std::uint16_t> expected_unsummed(const EpCase& c, std::int32_t rank,
                                             const std::vector<int>& masked,
                                             const Travels& travels) {
  const auto topk_idx = c.topk(rank);
  std::vector<std::uint16_t> out;
  for (std::int64_t t = 0; t < c.tokens(rank); ++t) {
    std::vector<std::int64_t> experts(topk_idx.begin() + t * c.top_k,
                                      topk_idx.begin() + (t + 1) * c.top_k);
    for (std::int64_t& expert : experts)
      if (expert >= 0 && !masked.empty() && masked[c.rank_of(expert)] != 0) expert = -1;
    std::ranges::transform(
        low_latency_expert_output(c, rank, t, experts.data(), travels.to_experts, travels.back),
        std::back_inserter(out), bf16_of);
  }
  return out;
}

void expect_same(const std::string& what, const void* got, const void* wanted, std::size_t bytes,
                 std::size_t element) {
  if (bytes == 0 || std::memcmp(got, wanted, bytes) == 0) return;
  const auto* a = static_cast<const unsigned char*>(got);
  const auto* b = static_cast<const unsigned char*>(wanted);
  for (std::size_t i = 0; i < bytes; i += element) {
    if (std::memcmp(a + i, b + i, element) == 0) continue;
    std::string got_hex, wanted_hex;
    for (std::size_t j = element; j-- > 0;)
      got_hex += fmt::format("{:02x}", a[i + j]), wanted_hex += fmt::format("{:02x}", b[i + j]);
    throw std::runtime_error(fmt::format("{}: element {} of {} is 0x{}, expected 0x{}", what,
                                         i / element, bytes / element, got_hex, wanted_hex));
  }
}

}  // namespace shoal::test
