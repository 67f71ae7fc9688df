// SPDX-License-Identifier: Apache-2.0
// low_latency_combine_receive: the weighted sum of each token's combine rows, fetched from the
// ranks that hold its experts, or, `unsummed`, these rows themselves.
//
// Reads one row per (token, top-k slot), or per (token, rank) if the rank has sent sums; writes one
// row per token. Slots are grouped by rank, ranks in the order of their last slot, slots ascending
// within a rank. With per_rank the sum of each rank is rounded to bfloat16 before the ranks are
// added; where rows are encoded it also passes through the encoding, unless the rank has sent
// encoded expert outputs. Every backend uses this order, so results agree bit by bit.
#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "base/check.hpp"
#include "ep/host/low_latency/low_latency.hpp"
#include "ep/host/rows/combine_row.hpp"
#include "ep/numeric/rows.hpp"

namespace shoal::ep::host {
namespace {

using shoal::detail::Activity;

/// The combine rows of one token, in the order of summation.
struct TokenRows {
  std::array<const std::byte*, kMaxTopK> rows;
  std::array<float, kMaxTopK> weights;
  std::array<std::int32_t, kMaxTopK> level_ends;
  std::array<CombineRowForm, kMaxTopK> level_forms;
  std::size_t count = 0, levels = 0;
};

const LowLatencyCombineNotice& notice_of(const HostGroup& group, std::uint64_t epoch,
                                         std::int32_t rank) {
  return *reinterpret_cast<const LowLatencyCombineNotice*>(
      group.state.block + group.layout.combine_notice(epoch, rank, group.state.shape));
}

class CombineRowFinder {
 public:
  CombineRowFinder(const HostGroup& group, const PendingCombineState& pending)
      : group_(group),
        handle_(*pending.handle),
        exact_(pending.options.reduction == Reduction::exact),
        weights_(pending.weights),
        epoch_(pending.epoch) {
    const auto& shape = group_.state.shape;
    for (std::int32_t expert = 0; expert < shape.experts; ++expert)
      before_expert_.push_back(shape.local_of(expert) == 0
                                   ? 0
                                   : before_expert_.back() +
                                         handle_.routing->tokens_per_expert[expert - 1]);
  }

  void find(std::int64_t token, TokenRows& token_rows) const {
    const auto& shape = group_.state.shape;
    const auto experts = handle_.routing->experts_of(token);
    token_rows.count = token_rows.levels = 0;
    if (exact_) {
      for (std::int32_t k = 0; k < shape.top_k; ++k) add(token, k, token_rows);
      return;
    }
    for (const detail::Copy& copy : handle_.routing->copies_of(token)) {
      if (group_.masked[copy.rank]) continue;
      const CombineRowForm form = notice_of(group_, epoch_, copy.rank).sent;
      if (is_sums(form)) {
        add_sum(copy, token_rows);
      } else {
        for (std::int32_t k = 0; k < shape.top_k; ++k)
          if (experts[k] >= 0 && shape.rank_of(experts[k]) == copy.rank) add(token, k, token_rows);
      }
      token_rows.level_forms[token_rows.levels] = form;
      token_rows.level_ends[token_rows.levels++] = static_cast<std::int32_t>(token_rows.count);
    }
  }

  /// The row of one top-k slot, where ranks send expert outputs; nullptr: there is none, or its
  /// rank is masked.
  const std::byte* row_of(std::int64_t token, std::int32_t topk_slot) const {
    const auto& shape = group_.state.shape;
    const std::int64_t expert = handle_.routing->experts_of(token)[topk_slot];
    if (expert < 0) return nullptr;
    const auto [rank, local] = shape.partition->place(expert);
    if (group_.masked[rank]) return nullptr;
    const auto* first_row =
        reinterpret_cast<const std::int32_t*>(&notice_of(group_, epoch_, rank) + 1);
    const std::int32_t index = handle_.routing->expert_row_index[token * shape.top_k + topk_slot];
    if (group_.state.nodes.here(rank))
      return group_.state.peers[rank] +
             group_.layout.combine_row(epoch_, local, std::int64_t{first_row[local]} + index,
                                       shape);
    return group_.state.block + group_.layout.remote_combine_row(
                                    epoch_, group_.state.nodes.remote_index(group_.state.me, rank),
                                    before_expert_[expert] + index, shape);
  }

 private:
  void add(std::int64_t token, std::int32_t topk_slot, TokenRows& token_rows) const {
    const std::byte* const row = row_of(token, topk_slot);
    if (row == nullptr) return;
    token_rows.rows[token_rows.count] = row;
    token_rows.weights[token_rows.count++] = weights_[token * group_.state.shape.top_k + topk_slot];
  }

