// SPDX-License-Identifier: Apache-2.0
// notify: exchanges the counts of a dispatch, and grants room for it.
//
// Moves a notice and (ranks + local experts) * 4 bytes from every rank to every rank; (ranks +
// experts) * 4 for expert-major results and between nodes. Ranks that meet at the first one
// (HostGroup::meets_at_first) write theirs once, there, and read those of all ranks there. A rank
// grants a region for the largest possible result before it knows the counts, so that one exchange
// suffices, and shrinks it afterwards; pages that no row touches cost nothing.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/check.hpp"
#include "ep/group/checks.hpp"
#include "ep/host/normal/normal.hpp"
#include "ep/host/signals/reach.hpp"

namespace shoal::ep::host {

using detail::kNoRoom;
using detail::Operation;

const NormalNotice& NoticeBoard::operator[](std::int32_t rank) const {
  const std::byte* block = group_->meets_at_first ? group_->state.peers[0] : group_->state.block;
  return *reinterpret_cast<const NormalNotice*>(
      block + group_->layout.notice(epoch_, rank, group_->state.shape));
}
const std::int32_t* NoticeBoard::rows_per_rank(std::int32_t rank) const {
  return reinterpret_cast<const std::int32_t*>(&(*this)[rank] + 1);
}
const std::int32_t* NoticeBoard::tokens_per_expert(std::int32_t rank) const {
  return rows_per_rank(rank) + group_->state.shape.ranks;
}

namespace {

std::string describe(const NormalNotice& notice) {
  const auto operation = static_cast<Operation>(notice.operation);
  const auto quantize = static_cast<Quantize>(notice.quantize);
  return fmt::format(
      "{} of {} {}rows{}{}, {} scales, {} weights, layout of {}, {}",
      operation == Operation::dispatch ? "dispatch" : "combine",
      name_of(static_cast<DataType>(notice.dtype)), notice.unsummed != 0 ? "unsummed " : "",
      quantize == Quantize::none ? "" : fmt::format(" sent as {}", detail::name_of(quantize)),
      quantize == Quantize::nvfp4 ? fmt::format(" with global scale {}", notice.global_scale) : "",
      notice.scales, notice.has_weights ? "with" : "without",
      notice.handle_epoch == 0 ? "its own" : fmt::format("dispatch {}", notice.handle_epoch),
      notice.expert_alignment == 0
          ? "rank-major"
          : fmt::format("expert_major with expert_alignment {}{}", notice.expert_alignment,
                        notice.also_rank_major != 0 ? ", with sums by rank" : ""));
}

/// Every rank compares all notices with that of rank 0, so that all ranks reach the same result.
void check_agreement(const HostGroup& group, const NoticeBoard& board, std::uint64_t epoch) {
  const NormalNotice& first = board[0];
  for (std::int32_t i = 1; i < group.state.shape.ranks; ++i) {
    const NormalNotice& other = board[i];
    if (other.operation == first.operation && other.dtype == first.dtype &&
        other.scales == first.scales && other.has_weights == first.has_weights &&
        other.handle_epoch == first.handle_epoch &&
        other.expert_alignment == first.expert_alignment &&
        other.also_rank_major == first.also_rank_major && other.quantize == first.quantize &&
        other.global_scale == first.global_scale && other.unsummed == first.unsummed)
      continue;
    fail(Code::mismatch,
         "SHOAL-N540: ranks of the group call different operations: PE {} {}; PE {} {}{}",
         group.state.team.world_pe(0), describe(first), group.state.team.world_pe(i),
         describe(other),
         group.state.world->progress().refusal(
             group.pes, group.state.call(shoal::detail::CallKind::normal, epoch)));
  }
}

/// A rank's notice with its counts.
struct Record {
  std::vector<std::byte> bytes;
  std::size_t experts_at;  ///< where the counts of tokens per expert start
  bool all_experts;        ///< every rank needs those of all experts
};

Record make_record(const Shape& shape, const NormalNotice& notice,
                   const std::int32_t* rows_per_rank, const std::int32_t* tokens_per_expert) {
  Record record;
  record.bytes.resize(sizeof notice);
  std::memcpy(record.bytes.data(), &notice, sizeof notice);
  const auto add = [&](const std::int32_t* counts, std::int32_t count) {
    const auto* first = reinterpret_cast<const std::byte*>(counts);
    if (counts != nullptr)
      record.bytes.insert(record.bytes.end(), first, first + count * sizeof(std::int32_t));
  };
  add(rows_per_rank, shape.ranks);
  record.experts_at = record.bytes.size();
  add(tokens_per_expert, shape.experts);
  record.all_experts = tokens_per_expert == nullptr || notice.expert_alignment > 0;
  return record;
}

/// A rank gets the counts of its own experts only, unless it needs the others. A network
/// takes one message rather than two short ones.
void send_record(const HostGroup& group, const Step& step, const Record& record) {
  const auto& shape = group.state.shape;
  const std::size_t at = group.layout.notice(step.epoch, group.state.me, shape);
  for (std::int32_t i = 0; i < shape.ranks; ++i) {
    const std::int32_t to = (group.state.me + 1 + i) % shape.ranks;
    if (record.all_experts || group.state.peers[to] == nullptr) {
      put(group, to, at, record.bytes.data(), record.bytes.size());
    } else {
      const std::size_t own = record.experts_at + shape.first_expert(to) * sizeof(std::int32_t),
                        own_bytes = shape.experts_of(to) * sizeof(std::int32_t);
      put(group, to, at, record.bytes.data(), record.experts_at);
      put(group, to, at + own, record.bytes.data() + own, own_bytes);
    }
    store_signal(group, to, group.layout.entered + group.state.me * kLine, step.epoch);
  }
  wake_all(group, group.layout.entered);
}

}  // namespace

NoticeBoard exchange_notices(HostGroup& group, const Step& step, const NormalNotice& notice,
                             const std::int32_t* rows_per_rank,
                             const std::int32_t* tokens_per_expert) {
  const auto& shape = group.state.shape;
  NormalNotice sent = notice;
  sent.dispatches_sent = group.state.low_latency_dispatch_epoch;
  sent.combines_sent = group.state.low_latency_combine_epoch;
  const Record record = make_record(shape, sent, rows_per_rank, tokens_per_expert);
  if (group.meets_at_first) {
    put(group, 0, group.layout.notice(step.epoch, group.state.me, shape), record.bytes.data(),
        record.bytes.size());
    raise_local(group, group.layout.entered, step.epoch);
    wait_local(group, group.layout.entered, step.epoch, step);
  } else {
    send_record(group, step, record);
    wait_all(group, group.layout.entered, step.epoch, step);
  }
  NoticeBoard board(group, step.epoch);
  check_agreement(group, board, step.epoch);
  return board;
}

namespace {

/// rank_major_rows: those of the same tokens.
ReceiveLayout layout_of(const DispatchCall& call, std::int64_t rows, std::int64_t rank_major_rows) {
  const std::int64_t topk_rows = call.options.also_rank_major && !call.cached
                                     ? rank_major_rows * call.routing->shape.top_k
                                     : 0;
  return {rows, call.row_bytes(), call.scale_bytes(), call.topk_slots(), topk_rows};
}

/// The largest number of rows that a result of this call can have, if its size is not known
/// beforehand.
std::int64_t exact_rows(const HostGroup& group, const DispatchCall& call) {
  if (call.expert_alignment() == 0) return group.state.shape.max_received();
  const Shape& shape = group.state.shape;
  return detail::rows_that_fit(
      shape.max_expert_major_rows(call.expert_alignment()), group.layout.largest_result,
      [&](std::int64_t rows) {
        const std::size_t total = layout_of(call, rows, shape.max_received()).total;
        // Gradients of the same rows may be wider.
        return call.options.also_rank_major
                   ? total + rows * (shape.max_row_bytes - call.row_bytes())
                   : total;
      });
}

/// Room for the largest result that this call can have; nullptr if the arena has none.
std::shared_ptr<Region> take_region(HostGroup& group, const DispatchCall& call) {
  const std::int64_t rows = call.options.worst_case_rows > 0 ? call.options.worst_case_rows
                            : call.cached                    ? call.cached->received
                                                             : exact_rows(group, call);
  const ReceiveLayout layout = layout_of(call, rows, group.state.shape.max_received());
  const auto offset = group.state.arena.take(layout.total);
  return offset ? std::make_shared<Region>(group.state.shared_from_this(), *offset) : nullptr;
}

/// Computes where the rows of the rail peers' tokens start at the ranks of this node.
void prepare_forwarding(const HostGroup& group, const NoticeBoard& board, HandleState& handle) {
  const auto& shape = group.state.shape;
  handle.forwarded.resize(group.state.nodes.count);
  std::vector<const std::int32_t*> per_expert;
  for (std::int32_t source = 0; source < shape.ranks; ++source)
    per_expert.push_back(board.tokens_per_expert(source));
  for (std::int32_t node = 0; node < group.state.nodes.count; ++node) {
    if (node == group.state.nodes.mine) continue;
    const std::int32_t peer = group.state.nodes.rail_peer(node);
    std::vector<std::int32_t>& next = handle.forwarded[node].next;
    if (handle.expert_alignment > 0) {
      next = detail::make_expert_rows(shape, per_expert, peer, handle.expert_alignment).first;
      continue;
    }
    next = detail::first_rows(handle.counts, shape.ranks, peer);
  }
}

/// Replaces the rank-major layout by the expert-major one: rows are counted once per expert.
void use_expert_major_layout(const HostGroup& group, const NoticeBoard& board,
                             HandleState& handle) {
  const auto& shape = group.state.shape;
  std::vector<const std::int32_t*> counts;
  for (std::int32_t source = 0; source < shape.ranks; ++source) {
    counts.push_back(board.tokens_per_expert(source));
    for (std::int32_t rank = 0; rank < shape.ranks; ++rank) {
      const std::int32_t* first = counts.back() + shape.first_expert(rank);
      handle.counts[static_cast<std::size_t>(source) * shape.ranks + rank] =
          std::accumulate(first, first + shape.experts_of(rank), 0);
    }
  }
  handle.expert_rows =
      detail::make_expert_rows(shape, counts, group.state.me, handle.expert_alignment);
  handle.received = handle.expert_rows.end[group.state.me];
}

std::shared_ptr<HandleState> new_handle(const HostGroup& group, const DispatchCall& call,
                                        const NoticeBoard& board) {
  auto handle = std::make_shared<HandleState>();
  const std::int32_t ranks = group.state.shape.ranks;
  handle->routing = call.routing;
  handle->group = group.state.weak_from_this();
  handle->epoch = group.state.epoch;
  handle->counts.reserve(static_cast<std::size_t>(ranks) * ranks);
  for (std::int32_t source = 0; source < ranks; ++source) {
    const std::int32_t* row = board.rows_per_rank(source);
    handle->counts.insert(handle->counts.end(), row, row + ranks);
  }
  handle->first_row = detail::first_rows(handle->counts, ranks, group.state.me);
  handle->rows_by_rank = detail::rows_before(handle->counts, ranks, ranks);
  handle->received = handle->rows_by_rank[group.state.me];
  handle->expert_alignment = call.expert_alignment();
  if (call.options.also_rank_major) {
    auto rank_major = std::make_shared<HandleState>(*handle);
    rank_major->expert_alignment = 0;
    rank_major->result_rows = rank_major->received;
    handle->rank_major = std::move(rank_major);
  }
  if (handle->expert_alignment > 0) use_expert_major_layout(group, board, *handle);
  if (group.state.nodes.count > 1) prepare_forwarding(group, board, *handle);
  return handle;
}

/// Every rank knows the room and the rows of all ranks, so either all ranks throw or none does.
void check_room(const HostGroup& group, const DispatchCall& call, const NoticeBoard& board,
                const HandleState& handle) {
  const std::int64_t most = call.cached ? handle.received : exact_rows(group, call);
  for (std::int32_t rank = 0; rank < group.state.shape.ranks; ++rank) {
    const Pe pe = group.pes[rank];
    if (board[rank].base == kNoRoom)
      detail::fail_no_room(group.state, pe, board[rank].rows > 0 ? board[rank].rows : most);
    require(
        board[rank].rows == 0 || board[rank].rows >= handle.received_by(rank), Code::exhausted,
        "SHOAL-N542: dispatch: PE {} allows {} rows (DispatchOptions.worst_case_rows) but is sent "
        "{}",
        pe, board[rank].rows, handle.received_by(rank));
    require(
        board[rank].rows > 0 || call.cached || handle.expert_alignment == 0 ||
            handle.received_by(rank) <= most,
        Code::exhausted,
        "SHOAL-N542: dispatch: PE {} is sent {} rows, one for each expert of a token and blocks of "
        "a multiple of {}, but its receive area has room for {} in a result. Raise "
        "GroupOptions.max_tokens (now {}), or set DispatchOptions.worst_case_rows, whose results "
        "may share the room of live_results (now {})",
        pe, handle.received_by(rank), handle.expert_alignment, most, group.state.shape.max_tokens,
        group.state.shape.live_results);
  }
}

}  // namespace

DispatchPlan notify(HostGroup& group, const DispatchCall& call) {
  DispatchPlan plan;
  plan.region = take_region(group, call);

  NormalNotice notice{};
  notice.operation = static_cast<std::uint64_t>(Operation::dispatch);
  notice.base =
      plan.region ? group.state.block_offset + group.layout.arena + plan.region->offset : kNoRoom;
  notice.weights = kNoRoom;
  notice.handle_epoch = call.cached ? call.cached->epoch : 0;
  notice.rows = call.options.worst_case_rows;
  notice.dtype = static_cast<std::uint32_t>(call.x.dtype);
  notice.scales = static_cast<std::uint32_t>(call.scale_bytes() / 4);
  notice.has_weights = call.options.weights.defined();
  notice.expert_alignment = static_cast<std::uint32_t>(call.expert_alignment());
  notice.also_rank_major = call.options.also_rank_major;
  notice.quantize = static_cast<std::uint32_t>(call.options.quantize);
  notice.global_scale = detail::announced_scale_of(call.options);

  const Step step{"dispatch", shoal::detail::Activity::dispatch, ++group.state.epoch, "notify",
                  "its counts"};
  const NoticeBoard board = exchange_notices(
      group, step, notice, call.cached ? nullptr : call.routing->tokens_per_rank.data(),
      call.cached ? nullptr : call.routing->tokens_per_expert.data());
  plan.handle =
      call.cached ? std::make_shared<HandleState>(*call.cached) : new_handle(group, call, board);
  check_room(group, call, board, *plan.handle);

  for (std::int32_t rank = 0; rank < group.state.shape.ranks; ++rank) {
    const std::int64_t rows = std::max(board[rank].rows, plan.handle->received_by(rank));
    plan.target.push_back(group.state.heap_of(rank, board[rank].base));
    const auto& rank_major = plan.handle->rank_major;
    plan.layout.push_back(
        layout_of(call, rows, rank_major ? rank_major->received_by(rank) : std::int64_t{0}));
  }
  plan.handle->result_rows = std::max(call.options.worst_case_rows, plan.handle->received);
  group.state.arena.shrink(plan.region->offset, plan.layout[group.state.me].total);

  if (!call.cached) {
    const auto& shape = group.state.shape;
    plan.tokens_per_expert.assign(shape.experts_of(group.state.me), 0);
    for (std::int32_t source = 0; source < group.state.shape.ranks; ++source) {
      const std::int32_t* mine =
          board.tokens_per_expert(source) + shape.first_expert(group.state.me);
      for (std::int32_t e = 0; e < shape.experts_of(group.state.me); ++e)
        plan.tokens_per_expert[e] += mine[e];
    }
    plan.handle->tokens_per_expert.assign(plan.tokens_per_expert.begin(),
                                          plan.tokens_per_expert.end());
  }
  return plan;
}

}  // namespace shoal::ep::host
