// SPDX-License-Identifier: Apache-2.0
// low_latency_dispatch_receive: from the sources' outboxes to the rows of each local expert,
// ordered by source, then token.
//
// Reads the row of each slot once and writes one row per expert that it names. Acknowledges the
// half (slots_read) when all of it has been read.
#include <cstring>
#include <numeric>
#include <optional>
#include <string>

#include "base/check.hpp"
#include "ep/host/low_latency/low_latency.hpp"
#include "ep/numeric/rows.hpp"

namespace shoal::ep::host {
namespace {

using shoal::detail::Activity;

/// Slots of one source as they came.
struct Incoming {
  std::int32_t source;
  std::int32_t count;
  bool has_weights;
};

std::optional<LowLatencyDispatchNotice> wait_for_source(HostGroup& group,
                                                        PendingDispatchState& pending,
                                                        std::int32_t source, const Step& step) {
  const WaitTimer timer(pending.options.wait_ns, source);
  const auto notice = wait_for_notice<LowLatencyDispatchNotice>(
      group, group.layout.slots_sent,
      group.layout.dispatch_notice(step.epoch, source, group.state.shape), source, step);
  const std::int64_t most = group.state.shape.low_latency_max_tokens;
  require(!notice || (notice->count >= 0 && notice->count <= most), Code::peer_failed,
          "SHOAL-N595: low_latency_dispatch: PE {} announced {} rows; at most {} are possible",
          group.state.team.world_pe(source), notice ? notice->count : 0, most);
  return notice;
}

/// "quantize nvfp4 and global scale 3.5", as a rank passed it.
std::string describe_format(Quantize quantize, float global) {
  const std::string name = fmt::format("quantize {}", detail::name_of(quantize));
  return quantize == Quantize::nvfp4 ? fmt::format("{} and global scale {}", name, global) : name;
}

/// Throws Error{mismatch}, on all ranks, when ranks encode differently.
std::vector<Incoming> wait_for_slots(HostGroup& group, PendingDispatchState& pending) {
  const std::uint64_t epoch = pending.handle->epoch;
  const Step step{"low_latency_dispatch", Activity::low_latency_dispatch, epoch, "receive", "rows"};
  enter_phase(group, step);
  std::vector<Incoming> incoming;
  struct Format {
    std::int32_t rank;
    Quantize quantize;
    float global_scale;
  };
  std::optional<Format> first, other;  // ranks that differ
  for (std::int32_t source = 0; source < group.state.shape.ranks; ++source) {
    const auto notice = wait_for_source(group, pending, source, step);
    incoming.push_back({source, notice ? notice->count : 0, notice && notice->has_weights != 0});
    if (!notice) continue;
    const Format said{source, static_cast<Quantize>(notice->quantize), notice->global_scale};
    if (!first) first = said;
    const bool differs =
        said.quantize != first->quantize || said.global_scale != first->global_scale;
    if (differs && !other) other = said;
  }
  if (other) {
    raise_or_mask(group, group.layout.slots_read,
                  epoch);  // stays in step: the rows count as read
    fail(Code::mismatch, "SHOAL-N597: low_latency_dispatch {}: PE {} passed {}, PE {} passed {}{}",
         epoch, group.state.team.world_pe(first->rank),
         describe_format(first->quantize, first->global_scale),
         group.state.team.world_pe(other->rank),
         describe_format(other->quantize, other->global_scale),
         group.state.world->progress().refusal(
             group.pes, group.state.call(shoal::detail::CallKind::low_latency_dispatch, epoch)));
  }
  return incoming;
}

/// One source's slots, row by row.
class Expander {
 public:
  Expander(const HostGroup& group, std::uint64_t epoch, const LowLatencyDispatchOptions& options,
           std::span<const Incoming> incoming, LowLatencyResult& result)
      : group_(group),
        shape_(group.state.shape),
        epoch_(epoch),
        quantize_(options.quantize),
        format_(quantize_),
        result_(result),
        incoming_(incoming),
        scale_words_(quantize_, options.scale_layout, shape_.hidden, shape_.low_latency_rows()) {}

  std::span<const std::int32_t> experts(std::int32_t source, std::int64_t index) const {
    return {reinterpret_cast<const std::int32_t*>(slot(source, index) + sizeof(SlotHeader)),
            static_cast<std::size_t>(shape_.top_k)};
  }

  std::int32_t token(std::int32_t source, std::int64_t index) const {
    SlotHeader header;
    std::memcpy(&header, slot(source, index), sizeof header);
    return header.source_token;
  }

  /// Weights [top_k] of a slot from another node.
  const float* weights(std::int32_t source, std::int64_t index) const {
    return reinterpret_cast<const float*>(slot(source, index) + group_.layout.slot_bytes);
  }

