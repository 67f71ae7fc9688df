// low_latency_dispatch_send: each token goes once to this member's outbox, and a header per member that holds an expert
// of it to a fixed slot there (source, ordinal); receivers fetch the rows.
//
// Bytes per token: the row, 2 B a channel, or 1 B a channel and 4 B a scale; per copy: 4 B and 4 B per top-k lane. On
// one host a fetched row comes out of a cache that all members share, where a copy pushed to each of them would not
// fit. The half of outbox and slots was granted by slots_read of the use before last; slots_sent is released after all
// of it.
#include <cstring>

#include "ep/host/low_latency.hpp"

namespace shoal::ep::host {
namespace {

using shoal::detail::Activity;

/// Puts one token into the outbox in the form in which it travels.
void encode(const detail::Shape& shape, Quantize quantize, std::byte* target, const std::uint16_t* row) {
  if (quantize == Quantize::none) {
    copy_row(target, row, shape.hidden * sizeof(std::uint16_t), Store::cached);
    return;
  }
  auto* scales = reinterpret_cast<float*>(target + detail::OutboxLayout(shape.hidden, true).scales);
  quantize_row(reinterpret_cast<std::uint8_t*>(target), scales, row, shape.hidden,
               quantize == Quantize::fp8 ? ScaleForm::plain : ScaleForm::power_of_two);
}

void write_header(std::byte* slot, std::int64_t token, std::span<const std::int64_t> lanes, std::int32_t rank,
                  std::int32_t local_experts) {
  const detail::SlotHeader header{static_cast<std::int32_t>(token)};
  std::memcpy(slot, &header, sizeof header);
  auto* experts = reinterpret_cast<std::int32_t*>(slot + sizeof header);
  for (std::size_t k = 0; k < lanes.size(); ++k) {
    const bool here = lanes[k] >= 0 && lanes[k] / local_experts == rank;
    experts[k] = here ? static_cast<std::int32_t>(lanes[k] % local_experts) : -1;
  }
}

/// Which tokens go to which member, and each token's place among those of one expert.
struct Slots {
  std::vector<std::int32_t> counts;         ///< [ranks]
  std::vector<detail::Copy> copies;         ///< of all tokens, one after another
  std::vector<std::int32_t> first_copy{0};  ///< [tokens + 1]
};

Slots assign_slots(const detail::Shape& shape, const Tensor& topk_idx, std::vector<std::int32_t>& ordinal) {
  Slots slots;
  slots.counts.assign(shape.ranks, 0);
  std::vector<std::int32_t> per_expert(shape.experts, 0);
  const std::int64_t tokens = topk_idx.shape[0];
  ordinal.assign(tokens * shape.top_k, -1);
  std::int32_t ranks[kMaxTopK];
  for (std::int64_t token = 0; token < tokens; ++token) {
    const std::span lanes(topk_idx.as<std::int64_t>() + token * shape.top_k, static_cast<std::size_t>(shape.top_k));
    for (std::int32_t k = 0; k < shape.top_k; ++k)
      if (lanes[k] >= 0) ordinal[token * shape.top_k + k] = per_expert[lanes[k]]++;
    const std::int32_t count = detail::ranks_by_last_lane(lanes, shape.local_experts, ranks);
    for (std::int32_t i = 0; i < count; ++i) slots.copies.push_back({ranks[i], slots.counts[ranks[i]]++});
    slots.first_copy.push_back(static_cast<std::int32_t>(slots.copies.size()));
  }
  return slots;
}

/// Whether the readers of the use before last of this half of the slots have acknowledged it.
void wait_for_slots(GroupState& group, std::uint64_t epoch) {
  if (epoch <= 2) return;
  const Step step{"low_latency_dispatch", Activity::low_latency_dispatch, epoch, "send", "room in its slots"};
  for (std::int32_t rank = 0; rank < group.shape.ranks; ++rank)
    wait_or_mask(group, group.layout.slots_read, rank, epoch - 2, step);
}

}  // namespace

std::shared_ptr<LowLatencyHandleState> low_latency_dispatch_send(GroupState& group, const TensorView& x,
                                                                 Tensor topk_idx, Quantize quantize) {
  const auto& shape = group.shape;
  const std::uint64_t epoch = ++group.low_latency_dispatch_epoch;
  group.world->set_progress(Activity::low_latency_dispatch, epoch, "send");
  auto handle = std::make_shared<LowLatencyHandleState>();
  handle->group = group.weak_from_this();
  handle->epoch = epoch;
  handle->topk_idx = topk_idx;
  const Slots slots = assign_slots(shape, topk_idx, handle->ordinal);
  wait_for_slots(group, epoch);

  group.workers.for_ranges(x.shape[0], [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t token = first; token < last; ++token) {
      const std::span lanes(topk_idx.as<std::int64_t>() + token * shape.top_k, static_cast<std::size_t>(shape.top_k));
      if (slots.first_copy[token] == slots.first_copy[token + 1]) continue;
      encode(shape, quantize, group.block + group.layout.outbox_row(epoch, token, shape),
             x.as<std::uint16_t>() + token * shape.hidden);
      for (std::int32_t i = slots.first_copy[token]; i < slots.first_copy[token + 1]; ++i) {
        const detail::Copy& copy = slots.copies[i];
        if (group.masked[copy.rank]) continue;
        write_header(group.peers[copy.rank] + group.layout.slot(epoch, group.me, copy.ordinal, shape), token, lanes,
                     copy.rank, shape.local_experts);
      }
    }
  });
  for (std::int32_t rank = 0; rank < shape.ranks; ++rank) {
    if (group.masked[rank]) continue;
    std::memcpy(group.peers[rank] + group.layout.slot_count(epoch, group.me, shape), &slots.counts[rank],
                sizeof(std::int32_t));
  }
  raise_all(group, group.layout.slots_sent, epoch);
  group.statistics.rows_sent += slots.copies.size();
  return handle;
}

}  // namespace shoal::ep::host
