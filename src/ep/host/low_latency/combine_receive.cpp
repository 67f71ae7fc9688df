// SPDX-License-Identifier: Apache-2.0
// low_latency_combine_receive: the weighted sum of each token's combine rows, fetched from the
// ranks that hold its experts.
//
// Reads one row per (token, top-k slot), or per (token, rank) if the rank has sent sums; writes one
// row per token. Slots are grouped by rank, ranks in the order of their last slot, slots ascending
// within a rank. With per_rank the sum of each rank is rounded to bfloat16 before the ranks are
// added. Every backend uses this order, so results agree bit by bit.
#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "base/check.hpp"
#include "ep/host/low_latency/low_latency.hpp"
#include "ep/numeric/rows.hpp"

namespace shoal::ep::host {
namespace {

using shoal::detail::Activity;

/// The combine rows of one token, in the order of summation.
struct TokenRows {
  std::array<const std::byte*, kMaxTopK> rows;
  std::array<float, kMaxTopK> weights;
  std::array<std::int32_t, kMaxTopK> level_ends;
  std::size_t count = 0, levels = 0;
};

class CombineRowFinder {
 public:
  CombineRowFinder(const HostGroup& group, const PendingCombineState& pending)
      : group_(group),
        handle_(*pending.handle),
        options_(pending.options),
        weights_(pending.weights),
        epoch_(pending.epoch) {
    const auto& shape = group_.state.shape;
    for (std::int32_t expert = 0; expert < shape.experts; ++expert)
      before_expert_.push_back(expert % shape.local_experts == 0
                                   ? 0
                                   : before_expert_.back() +
                                         handle_.routing->tokens_per_expert[expert - 1]);
  }

  void find(std::int64_t token, TokenRows& token_rows) const {
    const auto& shape = group_.state.shape;
    const auto experts = handle_.routing->experts_of(token);
    token_rows.count = token_rows.levels = 0;
    if (options_.reduction == Reduction::exact) {
      for (std::int32_t k = 0; k < shape.top_k; ++k) add(token, k, experts[k], token_rows);
      return;
    }
    for (const detail::Copy& copy : handle_.routing->copies_of(token)) {
      if (form(copy.rank) == CombineRowForm::sums) {
        add_sum(copy, token_rows);
      } else {
        for (std::int32_t k = 0; k < shape.top_k; ++k)
          if (experts[k] >= 0 && experts[k] / shape.local_experts == copy.rank)
            add(token, k, experts[k], token_rows);
      }
      const std::int32_t end =
          token_rows.levels == 0 ? 0 : token_rows.level_ends[token_rows.levels - 1];
      if (static_cast<std::int32_t>(token_rows.count) > end)  // a masked rank adds nothing
        token_rows.level_ends[token_rows.levels++] = static_cast<std::int32_t>(token_rows.count);
    }
  }

 private:
  void add(std::int64_t token, std::int32_t topk_slot, std::int64_t expert,
           TokenRows& token_rows) const {
    const auto& shape = group_.state.shape;
    if (expert < 0) return;
    const auto rank = static_cast<std::int32_t>(expert / shape.local_experts);
    const auto local = static_cast<std::int32_t>(expert % shape.local_experts);
    if (group_.masked[rank]) return;
    const auto* first_row = reinterpret_cast<const std::int32_t*>(
        group_.state.block + group_.layout.combine_notice(epoch_, rank, shape) +
        sizeof(LowLatencyCombineNotice));
    const std::int64_t row =
        first_row[local] + handle_.routing->expert_row_index[token * shape.top_k + topk_slot];
    token_rows.rows[token_rows.count] =
        group_.state.nodes.here(rank)
            ? group_.state.peers[rank] + group_.layout.combine_row(epoch_, local, row, shape)
            : group_.state.block +
                  group_.layout.remote_combine_row(
                      epoch_, group_.state.nodes.remote_index(group_.state.me, rank),
                      before_expert_[expert] +
                          handle_.routing->expert_row_index[token * shape.top_k + topk_slot],
                      shape);
    token_rows.weights[token_rows.count++] = weights_[token * shape.top_k + topk_slot];
  }

  CombineRowForm form(std::int32_t rank) const {
    return combine_row_form(options_, !group_.state.nodes.here(rank), handle_.has_weights);
  }

  void add_sum(const detail::Copy& copy, TokenRows& token_rows) const {
    if (group_.masked[copy.rank]) return;
    token_rows.rows[token_rows.count] =
        group_.state.block + group_.layout.remote_combine_row(
                                 epoch_,
                                 group_.state.nodes.remote_index(group_.state.me, copy.rank),
                                 copy.row, group_.state.shape);
    token_rows.weights[token_rows.count++] = 1.0F;
  }

