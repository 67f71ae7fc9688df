// SPDX-License-Identifier: Apache-2.0
// case.hpp: generated routing and rows, which every rank can compute for all ranks, and naive
// references for the results of EP.
//
// A case is a pure function of its parameters and a seed, so a rank knows the rows of the others
// without communication. The output of an expert depends on its id, so the errors of rows that
// reach the wrong expert cannot cancel out.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "shoal/ep/group.hpp"

namespace shoal::test {

enum class Load { random, all_to_one, none, some_idle };

struct EpCase {
  std::int32_t ranks = 1, experts = 8, top_k = 2;
  std::int64_t hidden = 64, max_tokens = 16;
  std::uint64_t seed = 1;
  Load load = Load::random;
  double holes = 0.1;  ///< share of top-k slots that are -1
  /// Blocks of 512 channels differ in magnitude: the expert output of two of three is below 1,
  /// where LogFMT applies, and one token of five is all zeros.
  bool mixed_magnitudes = false;
  /// Nodes of the ranks. With several, normal combine rounds once per node.
  std::int32_t nodes = 1;
  bool full = false;         ///< ranks that are not idle have max_tokens tokens
  bool round_robin = false;  ///< ranks are dealt to the nodes in turn instead of in blocks
  std::vector<std::int32_t> first_expert = {};  ///< as in GroupOptions
  std::int32_t none_expert = -1;                ///< as in GroupOptions; in every other hole