  /// Fetches the row of one slot to the next free row of each expert that it names; `next` counts
  /// rows per expert.
  void expand(std::int32_t source, std::int64_t index, std::span<std::int32_t> next,
              Store store) const {
    const std::int32_t source_token = token(source, index);
    const std::byte* from = row(source, index, source_token);
    void* targets[kMaxTopK];
    std::size_t count = 0;
    const std::size_t row_bytes = format_.row_bytes(shape_.hidden);
    for (const std::int32_t expert : experts(source, index)) {
      if (expert < 0) continue;
      const std::int64_t row = expert * shape_.low_latency_rows() + next[expert]++;
      targets[count++] = result_.x.as<std::byte>() + row * row_bytes;
      result_.source_token.as<std::int32_t>()[row] = source_token;
      if (format_.quantized())
        write_scales(from + format_.scales_at(shape_.hidden), expert, next[expert] - 1);
    }
    scatter_row({targets, count}, from, row_bytes, store);
  }

 private:
  InternodeSlots layout_of(std::int32_t source) const {
    return {shape_, group_.layout, quantize_, incoming_[source].has_weights};
  }
  /// Headers and rows that the source on another node has sent.
  const std::byte* remote_slots(std::int32_t source) const {
    const GroupLayout& layout = group_.layout;
    return group_.state.block +
           layout.remote_slots(layout.remote_in, epoch_,
                               group_.state.nodes.remote_index(group_.state.me, source), shape_);
  }
  const std::byte* slot(std::int32_t source, std::int64_t index) const {
    if (!group_.state.nodes.here(source))
      return remote_slots(source) + index * layout_of(source).header_bytes;
    return group_.state.block + group_.layout.slot(epoch_, source, index, shape_);
  }
  const std::byte* row(std::int32_t source, std::int64_t index, std::int32_t token) const {
    if (const InternodeSlots slots = layout_of(source); !group_.state.nodes.here(source))
      return remote_slots(source) + slots.rows(incoming_[source].count) + index * slots.row_bytes;
    return group_.state.peers[source] + group_.layout.outbox_row(epoch_, token, shape_);
  }

  void write_scales(const std::byte* scales, std::int32_t expert, std::int32_t row) const {
    auto* const out = result_.scales.as<std::uint32_t>();
    const auto groups = static_cast<std::size_t>(format_.groups(shape_.hidden));
    for (std::uint32_t word = 0; word < scale_words_.words; ++word) {
      std::uint32_t value = 0;
      if (quantize_ == Quantize::fp8_ue8m0) {
        const std::size_t first = std::size_t{word} * 4,
                          count = std::min<std::size_t>(4, groups - first);
        std::int32_t packed = 0;
        numeric::pack_ue8m0({reinterpret_cast<const float*>(scales) + first, count}, {&packed, 1});
        value = static_cast<std::uint32_t>(packed);
      } else {
        const std::size_t at = std::size_t{word} * sizeof value;
        std::memcpy(&value, scales + at, std::min(sizeof value, groups * format_.scale_bytes - at));
      }
      out[scale_words_.index(static_cast<std::uint32_t>(expert), static_cast<std::uint32_t>(row),
                             word)] = value;
    }
  }