  const HostGroup& group_;
  const LowLatencyHandleState& handle_;
  const LowLatencyCombineOptions& options_;
  const std::vector<float>& weights_;
  std::uint64_t epoch_;
  std::vector<std::int32_t> before_expert_;  // own tokens of the experts before, at the same rank
};

std::string describe(CombineRowForm form, bool exact) {
  const char* kind = form == CombineRowForm::sums      ? "sums"
                     : form == CombineRowForm::rows    ? "rows"
                     : form == CombineRowForm::log_fmt ? "log_fmt rows"
                                                       : "an unknown form";
  return fmt::format("{} that are rounded {}", kind,
                     exact ? "once (exact)" : "once per PE (per_rank)");
}

/// weighted_sum_rows for LogFMT rows: decoded to float32 one at a time.
void weighted_sum_log_fmt(std::uint16_t* target, const TokenRows& token_rows, std::int64_t hidden,
                          std::vector<float>& scratch) {
  scratch.assign(3 * hidden, 0.0F);
  const std::span row(scratch.data(), hidden), level(scratch.data() + hidden, hidden),
      sum(scratch.data() + 2 * hidden, hidden);
  std::size_t next_level = 0;
  for (std::size_t i = 0; i < token_rows.count; ++i) {
    numeric::logfmt_decode_row(token_rows.rows[i], row);
    for (std::int64_t c = 0; c < hidden; ++c) level[c] += token_rows.weights[i] * row[c];
    if (token_rows.levels == 0 ||
        static_cast<std::int32_t>(i) + 1 != token_rows.level_ends[next_level])
      continue;
    ++next_level;
    for (std::int64_t c = 0; c < hidden; ++c) {
      sum[c] += numeric::to_float(numeric::to_bf16(level[c]));
      level[c] = 0;
    }
  }
  const auto& total = token_rows.levels == 0 ? level : sum;
  for (std::int64_t c = 0; c < hidden; ++c) target[c] = numeric::to_bf16(total[c]).bits;
}

void sum_combine_rows(HostGroup& group, const PendingCombineState& pending, const Tensor& out) {
  const std::int64_t hidden = group.state.shape.hidden;
  const CombineRowFinder finder(group, pending);
  group.workers.for_ranges(out.shape[0], [&](std::int64_t first, std::int64_t last) {
    TokenRows token_rows;
    std::vector<float> scratch;
    for (std::int64_t token = first; token < last; ++token) {
      finder.find(token, token_rows);
      std::uint16_t* target = out.as<std::uint16_t>() + token * hidden;
      if (pending.options.log_fmt) {
        weighted_sum_log_fmt(target, token_rows, hidden, scratch);
        continue;
      }
      std::array<const std::uint16_t*, kMaxTopK> rows;
      std::transform(
          token_rows.rows.begin(), token_rows.rows.begin() + token_rows.count, rows.begin(),
          [](const std::byte* row) { return reinterpret_cast<const std::uint16_t*>(row); });
      weighted_sum_rows(target, {rows.data(), token_rows.count},
                        {token_rows.weights.data(), token_rows.count},
                        {token_rows.level_ends.data(), token_rows.levels}, hidden, Store::cached);
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
    const CombineRowForm expected = combine_row_form(pending.options, !group.state.nodes.here(rank),
                                                     pending.handle->has_weights);
    const bool exact = pending.options.reduction == Reduction::exact;
    if (notice->dispatch_epoch != pending.handle->epoch || notice->form != expected ||
        (notice->exact != 0) != exact)
      mismatch = fmt::format(
          "PE {} combines dispatch {} and expects {}; PE {} combines dispatch {} and sends {}",
          group.state.team.world_pe(group.state.me), pending.handle->epoch,
          describe(expected, exact), group.state.team.world_pe(rank), notice->dispatch_epoch,
          describe(notice->form, notice->exact != 0));
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
  Tensor out = given.defined() ? Tensor(given, nullptr)
                               : Tensor::empty(DataType::bfloat16,
                                               {pending.handle->routing->tokens, shape.hidden});
  sum_combine_rows(group, pending, out);
  const std::size_t rows = pending.handle->routing->copies.size();
  group.state.recorder.moved(rows, rows * static_cast<std::size_t>(shape.hidden) * 2);
  raise_or_mask(group, group.layout.combine_read, pending.epoch);
  return out;
}

}  // namespace shoal::ep::host