  void add_sum(const detail::Copy& copy, TokenRows& token_rows) const {
    token_rows.rows[token_rows.count] =
        group_.state.block + group_.layout.remote_combine_row(
                                 epoch_,
                                 group_.state.nodes.remote_index(group_.state.me, copy.rank),
                                 copy.row, group_.state.shape);
    token_rows.weights[token_rows.count++] = 1.0F;
  }

  const HostGroup& group_;
  const LowLatencyHandleState& handle_;
  const bool exact_;
  const std::vector<float>& weights_;
  std::uint64_t epoch_;
  std::vector<std::int32_t> before_expert_;  // own tokens of the experts before, at the same rank
};

/// weighted_sum_rows of bfloat16 rows, given as bytes.
void weighted_sum(std::uint16_t* target, const TokenRows& token_rows, std::size_t first,
                  std::size_t end, std::span<const std::int32_t> level_ends, std::int64_t hidden) {
  std::array<const std::uint16_t*, kMaxTopK> rows;
  std::transform(token_rows.rows.begin() + first, token_rows.rows.begin() + end, rows.begin(),
                 [](const std::byte* row) { return reinterpret_cast<const std::uint16_t*>(row); });
  weighted_sum_rows(target, {rows.data(), end - first},
                    {token_rows.weights.data() + first, end - first}, level_ends, hidden,
                    Store::cached);
}

/// weighted_sum_rows of encoded rows, which are decoded to float32 one at a time.
class EncodedSummer {
 public:
  /// `agreed`: the form in which the ranks combine.
  EncodedSummer(CombineRowForm agreed, std::int64_t hidden)
      : form_(agreed),
        row_(hidden),
        level_(hidden),
        total_(hidden),
        sum_(hidden),
        encoded_(numeric::logfmt_row_bytes(hidden) / sizeof(numeric::LogfmtGroup) + 1) {}

  void sum(std::uint16_t* target, const TokenRows& token_rows) {
    std::ranges::fill(total_, 0.0F);
    if (token_rows.levels == 0) add_rows(token_rows, 0, token_rows.count, total_);
    for (std::size_t i = 0, first = 0; i < token_rows.levels; ++i) {
      const auto end = static_cast<std::size_t>(token_rows.level_ends[i]);
      std::ranges::fill(level_, 0.0F);
      if (token_rows.level_forms[i] == CombineRowForm::rows)
        pass_sum(token_rows, first, end);
      else
        add_rows(token_rows, first, end, level_);
      for (std::size_t c = 0; c < total_.size(); ++c)
        total_[c] += numeric::to_float(numeric::to_bf16(level_[c]));
      first = end;
    }
    for (std::size_t c = 0; c < total_.size(); ++c) target[c] = numeric::to_bf16(total_[c]).bits;
  }

 private:
  /// Adds weighted encoded rows.
  void add_rows(const TokenRows& token_rows, std::size_t first, std::size_t end,
                std::vector<float>& to) {
    for (std::size_t i = first; i < end; ++i) {
      decode_combine_row(encoding_of(form_), token_rows.rows[i], row_);
      for (std::size_t c = 0; c < to.size(); ++c) to[c] += token_rows.weights[i] * row_[c];
    }
  }
  /// Sums bfloat16 rows and encodes the sum, as their rank would have done.
  void pass_sum(const TokenRows& token_rows, std::size_t first, std::size_t end) {
    const auto hidden = static_cast<std::int64_t>(sum_.size());
    weighted_sum(sum_.data(), token_rows, first, end, {}, hidden);
    auto* const bytes = reinterpret_cast<std::byte*>(encoded_.data());
    encode_combine_row(encoding_of(form_), sum_, bytes);
    decode_combine_row(encoding_of(form_), bytes, level_);
  }

