// low_latency_dispatch_send: one copy of each token per member that holds an expert of it, at a fixed slot (source,
// ordinal).
//
// Bytes per copy: header (8 B + 4 B per top-k lane) and the row: 2 B a channel, or 1 B a channel and 4 B a scale. The
// half of the slots was granted by slots_read of the use before last; slots_sent is released after the slots and their
// count.
#include <cstring>

#include "ep/host/low_latency.hpp"

namespace shoal::ep::host {
namespace {

using shoal::detail::Activity;

/// A row in the form in which it travels, made once per token.
struct EncodedRow {
  EncodedRow(const detail::Shape& shape, Quantize quantize)
      : quantize_(quantize), layout_(shape.top_k, shape.hidden, quantize != Quantize::none), hidden_(shape.hidden) {
    if (quantize != Quantize::none)
      buffer_ = Tensor::empty(DataType::uint8, {static_cast<std::int64_t>(layout_.total - layout_.row)});
  }
  /// What goes to offset `layout.row` of the slot: the row, its scales behind it.
  const void* encode(const std::uint16_t* row) {
    if (quantize_ == Quantize::none) return row;
    auto* bytes = buffer_.as<std::uint8_t>();
    quantize_row(bytes, reinterpret_cast<float*>(bytes + layout_.scales - layout_.row), row, hidden_,
                 quantize_ == Quantize::fp8 ? ScaleForm::plain : ScaleForm::power_of_two);
    return bytes;
  }
  std::size_t bytes() const {
    return quantize_ == Quantize::none ? hidden_ * 2
                                       : layout_.scales - layout_.row + detail::scale_groups(hidden_) * sizeof(float);
  }
  const detail::SlotLayout& layout() const { return layout_; }

 private:
  Quantize quantize_;
  detail::SlotLayout layout_;
  std::int64_t hidden_;
  Tensor buffer_;
};

void write_header(std::byte* slot, const detail::SlotLayout& layout, std::int64_t token,
                  std::span<const std::int64_t> lanes, std::int32_t rank, std::int32_t local_experts) {
  const detail::SlotHeader header{static_cast<std::int32_t>(token), 0};
  std::memcpy(slot, &header, sizeof header);
  auto* experts = reinterpret_cast<std::int32_t*>(slot + layout.experts);
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

  const Store store =
      choose_store(slots.copies.size() * group.layout.slot_bytes, shape.ranks, last_level_cache_bytes());
  group.workers.for_ranges(x.shape[0], [&](std::int64_t first, std::int64_t last) {
    EncodedRow encoded(shape, quantize);
    void* rows[kMaxTopK];
    for (std::int64_t token = first; token < last; ++token) {
      const std::span lanes(topk_idx.as<std::int64_t>() + token * shape.top_k, static_cast<std::size_t>(shape.top_k));
      std::size_t count = 0;
      for (std::int32_t i = slots.first_copy[token]; i < slots.first_copy[token + 1]; ++i) {
        const detail::Copy& copy = slots.copies[i];
        if (group.masked[copy.rank]) continue;
        std::byte* slot = group.peers[copy.rank] + group.layout.slot(epoch, group.me, copy.ordinal, shape);
        write_header(slot, encoded.layout(), token, lanes, copy.rank, shape.local_experts);
        rows[count++] = slot + encoded.layout().row;
      }
      if (count > 0)
        scatter_row({rows, count}, encoded.encode(x.as<std::uint16_t>() + token * shape.hidden), encoded.bytes(),
                    store);
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