  const HostGroup& group_;
  const Shape& shape_;
  std::uint64_t epoch_;
  Quantize quantize_;
  detail::RowFormat format_;
  LowLatencyResult& result_;
  std::span<const Incoming> incoming_;  // by source
  detail::ScaleWords scale_words_;
};

/// Fills the layout of the result: where the rows of each (expert, source) start. The rank holds
/// `own` experts; those that only other ranks have get no rows.
void place_rows(const Expander& expander, const std::vector<Incoming>& incoming, const Shape& shape,
                std::int32_t own, LowLatencyResult& result, LowLatencyHandleState& handle) {
  std::vector<std::int32_t> counts(static_cast<std::size_t>(shape.local_experts) * shape.ranks, 0);
  for (const Incoming& from : incoming)
    for (std::int64_t i = 0; i < from.count; ++i) {
      const std::int32_t token = expander.token(from.source, i);
      require(token >= 0 && token < shape.low_latency_max_tokens, Code::peer_failed,
              "SHOAL-N595: low_latency_dispatch: a slot names token {} of at most {}", token,
              shape.low_latency_max_tokens);
      for (const std::int32_t expert : expander.experts(from.source, i)) {
        if (expert < 0) continue;
        require(expert < own, Code::peer_failed,
                "SHOAL-N595: low_latency_dispatch: a row names local expert {} of {}", expert, own);
        ++counts[static_cast<std::size_t>(expert) * shape.ranks + from.source];
      }
    }
  handle.first_row.assign(counts.size(), 0);
  handle.counts.assign(shape.local_experts, 0);
  for (std::int32_t expert = 0; expert < shape.local_experts; ++expert) {
    for (std::int32_t source = 0; source < shape.ranks; ++source) {
      const std::size_t at = static_cast<std::size_t>(expert) * shape.ranks + source;
      handle.first_row[at] = handle.counts[expert];
      handle.counts[expert] += counts[at];
      result.layout.as<std::int64_t>()[at] = std::int64_t{handle.first_row[at]} << 32 | counts[at];
    }
    result.counts.as<std::int32_t>()[expert] = handle.counts[expert];
  }
}

/// Keeps what combine needs to sum the expert outputs for tokens of other nodes: their slots are
/// granted again.
void keep_remote_tokens(const Expander& expander, const std::vector<Incoming>& incoming,
                        const HostGroup& group, LowLatencyHandleState& handle) {
  handle.remote_tokens.assign(group.state.shape.ranks, std::nullopt);
  std::vector<std::int32_t> next(group.state.shape.local_experts);
  for (const Incoming& from : incoming) {
    if (!from.has_weights || group.state.nodes.here(from.source)) continue;
    detail::InternodeTokens& tokens = handle.remote_tokens[from.source].emplace();
    for (std::int32_t e = 0; e < group.state.shape.local_experts; ++e)
      next[e] =
          handle.first_row[static_cast<std::size_t>(e) * group.state.shape.ranks + from.source];
    for (std::int64_t i = 0; i < from.count; ++i) {
      const std::span<const std::int32_t> experts = expander.experts(from.source, i);
      const float* weights = expander.weights(from.source, i);
      for (std::size_t k = 0; k < experts.size(); ++k)
        if (experts[k] >= 0) tokens.parts.push_back({experts[k], next[experts[k]]++, weights[k]});
      tokens.first.push_back(static_cast<std::int32_t>(tokens.parts.size()));
    }
  }
}

}  // namespace

LowLatencyResult& result_arrays(HostGroup& group, std::uint64_t epoch, Quantize quantize) {
  const auto& shape = group.state.shape;
  const std::int64_t experts = shape.local_experts, rows = shape.low_latency_rows();
  auto& result = group.low_latency_results[epoch & 1];
  if (!result) {
    result.emplace();
    result->x = Tensor::empty(DataType::bfloat16, {experts, rows, shape.hidden});
    result->scales = Tensor::empty(DataType::uint8,
                                   {static_cast<std::int64_t>(detail::most_scale_bytes(shape))});
    result->counts = Tensor::empty(DataType::int32, {experts});
    result->source_token = Tensor::empty(DataType::int32, {experts, rows});
    result->layout = Tensor::empty(DataType::int64, {experts, shape.ranks});
  }
  static_cast<TensorView&>(result->x) = detail::rows_view(result->x.data, quantize, shape);
  return *result;
}

LowLatencyReceived low_latency_dispatch_receive(HostGroup& group, PendingDispatchState& pending) {
  const auto& shape = group.state.shape;
  LowLatencyHandleState& handle = *pending.handle;
  const Quantize quantize = pending.options.quantize;
  const std::vector<Incoming> incoming = wait_for_slots(group, pending);

  auto& result = result_arrays(group, handle.epoch, quantize);
  const Expander expander(group, handle.epoch, pending.options, incoming, result);
  place_rows(expander, incoming, shape, shape.experts_of(group.state.me), result, handle);
  keep_remote_tokens(expander, incoming, group, handle);

  std::size_t rows = 0;
  for (const Incoming& from : incoming) rows += from.count;
  const std::int64_t written =
      std::accumulate(handle.counts.begin(), handle.counts.end(), std::int64_t{0});
  const std::size_t row_bytes = detail::RowFormat(quantize).row_bytes(shape.hidden);
  // Two results are used in turn: the cached part of this one must fit next to the other.
  const Store store = choose_store(2 * written * row_bytes, shape.ranks, last_level_cache_bytes());
  group.workers.for_ranges(static_cast<std::int64_t>(incoming.size()), [&](std::int64_t first,
                                                                           std::int64_t last) {
    std::vector<std::int32_t> next(shape.local_experts);
    for (std::int64_t i = first; i < last; ++i) {
      for (std::int32_t e = 0; e < shape.local_experts; ++e)
        next[e] = handle.first_row[static_cast<std::size_t>(e) * shape.ranks + incoming[i].source];
      for (std::int64_t slot = 0; slot < incoming[i].count; ++slot)
        expander.expand(incoming[i].source, slot, next, store);
    }
  });
  raise_or_mask(group, group.layout.slots_read, handle.epoch);

  if (pending.options.tokens_per_expert.defined())
    for (std::int32_t e = 0; e < shape.local_experts; ++e)
      pending.options.tokens_per_expert.as<std::int32_t>()[e] += handle.counts[e];
  for (std::int32_t e = 0; e < shape.experts_of(group.state.me); ++e)
    group.state.recorder.received(e, static_cast<std::uint64_t>(handle.counts[e]));
  group.state.statistics.rows_received += rows;

  LowLatencyReceived received;
  received.x = result.x;
  if (quantize != Quantize::none)
    received.scales = Tensor(
        detail::scales_view(result.scales.data, quantize, pending.options.scale_layout, shape),
        result.scales.owner);
  received.counts = result.counts;
  received.source_token = result.source_token;
  received.layout = result.layout;
  received.handle = shoal::detail::Access::make<LowLatencyHandle>(pending.handle);
  return received;
}

}  // namespace shoal::ep::host