  /// The first expert of a rank, or the end of those of the last one.
  std::int32_t first_of(std::int32_t rank) const;
  std::int32_t experts_of(std::int32_t rank) const { return first_of(rank + 1) - first_of(rank); }
  /// The most experts of any rank: the first dimension of low-latency results.
  std::int32_t local_experts() const;
  std::int32_t rank_of(std::int64_t expert) const;
  std::int64_t local_of(std::int64_t expert) const { return expert - first_of(rank_of(expert)); }
  std::int32_t node_of(std::int32_t rank) const {
    return round_robin ? rank % nodes : rank / (ranks / nodes);
  }
  std::int64_t tokens(std::int32_t rank) const;             ///< 0 .. max_tokens
  std::vector<std::int64_t> topk(std::int32_t rank) const;  ///< [tokens, top_k]
  /// topk as calls get it: every other -1 is none_expert.
  std::vector<std::int64_t> given_topk(std::int32_t rank) const;
  std::vector<float> weights(std::int32_t rank) const;  ///< [tokens, top_k]
  /// Bits of a bfloat16 value of magnitude below 2.
  std::uint16_t value(std::int32_t rank, std::int64_t token, std::int64_t channel) const;
  std::vector<std::uint16_t> rows(std::int32_t rank) const;  ///< [tokens, hidden] bfloat16
  std::string describe() const;
};

/// A case that runs fast.
inline EpCase small_case(std::int32_t ranks, std::uint64_t seed = 1) {
  return {.ranks = ranks,
          .experts = ranks * 3,
          .top_k = 4,
          .hidden = 96,
          .max_tokens = 24,
          .seed = seed};
}
/// small_case with rows of three groups of 128 channels, which share a scale each.
inline EpCase wide_case(std::int32_t ranks, std::uint64_t seed = 1) {
  EpCase c = small_case(ranks, seed);
  c.hidden = 384;
  return c;
}
/// The ranks that rank `me` masks where `out` and the others continue as two groups.
inline std::vector<int> mask_of_split(std::int32_t out, std::int32_t me, std::int32_t ranks) {
  std::vector<int> mask(ranks, me == out ? 1 : 0);
  mask[out] = me == out ? 0 : 1;
  return mask;
}
/// The sizes of DeepSeek-V3.
inline ep::GroupOptions deepseek_options() {
  ep::GroupOptions options;
  options.max_tokens = 4096;
  options.hidden = 7168;
  options.top_k = 8;
  options.experts = 256;
  options.low_latency_max_tokens = 128;
  return options;
}
/// One expert less than small_case, so that several ranks do not divide them.
inline EpCase uneven_case(std::int32_t ranks, std::uint64_t seed = 1) {
  EpCase c = small_case(ranks, seed);
  c.experts = ranks * 3 - 1;
  return c;
}
/// Two experts on the first and the last rank, five on the one before the last, none on the others.
/// For three ranks or more.
inline EpCase gap_case(std::int32_t ranks, std::uint64_t seed = 1) {
  EpCase c = small_case(ranks, seed);
  c.experts = 9;
  c.first_expert.assign(static_cast<std::size_t>(ranks), 2);
  c.first_expert.front() = 0;
  c.first_expert.back() = 7;
  return c;
}
/// The same case with other values.
inline EpCase reseeded(EpCase c, std::uint64_t by) {
  c.seed += by;
  return c;
}

/// Ranks that hold experts of a token, ordered by the last top-k slot that names each. Their expert
/// output is added in this order. `experts` are the top_k experts of the token.
std::vector<std::int32_t> ranks_of(const EpCase& c, const std::int64_t* experts);

/// The nodes of these ranks, each once, ordered by the last of their ranks in `ranks`. If the ranks
/// are ordered by last top-k slot, so are the nodes.
std::vector<std::int32_t> nodes_of(const EpCase& c, const std::vector<std::int32_t>& ranks);

/// The rows that rank `rank` must receive in normal mode.
struct ExpectedDispatch {
  std::vector<std::int32_t> source_rank, source_token;  ///< per row
  std::vector<std::int64_t> topk_idx;                   ///< [rows, top_k] local or -1
  std::vector<float> weights;                           ///< [rows, top_k]
  std::vector<std::int64_t> rows_per_source, tokens_per_expert;
};
ExpectedDispatch expected_dispatch(const EpCase& c, std::int32_t rank);

/// The rows that rank `rank` must receive in the expert-major layout
/// (Group::dispatch_expert_major).
struct ExpectedExpertMajor {
  std::vector<std::int32_t> source_rank, source_token, topk_slot;  ///< per row; -1 between blocks
  std::vector<std::int64_t> topk_idx;   ///< per row: local expert; -1 between blocks
  std::vector<float> weights;           ///< per row; 0 between blocks
  std::vector<std::int32_t> first_row;  ///< [local experts + 1]
  std::vector<std::int64_t> rows_per_source, tokens_per_expert;  ///< the latter aligned
  std::int64_t rows() const { return static_cast<std::int64_t>(topk_idx.size()); }
};
ExpectedExpertMajor expected_expert_major(const EpCase& c, std::int32_t rank,
                                          std::int32_t alignment);

/// The function of expert `expert` in all tests.
float expert_factor(std::int32_t expert);

/// The expert output of rank `rank` for one of its rows: the weighted sum over its experts, in
/// bfloat16.
std::uint16_t expert_output(const EpCase& c, std::int32_t rank, std::uint16_t x,
                            const std::int64_t* local_idx, const float* weights);

/// The effect of the wire format on a bfloat16 row. Without a function it arrives unchanged.
using Travel = std::function<void(std::span<const std::uint16_t> row, std::span<float> arrived)>;

/// The result of combine on rank `rank`: [tokens, hidden] bfloat16; biases may be null. `travel`:
/// of the rows that are added, those of ranks, or with several nodes the sums of nodes.
std::vector<std::uint16_t> expected_combine(const EpCase& c, std::int32_t rank,
                                            const std::vector<std::uint16_t>* bias0 = nullptr,
                                            const std::vector<std::uint16_t>* bias1 = nullptr,
                                            const Travel& travel = {});

/// The rows that rank `rank` must receive in low-latency mode from the ranks that are not in
/// `masked`.
struct ExpectedLowLatency {
  struct Row {
    std::int32_t source_rank, source_token;
  };
  std::vector<std::vector<Row>> rows;  ///< [local experts], in order
  std::vector<std::int64_t> layout;    ///< [local experts, ranks]: (first row << 32) | rows
};
ExpectedLowLatency expected_low_latency_dispatch(const EpCase& c, std::int32_t rank,
                                                 const std::vector<int>& masked = {});

struct Travels {
  Travel to_experts, back;  ///< of rows, and of expert outputs that are sent as such
  /// With per_rank each rank returns a bfloat16 sum, which travels so. Without a function ranks
  /// return expert outputs, as those in `unsummed` do in any case.
  Travel sums{};
  std::vector<int> unsummed{};  ///< [ranks], or empty: none
};

/// The result of low-latency combine if experts multiply rows by expert_factor and return bfloat16;
/// ranks in `masked` do not contribute.
std::vector<std::uint16_t> expected_low_latency(const EpCase& c, std::int32_t rank,
                                                ep::Reduction reduction,
                                                const std::vector<int>& masked = {},
                                                const Travels& travels = {});

/// The rows of that combine, [tokens, top_k, hidden], with LowLatencyCombineOptions::unsummed.
std::vector<std::uint16_t> expected_unsummed(const EpCase& c, std::int32_t rank,
                                             const std::vector<int>& masked = {},
                                             const Travels& travels = {});

std::uint16_t bf16_of(float value);
float float_of_bf16(std::uint16_t bits);

/// Throws std::runtime_error naming the first difference.
void expect_same(const std::string& what, const void* got, const void* wanted, std::size_t bytes,
                 std::size_t element);

/// Index of word `word` of the one-byte scales of a row in tiles, `words` words a row. As cuBLASLt
/// describes its blocks of 128 rows by four scales: byte (row % 32) * 16 + (row / 32) * 4 of a
/// block, blocks of the same rows first.
constexpr std::int64_t word_of_tiles(std::int64_t row, std::int64_t word, std::int64_t words) {
  return ((row / 128 * words + word) * 512 + row % 128 % 32 * 16 + row % 128 / 32 * 4) / 4;
}

}  // namespace shoal::test
