// SPDX-License-Identifier: Apache-2.0
// dispatch_forward: dispatch between nodes. A token crosses once to each node that needs it. The
// rail peer there forwards it to its final rows, which it computes from the exchanged counts.
//
// Bytes per token and node: the row, its scales, top_k experts (4 B), top_k weights (4 B), its
// index (4 B); inside the node as in dispatch_send. Sending, receiving and forwarding alternate
// chunk by chunk and overlap; local copies fill the gaps. The handle records the rows of forwarded
// tokens, because combine returns along the same path.
#include "ep/host/normal/forward.hpp"

#include <algorithm>
#include <cstring>

#include "base/check.hpp"
#include "ep/host/internode/rail.hpp"
#include "ep/host/normal/side_payload.hpp"

namespace shoal::ep::host {
namespace {

using detail::Forwarded;
using detail::ForwardedRow;

constexpr std::int64_t kLocalTokens = 64;  // copied locally between two checks of the rails

class Forward final : public RailWork {
 public:
  Forward(HostGroup& group, const DispatchCall& call, const DispatchPlan& plan, LocalWork& local)
      : group_(group),
        call_(call),
        plan_(plan),
        local_(local),
        rail_(group),
        side_(call, group.state.shape),
        message_(call.row_bytes(), call.scale_bytes(), group.state.shape.top_k,
                 call.options.weights.defined()),
        room_(static_cast<std::int64_t>((group.layout.chunk_bytes - sizeof(ChunkHeader)) /
                                        message_.total)),
        next_(group.state.nodes.count, 0),
        passed_(group.state.nodes.count, 0),
        sent_(group.state.nodes.count, false),
        received_(group.state.nodes.count, false) {
    sent_[group.state.nodes.mine] = received_[group.state.nodes.mine] = true;
    for (std::int32_t rank = 0; rank < group.state.shape.ranks; ++rank)
      end_.push_back(plan.handle->received_by(rank));
  }

  bool send(std::int32_t node) override;
  bool receive() override;
  bool work() override { return local_.some(kLocalTokens); }
  bool done() const override { return all(sent_) && all(received_) && local_.done(); }
  std::int32_t awaited() const override {
    for (std::int32_t node = 0; node < group_.state.nodes.count; ++node)
      if (!received_[node] || !sent_[node]) return group_.state.nodes.rail_peer(node);
    return group_.state.me;
  }

 private:
  static bool all(const std::vector<char>& flags) {
    return std::all_of(flags.begin(), flags.end(), [](char flag) { return flag != 0; });
  }
  bool needed_on(std::int64_t token, std::int32_t node) const {
    const auto copies = call_.routing->copies_of(token);
    return std::any_of(copies.begin(), copies.end(), [&](const detail::Copy& copy) {
      return group_.state.nodes.node_of[copy.rank] == node;
    });
  }
  void write(std::byte* message, const OwnToken& token) const;
  void pass_on(std::int32_t node, const std::byte* chunk, std::int64_t messages);
  void place(Forwarded& forwarded, const std::byte* message) const;
  void pass_on(const Forwarded& forwarded, std::int64_t index, const std::byte* message) const;
  void read_experts(const std::byte* message, std::int64_t* experts) const;

