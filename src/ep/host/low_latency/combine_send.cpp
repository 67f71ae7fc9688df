// SPDX-License-Identifier: Apache-2.0
// low_latency_combine_send: makes the expert output available to the ranks that sent the tokens.
//
// With zero_copy y is in the group's memory already; otherwise its valid rows are copied there, or
// encoded there, where expert outputs are encoded. A notice then tells every rank where its rows
// start for each expert. Ranks of other nodes cannot fetch: they are sent one row per token, the
// weighted sum over the experts here, encoded if the combine encodes, if the weights came with the
// dispatch; otherwise the rows. combine_read of the use before last granted the half.
#include <array>
#include <cstring>

#include "ep/host/low_latency/low_latency.hpp"
#include "ep/host/rows/combine_row.hpp"
#include "ep/host/signals/reach.hpp"
#include "ep/numeric/rows.hpp"

namespace shoal::ep::host {
namespace {

using shoal::detail::Activity;

const std::uint16_t* row_of(const ConstTensorView& y, std::int64_t expert, std::int64_t row) {
  return y.as<std::uint16_t>() + expert * y.strides[0] + row * y.strides[1];
}

/// The form of the combine rows for `source`.
CombineRowForm form_for(const HostGroup& group, const LowLatencyHandleState& handle,
                        const LowLatencyCombineOptions& options, std::int32_t source) {
  const auto& shape = group.state.shape;
  const bool remote = !group.state.nodes.here(source),
             has_weights = remote ? handle.remote_tokens[source].has_value() : handle.has_weights;
  return combine_row_form(agreed_form(options), remote, has_weights,
                          detail::sends_unsummed(has_weights, options.defer_receive,
                                                 shape.mask_failed && shape.remote_ranks() > 0));
}

/// The end of the rows of one (expert, source).
std::int32_t end_row(const LowLatencyHandleState& handle, const Shape& shape, std::int32_t expert,
                     std::int32_t source) {
  return source + 1 == shape.ranks
             ? handle.counts[expert]
             : handle.first_row[static_cast<std::size_t>(expert) * shape.ranks + source + 1];
}

void stage_rows(HostGroup& group, std::uint64_t epoch, const ConstTensorView& y,
                const LowLatencyHandleState& handle, const LowLatencyCombineOptions& options) {
  const auto& shape = group.state.shape;
  const auto stage = [&](std::int32_t expert, std::int64_t row, CombineRowForm form) {
    std::byte* target = group.state.block + group.layout.combine_row(epoch, expert, row, shape);
    if (is_encoded(form))
      encode_combine_row(encoding_of(form),
                         {row_of(y, expert, row), static_cast<std::size_t>(shape.hidden)}, target);
    else
      copy_row(target, row_of(y, expert, row), shape.hidden * sizeof(std::uint16_t), Store::cached);
  };
  group.workers.for_ranges(shape.local_experts, [&](std::int64_t first, std::int64_t last) {
    for (auto expert = static_cast<std::int32_t>(first); expert < last; ++expert)
      for (std::int32_t source = 0; source < shape.ranks; ++source) {
        const CombineRowForm form = form_for(group, handle, options, source);
        if (is_sums(form)) continue;
        const std::int32_t end = end_row(handle, shape, expert, source);
        for (std::int32_t row =
                 handle.first_row[static_cast<std::size_t>(expert) * shape.ranks + source];
             row < end; ++row)
          stage(expert, row, form);
      }
  });
}

/// Adds up the expert outputs for each token of a source on another node and sends it the sums.
void send_sums(HostGroup& group, std::uint64_t epoch, const ConstTensorView& y,
               const detail::InternodeTokens& tokens, CombineRowForm form, std::int32_t to) {
  const auto& shape = group.state.shape;
  const GroupLayout& layout = group.layout;
  const std::int32_t remote = group.state.nodes.remote_index(group.state.me, to);
  group.workers.for_ranges(tokens.tokens(), [&](std::int64_t first, std::int64_t last) {
    std::array<const std::uint16_t*, kMaxTopK> rows;
    std::array<float, kMaxTopK> weights;
    std::vector<std::uint16_t> sum(is_encoded(form) ? shape.hidden : 0);
    for (std::int64_t token = first; token < last; ++token) {
      std::size_t count = 0;
      for (const detail::InternodeTokens::Part& part : tokens.parts_of(token)) {
        rows[count] = row_of(y, part.expert, part.row);
        weights[count++] = part.weight;
      }
      std::byte* const target = group.state.block + layout.remote_sum(epoch, remote, token, shape);
      weighted_sum_rows(is_encoded(form) ? sum.data() : reinterpret_cast<std::uint16_t*>(target),
                        {rows.data(), count}, {weights.data(), count}, {}, shape.hidden,
                        Store::cached);
      if (is_encoded(form)) encode_combine_row(encoding_of(form), sum, target);
    }
  });
  if (tokens.tokens() > 0)
    put_remote(group, to,
               layout.remote_combine_row(epoch, group.state.nodes.remote_index(to, group.state.me),
                                         0, shape),
               group.state.block + layout.remote_sum(epoch, remote, 0, shape),
               tokens.tokens() * layout.combine_row_stride);
}

/// Sends the combine rows to a source on another node without a copy, ordered by expert, then
/// token.
void send_rows(HostGroup& group, std::uint64_t epoch, const LowLatencyHandleState& handle,
               std::int32_t to) {
  const auto& shape = group.state.shape;
  const GroupLayout& layout = group.layout;
  const std::int32_t remote = group.state.nodes.remote_index(to, group.state.me);
  std::int64_t sent = 0;
  for (std::int32_t expert = 0; expert < shape.local_experts; ++expert) {
    const std::int32_t first =
        handle.first_row[static_cast<std::size_t>(expert) * shape.ranks + to];
    const std::int32_t rows = end_row(handle, shape, expert, to) - first;
    if (rows == 0) continue;
    put_remote(group, to, layout.remote_combine_row(epoch, remote, sent, shape),
               group.state.block + layout.combine_row(epoch, expert, first, shape),
               rows * layout.combine_row_stride);
    sent += rows;
  }
}

}  // namespace

CombineRowForm combine_row_form(CombineRowForm agreed, bool remote, bool has_weights,
                                bool unsummed) {
  if (!is_sums(agreed) || unsummed) return detail::unsummed_form(agreed);
  return remote && has_weights ? agreed : CombineRowForm::rows;
}

void wait_for_combine_buffer(HostGroup& group, std::uint64_t epoch) {
  wait_for_readers_of_half(group, group.layout.combine_read,
                           {"low_latency_combine", Activity::low_latency_combine, epoch, "send",
                            "its acknowledgement of fetched rows"});
}

std::uint64_t low_latency_combine_send(HostGroup& group, const ConstTensorView& y,
                                       const LowLatencyHandleState& handle,
                                       const LowLatencyCombineOptions& options) {
  const auto& shape = group.state.shape;
  const std::uint64_t epoch = ++group.state.low_latency_combine_epoch;
  enter_phase(group, Activity::low_latency_combine, epoch, "send");
  wait_for_combine_buffer(group, epoch);
  if (!options.zero_copy) stage_rows(group, epoch, y, handle, options);

  std::vector<std::byte> record(sizeof(LowLatencyCombineNotice) +
                                shape.local_experts * sizeof(std::int32_t));
  for (std::int32_t i = 0; i < shape.ranks; ++i) {
    const std::int32_t to = (group.state.me + 1 + i) % shape.ranks;
    if (group.masked[to]) continue;
    const LowLatencyCombineNotice notice{epoch, handle.epoch, agreed_form(options),
                                         form_for(group, handle, options, to)};
    std::memcpy(record.data(), &notice, sizeof notice);
    auto* rows = reinterpret_cast<std::int32_t*>(record.data() + sizeof notice);
    for (std::int32_t e = 0; e < shape.local_experts; ++e)
      rows[e] = handle.first_row[static_cast<std::size_t>(e) * shape.ranks + to];
    write_or_mask(group, to, [&] {
      if (is_sums(notice.sent))
        send_sums(group, epoch, y, *handle.remote_tokens[to], notice.sent, to);
      else if (!group.state.nodes.here(to))
        send_rows(group, epoch, handle, to);
      put(group, to, group.layout.combine_notice(epoch, group.state.me, shape), record.data(),
          record.size());
    });
  }
  raise_or_mask(group, group.layout.combine_ready, epoch);
  return epoch;
}

}  // namespace shoal::ep::host
