// dispatch_send: every token row goes from the caller's x to its final row at every member that needs it, or, expert-
// major, to one for each of its experts.
//
// Bytes per copy: the row, its scales, top_k indices (8 B), top_k weights (4 B) and the token's number (4 B); expert-
// major one index and weight. Each is read once however many members need it. No waiting: notify has granted the room.
// The `finished` signal is released after all stores, streamed ones flushed, so a receiver that acquires it sees the
// rows.
#include <numeric>

#include "ep/host/normal.hpp"

namespace shoal::ep::host {
namespace {

using detail::Copy;

/// Writes the side payload of one copy: everything but the row itself.
class SidePayload {
 public:
  SidePayload(const GroupState& group, const DispatchCall& call) : call_(call), shape_(group.shape) {}

  void write(std::int64_t token, std::int32_t rank, std::byte* base, const detail::ReceiveLayout& layout,
             std::int64_t row) const {
    write_scales(token, base, layout, row);
    const std::int32_t k = shape_.top_k;
    const float* weights = call_.options.weights.defined() ? call_.options.weights.as<float>() + token * k : nullptr;
    auto* out_weights = reinterpret_cast<float*>(base + layout.weights) + row * k;
    const auto lanes = call_.routing->lanes_of(token);
    auto* out_idx = reinterpret_cast<std::int64_t*>(base + layout.topk_idx) + row * k;
    const std::int64_t first = std::int64_t{rank} * shape_.local_experts;
    for (std::int32_t i = 0; i < k; ++i) {
      const bool here = lanes[i] >= first && lanes[i] < first + shape_.local_experts;
      if (!call_.cached) out_idx[i] = here ? lanes[i] - first : -1;
      if (weights != nullptr) out_weights[i] = here ? weights[i] : 0.0F;
    }
    if (!call_.cached)
      reinterpret_cast<std::int32_t*>(base + layout.source_token)[row] = static_cast<std::int32_t>(token);
  }

  /// As write, of the copy for the expert of one lane.
  void write_lane(std::int64_t token, std::int32_t lane, std::byte* base, const detail::ReceiveLayout& layout,
                  std::int64_t row) const {
    write_scales(token, base, layout, row);
    if (call_.options.weights.defined())
      reinterpret_cast<float*>(base + layout.weights)[row] =
          call_.options.weights.as<float>()[token * shape_.top_k + lane];
    if (call_.cached) return;
    reinterpret_cast<std::int64_t*>(base + layout.topk_idx)[row] =
        call_.routing->lanes_of(token)[lane] % shape_.local_experts;
    reinterpret_cast<std::int32_t*>(base + layout.source_token)[row] = static_cast<std::int32_t>(token);
  }

 private:
  void write_scales(std::int64_t token, std::byte* base, const detail::ReceiveLayout& layout, std::int64_t row) const {
    const std::size_t bytes = call_.scale_bytes();
    if (bytes == 0) return;
    const TensorView& scales = call_.options.scales;
    auto* out = reinterpret_cast<std::uint32_t*>(base + layout.scales + row * bytes);
    const auto* in = scales.as<std::uint32_t>() + token * scales.strides[0];
    for (std::int64_t i = 0; i < scales.shape[1]; ++i) out[i] = in[i * scales.strides[1]];
  }

  const DispatchCall& call_;
  const detail::Shape& shape_;
};

}  // namespace

void dispatch_send(GroupState& group, const DispatchCall& call, const DispatchPlan& plan) {
  group.world->set_progress(shoal::detail::Activity::dispatch, group.epoch, "send");
  const detail::RoutingState& routing = *call.routing;
  const SidePayload side(group, call);
  const std::size_t row_bytes = call.row_bytes();
  const bool expanded = plan.handle->expert_alignment > 0;
  const std::size_t sent =
      expanded ? std::accumulate(routing.tokens_per_expert.begin(), routing.tokens_per_expert.end(), std::size_t{0})
               : routing.copies.size();
  const Store store = choose_store(sent * row_bytes, group.shape.ranks, last_level_cache_bytes());
  const auto* x = static_cast<const std::byte*>(call.x.data);

  group.host->workers.for_ranges(routing.tokens, [&](std::int64_t first, std::int64_t last) {
    void* rows[kMaxTopK];
    for (std::int64_t token = first; token < last; ++token) {
      std::size_t count = 0;
      const auto row_at = [&](std::int32_t rank, std::int64_t row) {
        rows[count++] = plan.target[rank] + plan.layout[rank].x + row * row_bytes;
      };
      if (expanded) {
        for (const LaneRow& at : LaneRows(*plan.handle, token)) {
          row_at(at.rank, at.row);
          side.write_lane(token, at.lane, plan.target[at.rank], plan.layout[at.rank], at.row);
        }
      } else {
        for (const Copy& copy : routing.copies_of(token)) {
          const std::int64_t row = plan.handle->first_row[copy.rank] + copy.ordinal;
          row_at(copy.rank, row);
          side.write(token, copy.rank, plan.target[copy.rank], plan.layout[copy.rank], row);
        }
      }
      scatter_row({rows, count}, x + token * row_bytes, row_bytes, store);
    }
  });
  group.statistics.rows_sent += sent;
  raise_all(group, group.host->layout.finished, group.epoch);
}

}  // namespace shoal::ep::host
