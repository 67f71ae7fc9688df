// low_latency_combine_send: the answers to this member's rows become reachable for the members that sent them.
//
// With zero_copy y is in the group's memory already; else its valid rows are copied there, or encoded (LogFMT-10). Then
// every member learns where its rows start for each expert. The half was released by answers_read of the use before
// last.
#include <cstring>

#include "ep/host/low_latency.hpp"
#include "ep/host/reach.hpp"
#include "ep/numeric/rows.hpp"

namespace shoal::ep::host {
namespace {

using shoal::detail::Activity;

void stage_rows(GroupState& group, std::uint64_t epoch, const TensorView& y, const LowLatencyHandleState& handle,
                bool log_fmt) {
  const auto& shape = group.shape;
  const Store store = Store::cached;
  group.host->workers.for_ranges(shape.local_experts, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t expert = first; expert < last; ++expert) {
      for (std::int64_t row = 0; row < handle.counts[expert]; ++row) {
        const std::uint16_t* source = y.as<std::uint16_t>() + expert * y.strides[0] + row * y.strides[1];
        std::byte* target =
            group.block + group.host->layout.answer(epoch, static_cast<std::int32_t>(expert), row, shape);
        if (log_fmt)
          numeric::logfmt_encode_row(
              {reinterpret_cast<const numeric::Bf16*>(source), static_cast<std::size_t>(shape.hidden)}, target);
        else
          copy_row(target, source, shape.hidden * sizeof(std::uint16_t), store);
      }
    }
  });
}

/// Brings the answers to a source on another node, from where they lie: in the order of experts, then tokens.
void send_far(GroupState& group, std::uint64_t epoch, const LowLatencyHandleState& handle, std::int32_t to) {
  const auto& shape = group.shape;
  const detail::GroupLayout& layout = group.host->layout;
  const std::int32_t far = group.nodes.far_index(to, group.me);
  std::int64_t sent = 0;
  for (std::int32_t expert = 0; expert < shape.local_experts; ++expert) {
    const std::size_t at = static_cast<std::size_t>(expert) * shape.ranks + to;
    const bool last = to + 1 == shape.ranks;
    const std::int32_t rows = (last ? handle.counts[expert] : handle.first_row[at + 1]) - handle.first_row[at];
    if (rows == 0) continue;
    put_far(group, to, layout.far_answer(epoch, far, sent, shape),
            group.block + layout.answer(epoch, expert, handle.first_row[at], shape), rows * layout.answer_stride);
    sent += rows;
  }
}

}  // namespace

void wait_for_answer_buffer(GroupState& group, std::uint64_t epoch) {
  if (epoch <= 2) return;
  const Step step{"low_latency_combine", Activity::low_latency_combine, epoch, "send",
                  "word that it has fetched its rows"};
  for (std::int32_t rank = 0; rank < group.shape.ranks; ++rank)
    wait_or_mask(group, group.host->layout.answers_read, rank, epoch - 2, step);
}

std::uint64_t low_latency_combine_send(GroupState& group, const TensorView& y, const LowLatencyHandleState& handle,
                                       const LowLatencyCombineOptions& options) {
  const auto& shape = group.shape;
  const std::uint64_t epoch = ++group.low_latency_combine_epoch;
  group.world->set_progress(Activity::low_latency_combine, epoch, "send");
  wait_for_answer_buffer(group, epoch);
  if (!options.zero_copy) stage_rows(group, epoch, y, handle, options.log_fmt);

  std::vector<std::byte> record(sizeof(detail::AnswerNotice) + shape.local_experts * sizeof(std::int32_t));
  const detail::AnswerNotice notice{epoch, handle.epoch, options.log_fmt ? 1U : 0U};
  for (std::int32_t i = 0; i < shape.ranks; ++i) {
    const std::int32_t to = (group.me + 1 + i) % shape.ranks;
    if (group.host->masked[to]) continue;
    std::memcpy(record.data(), &notice, sizeof notice);
    auto* rows = reinterpret_cast<std::int32_t*>(record.data() + sizeof notice);
    for (std::int32_t e = 0; e < shape.local_experts; ++e)
      rows[e] = handle.first_row[static_cast<std::size_t>(e) * shape.ranks + to];
    tell_or_mask(group, to, [&] {
      if (!group.nodes.here(to)) send_far(group, epoch, handle, to);
      put(group, to, group.host->layout.answer_notice(epoch, group.me, shape), record.data(), record.size());
    });
  }
  raise_or_mask(group, group.host->layout.answers_ready, epoch);
  return epoch;
}

}  // namespace shoal::ep::host