  HostGroup& group_;
  const DispatchCall& call_;
  const DispatchPlan& plan_;
  LocalWork& local_;
  Rail rail_;
  SidePayload side_;
  TokenMessage message_;
  std::int64_t room_;                  // messages per chunk
  std::vector<std::int64_t> end_;      // by rank: rows of its result
  std::vector<std::int64_t> next_;     // by node: the next token of this rank to examine
  std::vector<std::int64_t> passed_;   // by node: forwarded tokens of the peer there
  std::vector<char> sent_, received_;  // by node: whether it was the last chunk
};

bool Forward::send(std::int32_t node) {
  if (sent_[node]) return false;
  std::byte* const chunk = rail_.room(node);
  if (chunk == nullptr) return false;
  std::vector<std::int64_t> tokens;
  while (next_[node] < call_.routing->tokens && static_cast<std::int64_t>(tokens.size()) < room_)
    if (const std::int64_t token = next_[node]++; needed_on(token, node)) tokens.push_back(token);
  group_.workers.for_ranges(
      static_cast<std::int64_t>(tokens.size()), [&](std::int64_t first, std::int64_t last) {
        OwnTokens own(call_);
        for (std::int64_t i = first; i < last; ++i)
          write(chunk + sizeof(ChunkHeader) + i * message_.total, own.token(tokens[i]));
      });
  sent_[node] = next_[node] == call_.routing->tokens;
  const auto messages = static_cast<std::uint32_t>(tokens.size());
  group_.state.recorder.sent_over_network(group_.state.nodes.rail_peer(node), messages,
                                          messages * call_.row_bytes());
  rail_.send(node, {group_.state.epoch, messages, sent_[node] ? 1U : 0U},
             sizeof(ChunkHeader) + messages * message_.total);
  return true;
}

void Forward::write(std::byte* message, const OwnToken& token) const {
  const TokenSide& side = token.side;
  const std::int32_t k = group_.state.shape.top_k;
  copy_row(message, token.row, call_.row_bytes(), Store::cached);
  auto* scales = reinterpret_cast<std::uint32_t*>(message + message_.scales);
  for (std::size_t i = 0; i < call_.scale_bytes() / 4; ++i)
    scales[i] = side.scales[static_cast<std::int64_t>(i) * side.scale_stride];
  auto* experts = reinterpret_cast<std::int32_t*>(message + message_.experts);
  for (std::int32_t i = 0; i < k; ++i) experts[i] = static_cast<std::int32_t>(side.experts[i]);
  if (side.weights != nullptr)
    std::memcpy(message + message_.weights, side.weights, k * sizeof(float));
  std::memcpy(message + message_.token, &side.token, sizeof side.token);
}

bool Forward::receive() {
  bool any = false;
  for (std::int32_t node = 0; node < group_.state.nodes.count; ++node) {
    if (received_[node]) continue;
    const std::byte* const chunk = rail_.arrived(node, group_.state.epoch);
    if (chunk == nullptr) continue;
    const ChunkHeader header = header_of(chunk);
    pass_on(node, chunk + sizeof header, header.messages);
    received_[node] = header.last != 0;
    rail_.release(node);
    any = true;
  }
  return any;
}

void Forward::pass_on(std::int32_t node, const std::byte* chunk, std::int64_t messages) {
  Forwarded& forwarded = plan_.handle->forwarded[node];
  const Pe from = group_.state.team.world_pe(group_.state.nodes.rail_peer(node));
  require(messages <= room_, Code::peer_failed,
          "SHOAL-N595: dispatch: PE {} sent a chunk of {} tokens; at most {} fit", from, messages,
          room_);
  if (!call_.cached)
    for (std::int64_t i = 0; i < messages; ++i) place(forwarded, chunk + i * message_.total);
  require(
      passed_[node] + messages <= forwarded.tokens(), Code::peer_failed,
      "SHOAL-N595: dispatch: PE {} sent more than the {} tokens of the dispatch whose layout is used "
      "again",
      from, forwarded.tokens());
  const std::int64_t first = passed_[node];
  group_.workers.for_ranges(messages, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      pass_on(forwarded, first + i, chunk + i * message_.total);
  });
  passed_[node] += messages;
}

void Forward::read_experts(const std::byte* message, std::int64_t* experts) const {
  std::copy_n(reinterpret_cast<const std::int32_t*>(message + message_.experts),
              group_.state.shape.top_k, experts);
}

/// Assigns rows to the next token of a peer. Tokens arrive in order, so each takes the next row of
/// its rank or expert.
void Forward::place(Forwarded& forwarded, const std::byte* message) const {
  const auto& shape = group_.state.shape;
  std::int64_t experts[kMaxTopK];
  read_experts(message, experts);
  const auto add = [&](std::int32_t rank, std::int32_t topk_slot, std::int32_t& row) {
    require(row < end_[rank], Code::peer_failed,
            "SHOAL-N595: dispatch: a token from another node would be row {} of {} at PE {}", row,
            end_[rank], group_.state.team.world_pe(rank));
    forwarded.rows.push_back({rank, topk_slot, row++});
  };
  for (std::int32_t i = 0; i < shape.top_k; ++i)
    require(experts[i] >= -1 && experts[i] < shape.experts, Code::peer_failed,
            "SHOAL-N595: dispatch: a token from another node names expert {} of {}", experts[i],
            shape.experts);
  if (plan_.handle->expert_alignment > 0) {
    for (std::int32_t topk_slot = 0; topk_slot < shape.top_k; ++topk_slot)
      if (const std::int64_t expert = experts[topk_slot];
          expert >= 0 && group_.state.nodes.here(shape.rank_of(expert)))
        add(shape.rank_of(expert), topk_slot, forwarded.next[expert]);
  } else {
    std::int32_t ranks[kMaxTopK];
    const std::int32_t count = detail::ranks_by_last_topk_slot(
        {experts, static_cast<std::size_t>(shape.top_k)}, shape, ranks);
    for (std::int32_t i = 0; i < count; ++i)
      if (group_.state.nodes.here(ranks[i])) add(ranks[i], -1, forwarded.next[ranks[i]]);
  }
  forwarded.first.push_back(static_cast<std::int32_t>(forwarded.rows.size()));
}

void Forward::pass_on(const Forwarded& forwarded, std::int64_t index,
                      const std::byte* message) const {
  std::int64_t experts[kMaxTopK];
  read_experts(message, experts);
  TokenSide side{0,
                 {experts, static_cast<std::size_t>(group_.state.shape.top_k)},
                 call_.options.weights.defined()
                     ? reinterpret_cast<const float*>(message + message_.weights)
                     : nullptr,
                 reinterpret_cast<const std::uint32_t*>(message + message_.scales),
                 1};
  std::memcpy(&side.token, message + message_.token, sizeof side.token);
  void* rows[kMaxTopK];
  std::size_t count = 0;
  for (const ForwardedRow& at : forwarded.rows_of(index)) {
    std::byte* const base = plan_.target[at.rank];
    const ReceiveLayout& layout = plan_.layout[at.rank];
    rows[count++] = base + layout.x + at.row * call_.row_bytes();
    if (at.topk_slot >= 0)
      side_.write_expert_major(side, at.topk_slot, base, layout, at.row);
    else
      side_.write(side, at.rank, base, layout, at.row);
  }
  scatter_row({rows, count}, message, call_.row_bytes(), Store::cached);
}

}  // namespace

void dispatch_forward(HostGroup& group, const DispatchCall& call, const DispatchPlan& plan,
                      LocalWork& local) {
  Forward forward(group, call, plan, local);
  run(group, forward,
      {"dispatch", shoal::detail::Activity::dispatch, group.state.epoch, "rail",
       "tokens or room for more"});
}

}  // namespace shoal::ep::host
