// SPDX-License-Identifier: Apache-2.0
// dispatch_send: writes every token row from the caller's x to its final row at every local rank
// that needs it; expert-major, to one row for each of its experts. dispatch_forward serves ranks of
// other nodes.
//
// Bytes per copy: the row, its scales, top_k indices (8 B), top_k weights (4 B) and the token's
// index (4 B); expert-major one index and weight. Each is read once, however many ranks need it.
// Nothing waits: notify has granted the room. `finished` is raised after all stores, streamed ones
// flushed, so a receiver that acquires it sees the rows.
#include <algorithm>
#include <numeric>
#include <utility>

#include "ep/host/normal/forward.hpp"
#include "ep/host/normal/side_payload.hpp"

namespace shoal::ep::host {
namespace {

using detail::Copy;

/// The copies of this rank's own tokens for ranks of this node.
class Scatter final : public LocalWork {
 public:
  Scatter(HostGroup& group, const DispatchCall& call, const DispatchPlan& plan)
      : group_(group),
        call_(call),
        plan_(plan),
        side_(call, group.state.shape),
        expert_major_(plan.handle->expert_alignment > 0),
        numbers_rows_(call.options.also_rank_major && !call.cached) {
    const detail::RoutingState& routing = *call.routing;
    rows_ = expert_major_ ? std::accumulate(routing.tokens_per_expert.begin(),
                                            routing.tokens_per_expert.end(), std::size_t{0})
                          : routing.copies.size();
    store_ =
        choose_store(rows_ * call.row_bytes(), group.state.shape.ranks, last_level_cache_bytes());
  }

  /// Rows for all ranks, on any node.
  std::size_t rows() const { return rows_; }

  bool some(std::int64_t tokens) override {
    const std::int64_t first = next_;
    next_ = std::min(next_ + tokens, call_.routing->tokens);
    group_.workers.for_ranges(next_ - first, [&](std::int64_t from, std::int64_t to) {
      OwnTokens tokens_here(call_);
      for (std::int64_t token = first + from; token < first + to; ++token) send(token, tokens_here);
    });
    return next_ > first;
  }
  bool done() const override { return next_ == call_.routing->tokens; }

 private:
  void send(std::int64_t token, OwnTokens& tokens) const {
    const OwnToken own = tokens.token(token);
    const bool by_expert = detail::has_scale_per_expert(call_.options);
    void* rows[kMaxTopK];
    std::size_t count = 0;
    const std::size_t row_bytes = call_.row_bytes();
    const TokenSide& side = own.side;
    const auto row_at = [&](std::int32_t rank, std::int64_t row) {
      rows[count++] = plan_.target[rank] + plan_.layout[rank].x + row * row_bytes;
    };
    if (expert_major_) {
      for (const TopkRow& at : TopkRows(*plan_.handle, token)) {
        if (!group_.state.nodes.here(at.rank)) continue;
        row_at(at.rank, at.row);
        if (by_expert) {
          tokens.encode(token, side.experts[static_cast<std::size_t>(at.topk_slot)]);
          scatter_row({rows, std::exchange(count, 0)}, own.row, row_bytes, store_);
        }
        side_.write_expert_major(side, at.topk_slot, plan_.target[at.rank], plan_.layout[at.rank],
                                 at.row);
      }
      if (numbers_rows_) number_rows(token);
    } else {
      for (const Copy& copy : call_.routing->copies_of(token)) {
        if (!group_.state.nodes.here(copy.rank)) continue;
        const std::int64_t row = plan_.handle->first_row[copy.rank] + copy.row;
        row_at(copy.rank, row);
        side_.write(side, copy.rank, plan_.target[copy.rank], plan_.layout[copy.rank], row);
      }
    }
    if (count > 0) scatter_row({rows, count}, own.row, row_bytes, store_);
  }

  /// Tells each rank which of its rows make up its sum of the token.
  void number_rows(std::int64_t token) const {
    const TopkRows rows(*plan_.handle, token);
    const std::int32_t top_k = call_.routing->shape.top_k;
    for (const Copy& copy : call_.routing->copies_of(token)) {
      const std::int64_t row = plan_.handle->rank_major->first_row[copy.rank] + copy.row;
      auto* const slots = reinterpret_cast<std::int32_t*>(plan_.target[copy.rank] +
                                                          plan_.layout[copy.rank].topk_rows) +
                          row * top_k;
      std::fill_n(slots, top_k, -1);
      for (const TopkRow& at : rows)
        if (at.rank == copy.rank) slots[at.topk_slot] = static_cast<std::int32_t>(at.row);
    }
  }

  HostGroup& group_;
  const DispatchCall& call_;
  const DispatchPlan& plan_;
  SidePayload side_;
  bool expert_major_, numbers_rows_;
  std::size_t rows_;
  Store store_;
  std::int64_t next_ = 0;
};

/// [ranks]; empty where nothing counts them.
std::vector<std::int32_t> rows_per_rank(const HostGroup& group, const DispatchCall& call,
                                        const DispatchPlan& plan) {
  if (!group.state.recorder.counts_peers()) return {};
  if (plan.handle->expert_alignment == 0) return call.routing->tokens_per_rank;
  std::vector<std::int32_t> rows(static_cast<std::size_t>(group.state.shape.ranks));
  for (std::size_t expert = 0; expert < call.routing->tokens_per_expert.size(); ++expert)
    rows[static_cast<std::size_t>(group.state.shape.rank_of(static_cast<std::int64_t>(expert)))] +=
        call.routing->tokens_per_expert[expert];
  return rows;
}

}  // namespace

void dispatch_send(HostGroup& group, const DispatchCall& call, const DispatchPlan& plan) {
  enter_phase(group, shoal::detail::Activity::dispatch, group.state.epoch, "send");
  Scatter scatter(group, call, plan);
  if (group.state.nodes.count > 1)
    dispatch_forward(group, call, plan, scatter);
  else
    scatter.some(call.routing->tokens);
  group.state.statistics.rows_sent += scatter.rows();
  count_rows(group, scatter.rows(), call.row_bytes(), rows_per_rank(group, call, plan).data());
  raise_local(group, group.layout.finished, group.state.epoch);
}

}  // namespace shoal::ep::host