  const CombineRowForm form_;
  std::vector<float> row_, level_, total_;
  std::vector<std::uint16_t> sum_;
  std::vector<numeric::LogfmtGroup> encoded_;
};

void sum_combine_rows(HostGroup& group, const PendingCombineState& pending, const Tensor& out) {
  const std::int64_t hidden = group.state.shape.hidden;
  const CombineRowForm agreed = agreed_form(pending.options);
  const CombineRowFinder finder(group, pending);
  group.workers.for_ranges(out.shape[0], [&](std::int64_t first, std::int64_t last) {
    TokenRows token_rows;
    std::optional<EncodedSummer> encoded;
    if (is_encoded(agreed)) encoded.emplace(agreed, hidden);
    for (std::int64_t token = first; token < last; ++token) {
      finder.find(token, token_rows);
      std::uint16_t* target = out.as<std::uint16_t>() + token * hidden;
      if (encoded)
        encoded->sum(target, token_rows);
      else
        weighted_sum(target, token_rows, 0, token_rows.count,
                     {token_rows.level_ends.data(), token_rows.levels}, hidden);
    }
  });
}

/// Writes the rows of each token in top-k order, decoded where they are encoded.
void give_combine_rows(HostGroup& group, const PendingCombineState& pending, const Tensor& out) {
  const std::int64_t hidden = group.state.shape.hidden, top_k = group.state.shape.top_k;
  const std::size_t row_bytes = static_cast<std::size_t>(hidden) * sizeof(std::uint16_t);
  const CombineRowForm form = agreed_form(pending.options);
  const CombineRowFinder finder(group, pending);
  const Store store = choose_store(out.bytes(), group.state.shape.ranks, last_level_cache_bytes());
  group.workers.for_ranges(out.shape[0] * top_k, [&](std::int64_t first, std::int64_t last) {
    std::vector<float> values(is_encoded(form) ? hidden : 0);
    for (std::int64_t i = first; i < last; ++i) {
      const std::byte* const row = finder.row_of(i / top_k, static_cast<std::int32_t>(i % top_k));
      std::uint16_t* const target = out.as<std::uint16_t>() + i * hidden;
      if (row == nullptr) {
        std::fill_n(target, hidden, std::uint16_t{0});
      } else if (is_encoded(form)) {
        decode_combine_row(encoding_of(form), row, values);
        for (std::int64_t c = 0; c < hidden; ++c) target[c] = numeric::to_bf16(values[c]).bits;
      } else {
        copy_row(target, row, row_bytes, store);
      }
    }
  });
}

/// Throws Error{mismatch}, on all ranks, when ranks combine different dispatches or send rows of
/// different forms.
void wait_for_combine_rows(HostGroup& group, PendingCombineState& pending, const Step& step) {
  std::optional<std::string> mismatch;
  for (std::int32_t rank = 0; rank < group.state.shape.ranks; ++rank) {
    const WaitTimer timer(pending.options.wait_ns, rank);
    const auto notice = wait_for_notice<LowLatencyCombineNotice>(
        group, group.layout.combine_ready,
        group.layout.combine_notice(step.epoch, rank, group.state.shape), rank, step);
    if (!notice) continue;
    const CombineRowForm agreed = agreed_form(pending.options);
    const bool has_weights = pending.handle->has_weights;
    const auto form = [&](bool unsummed) {
      return combine_row_form(agreed, !group.state.nodes.here(rank), has_weights, unsummed);
    };
    // Without the weights the rank chooses whether it sends expert outputs encoded.
    const bool as_expected =
        notice->sent == form(false) || (!has_weights && notice->sent == form(true));
    if (notice->dispatch_epoch != pending.handle->epoch || notice->agreed != agreed || !as_expected)
      mismatch = fmt::format(
          "PE {} combines dispatch {} and expects {}; PE {} combines dispatch {} and sends {}",
          group.state.team.world_pe(group.state.me), pending.handle->epoch,
          detail::describe_combine_rows(agreed, form(false)), group.state.team.world_pe(rank),
          notice->dispatch_epoch, detail::describe_combine_rows(notice->agreed, notice->sent));
  }
  if (!mismatch) return;
  raise_or_mask(group, group.layout.combine_read,
                step.epoch);  // stays in step: the rows count as fetched
  fail(Code::mismatch, "SHOAL-N596: low_latency_combine {}: {}{}", step.epoch, *mismatch,
       group.state.world->progress().refusal(
           group.pes, group.state.call(shoal::detail::CallKind::low_latency_combine, step.epoch)));
}

}  // namespace

Tensor low_latency_combine_receive(HostGroup& group, PendingCombineState& pending) {
  const auto& shape = group.state.shape;
  const Step step{"low_latency_combine", Activity::low_latency_combine, pending.epoch, "receive",
                  "its expert outputs"};
  enter_phase(group, step);
  wait_for_combine_rows(group, pending, step);
  const TensorView& given = pending.options.out;
  const bool unsummed = pending.options.unsummed;
  Tensor out = given.defined() ? Tensor(given, nullptr)
                               : shape.with_combined_extents(
                                     pending.handle->routing->tokens, unsummed, [](auto extents) {
                                       return Tensor::empty(DataType::bfloat16, extents);
                                     });
  if (unsummed)
    give_combine_rows(group, pending, out);
  else
    sum_combine_rows(group, pending, out);
  const std::size_t rows = pending.handle->routing->copies.size();
  group.state.recorder.moved(rows, rows * static_cast<std::size_t>(shape.hidden) * 2);
  raise_or_mask(group, group.layout.combine_read, pending.epoch);
  return out;
}

}  // namespace shoal::ep::host
