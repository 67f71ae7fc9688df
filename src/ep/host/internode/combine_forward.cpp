// SPDX-License-Identifier: Apache-2.0
// combine_forward: combine between nodes. The rail peer of the source first sums the rows of its
// node; one row per token and node returns.
//
// Bytes per token and node: the sum, and top_k weights (4 B) if there are any. With
// CombineOptions::unsummed, bytes per top-k slot: its row, as it is, and its weight. Order of
// additions: inside a node as in combine_receive, rounded to y's dtype; then biases and the nodes
// in the order of the last top-k slot that names each, the source's node among them, rounded once.
// The result does not depend on the node of the source.
//
// With CombineOptions::quantize the sum of a node travels encoded, and that of the source's node
// passes through the encoding.
#include "ep/host/normal/forward.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <span>

#include "base/check.hpp"
#include "ep/host/internode/rail.hpp"
#include "ep/host/rows/combine_row.hpp"
#include "ep/plan/row_format.hpp"

namespace shoal::ep::host {
namespace {

using detail::Copy;
using detail::Forwarded;
using detail::ForwardedRow;

/// Nodes that hold rows of a token, in the order of their last top-k slots.
struct NodeOrder {
  std::array<std::int32_t, kMaxTopK> nodes;
  std::size_t count = 0;
};

class Exchange final : public RailWork {
 public:
  Exchange(HostGroup& group, const ConstTensorView& y, const HandleState& handle,
           const CombineOptions& options, const LocalExpertOutput& local_expert_output,
           Combined& combined)
      : group_(group),
        handle_(handle),
        options_(options),
        local_expert_output_(local_expert_output),
        combined_(combined),
        rail_(group),
        dtype_(y.dtype),
        hidden_(y.shape[1]),
        row_bytes_(hidden_ * size_of(y.dtype)),
        encoding_(detail::encoding_of(options.quantize)),
        sum_bytes_(encodes() ? detail::RowFormat(options.quantize).wire_bytes(hidden_)
                             : row_bytes_),
        message_(sum_bytes_, options.unsummed ? 1 : group.state.shape.top_k,
                 options.weights.defined()),
        room_(static_cast<std::int64_t>((group.layout.chunk_bytes - sizeof(ChunkHeader)) /
                                        message_.total)),
        inbox_(group.state.nodes.count),
        next_(group.state.nodes.count, 0),
        sent_(group.state.nodes.count, false) {
    sent_[group.state.nodes.mine] = true;
    inbox_[group.state.nodes.mine].last = true;
  }

  bool send(std::int32_t node) override;
  bool receive() override;
  bool done() const override {
    return item_ == items() &&
           std::all_of(sent_.begin(), sent_.end(), [](char sent) { return sent != 0; }) &&
           std::all_of(inbox_.begin(), inbox_.end(),
                       [](const Inbox& from) { return from.at_end(); });
  }
  std::int32_t awaited() const override {
    for (std::int32_t node = 0; node < group_.state.nodes.count; ++node)
      if (!inbox_[node].at_end() || !sent_[node]) return group_.state.nodes.rail_peer(node);
    return group_.state.me;
  }

 private:
  /// The chunk of one peer that is being read.
  struct Inbox {
    const std::byte* chunk = nullptr;
    std::int64_t messages = 0, taken = 0;
    bool last = false;  // no chunk follows
    bool at_end() const { return last && chunk == nullptr; }
  };
  /// An item whose messages have all arrived: a token of this rank; unsummed, a top-k slot of it.
  struct Ready {
    std::int64_t item;
    NodeOrder order;
    std::array<const std::byte*, kMaxTopK> messages;  // by `order`; nullptr: local rows
  };

  std::int64_t items() const {
    return handle_.routing->tokens * (options_.unsummed ? group_.state.shape.top_k : 1);
  }
  TopkRow topk_row(std::int64_t item) const {
    const std::int32_t k = group_.state.shape.top_k;
    return {handle_, item / k, static_cast<std::int32_t>(item % k)};
  }
  NodeOrder order_of(std::int64_t item) const;
  bool encodes() const { return encoding_ != detail::CombineEncoding::bfloat16; }
  void sum_node(std::byte* to, std::span<const void* const> rows,
                std::vector<std::uint16_t>& scratch) const;
  void sum_for_peer(const Forwarded& forwarded, std::int64_t index, std::byte* message,
                    std::vector<std::uint16_t>& scratch) const;
  void give_to_peer(const ForwardedRow& at, std::byte* message) const;
  std::int32_t open_inboxes();
  bool close_inboxes();
  bool take(std::int64_t item, Ready& ready);
  void sum_local(std::int64_t token, std::byte* row, float* weights,
                 std::vector<std::uint16_t>& scratch) const;
  /// A thread that sums has this room.
  struct Scratch {
    std::vector<std::byte> row;              // the sum of this node, as it would travel
    std::vector<std::uint16_t> unencoded{};  // a sum before it is encoded
    std::optional<EncodedSums> sums{};
  };
  Scratch make_scratch() const;
  void sum(const Ready& ready, Scratch& scratch) const;
  void give(const Ready& ready) const;
  const float* weights_at(std::int32_t rank, std::int64_t row, std::int32_t experts) const {
    return reinterpret_cast<const float*>(local_expert_output_.weights[rank]) + row * experts;
  }

  HostGroup& group_;
  const HandleState& handle_;
  const CombineOptions& options_;
  const LocalExpertOutput& local_expert_output_;
  Combined& combined_;
  Rail rail_;
  DataType dtype_;
  std::int64_t hidden_;
  std::size_t row_bytes_;
  detail::CombineEncoding encoding_;
  std::size_t sum_bytes_;  // of the sum of a node, as it travels
  SumMessage message_;
  std::int64_t room_;               // messages per chunk
  std::vector<Inbox> inbox_;        // by node
  std::vector<std::int64_t> next_;  // by node: the next of the peer's tokens, or rows, to send
  std::vector<char> sent_;          // by node: whether the last chunk was sent
  std::int64_t item_ = 0;           // items below it have their result
};

bool Exchange::send(std::int32_t node) {
  if (sent_[node]) return false;
  std::byte* const chunk = rail_.room(node);
  if (chunk == nullptr) return false;
  const Forwarded& forwarded = handle_.forwarded[node];
  const std::int64_t all = options_.unsummed ? static_cast<std::int64_t>(forwarded.rows.size())
                                             : forwarded.tokens(),
                     first = next_[node], count = std::min(room_, all - first);
  group_.workers.for_ranges(count, [&](std::int64_t begin, std::int64_t end) {
    std::vector<std::uint16_t> scratch;
    for (std::int64_t i = begin; i < end; ++i) {
      std::byte* const message = chunk + sizeof(ChunkHeader) + i * message_.total;
      if (options_.unsummed)
        give_to_peer(forwarded.rows[first + i], message);
      else
        sum_for_peer(forwarded, first + i, message, scratch);
    }
  });
  next_[node] += count;
  sent_[node] = next_[node] == all;
  rail_.send(node, {group_.state.epoch, static_cast<std::uint32_t>(count), sent_[node] ? 1U : 0U},
             sizeof(ChunkHeader) + count * message_.total);
  return true;
}

/// The sum of rows of this node as it travels: rounded to y's dtype, then encoded.
void Exchange::sum_node(std::byte* to, std::span<const void* const> rows,
                        std::vector<std::uint16_t>& scratch) const {
  if (!encodes()) return sum_rows(dtype_, to, rows, nullptr, nullptr, hidden_, Store::cached);
  scratch.resize(static_cast<std::size_t>(hidden_));
  sum_rows(dtype_, scratch.data(), rows, nullptr, nullptr, hidden_, Store::cached);
  encode_combine_row(encoding_, scratch, to);
}

void Exchange::sum_for_peer(const Forwarded& forwarded, std::int64_t index, std::byte* message,
                            std::vector<std::uint16_t>& scratch) const {
  std::array<const void*, kMaxTopK> rows;
  std::size_t count = 0;
  const std::int32_t k = group_.state.shape.top_k;
  auto* const weights = reinterpret_cast<float*>(message + message_.weights);
  if (options_.weights.defined()) std::fill_n(weights, k, 0.0F);
  for (const ForwardedRow& at : forwarded.rows_of(index)) {
    rows[count++] = local_expert_output_.rows[at.rank] + at.row * row_bytes_;
    if (!options_.weights.defined()) continue;
    if (at.topk_slot >= 0) {
      weights[at.topk_slot] = *weights_at(at.rank, at.row, 1);
    } else {
      const float* const of_row = weights_at(at.rank, at.row, k);
      for (std::int32_t topk_slot = 0; topk_slot < k; ++topk_slot)
        weights[topk_slot] += of_row[topk_slot];
    }
  }
  sum_node(message, {rows.data(), count}, scratch);
}

void Exchange::give_to_peer(const ForwardedRow& at, std::byte* message) const {
  std::memcpy(message, local_expert_output_.rows[at.rank] + at.row * row_bytes_, row_bytes_);
  if (options_.weights.defined())
    *reinterpret_cast<float*>(message + message_.weights) = *weights_at(at.rank, at.row, 1);
}

NodeOrder Exchange::order_of(std::int64_t item) const {
  NodeOrder order;
  if (options_.unsummed) {
    if (const TopkRow at = topk_row(item); at.rank >= 0)
      order.nodes[order.count++] = group_.state.nodes.node_of[at.rank];
    return order;
  }
  const auto copies = handle_.routing->copies_of(item);
  // Copies are in the order of their ranks' last top-k slots.
  for (std::size_t i = copies.size(); i-- > 0;) {
    const std::int32_t node = group_.state.nodes.node_of[copies[i].rank];
    const auto end = order.nodes.begin() + static_cast<std::ptrdiff_t>(order.count);
    if (std::find(order.nodes.begin(), end, node) == end) order.nodes[order.count++] = node;
  }
  std::reverse(order.nodes.begin(), order.nodes.begin() + static_cast<std::ptrdiff_t>(order.count));
  return order;
}

std::int32_t Exchange::open_inboxes() {
  std::int32_t opened = 0;
  for (std::int32_t node = 0; node < group_.state.nodes.count; ++node) {
    Inbox& from = inbox_[node];
    if (from.chunk != nullptr || from.last) continue;
    from.chunk = rail_.arrived(node, group_.state.epoch);
    if (from.chunk == nullptr) continue;
    const ChunkHeader header = header_of(from.chunk);
    require(header.messages <= room_, Code::peer_failed,
            "SHOAL-N595: combine: PE {} sent a chunk of {} sums; at most {} fit",
            group_.state.team.world_pe(group_.state.nodes.rail_peer(node)), header.messages, room_);
    from.messages = header.messages;
    from.taken = 0;
    from.last = header.last != 0;
    ++opened;
  }
  return opened;
}

bool Exchange::close_inboxes() {
  bool any = false;
  for (std::int32_t node = 0; node < group_.state.nodes.count; ++node) {
    Inbox& from = inbox_[node];
    if (from.chunk == nullptr || from.taken < from.messages) continue;
    from.chunk = nullptr;
    rail_.release(node);
    any = true;
  }
  return any;
}

/// Takes the messages of one item from the inboxes: all of them, or none.
bool Exchange::take(std::int64_t item, Ready& ready) {
  ready.item = item;
  ready.order = order_of(item);
  for (std::size_t i = 0; i < ready.order.count; ++i) {
    const std::int32_t node = ready.order.nodes[i];
    const Inbox& from = inbox_[node];
    if (node == group_.state.nodes.mine || (from.chunk != nullptr && from.taken < from.messages))
      continue;
    require(!from.last, Code::peer_failed,
            "SHOAL-N595: combine: PE {} sent too few sums: none for token {}",
            group_.state.team.world_pe(group_.state.nodes.rail_peer(node)),
            options_.unsummed ? item / group_.state.shape.top_k : item);
    return false;
  }
  for (std::size_t i = 0; i < ready.order.count; ++i) {
    Inbox& from = inbox_[ready.order.nodes[i]];
    ready.messages[i] = ready.order.nodes[i] == group_.state.nodes.mine
                            ? nullptr
                            : from.chunk + sizeof(ChunkHeader) + from.taken++ * message_.total;
  }
  return true;
}

bool Exchange::receive() {
  bool any = open_inboxes() > 0;
  std::vector<Ready> batch;
  for (Ready ready; item_ < items() && take(item_, ready); ++item_) batch.push_back(ready);
  group_.workers.for_ranges(static_cast<std::int64_t>(batch.size()),
                            [&](std::int64_t first, std::int64_t last) {
                              Scratch scratch = make_scratch();
                              for (std::int64_t i = first; i < last; ++i)
                                if (options_.unsummed)
                                  give(batch[i]);
                                else
                                  sum(batch[i], scratch);
                            });
  any |= close_inboxes();
  return any || !batch.empty();
}

/// Writes the sum of this node's rows to `row`, as a peer would send it, and adds their weights.
void Exchange::sum_local(std::int64_t token, std::byte* row, float* weights,
                         std::vector<std::uint16_t>& scratch) const {
  const std::int32_t k = group_.state.shape.top_k;
  std::array<const void*, kMaxTopK> rows;
  std::size_t count = 0;
  if (handle_.expert_alignment > 0) {
    for (const TopkRow& at : TopkRows(handle_, token)) {
      if (!group_.state.nodes.here(at.rank)) continue;
      rows[count++] = local_expert_output_.rows[at.rank] + at.row * row_bytes_;
      if (weights != nullptr) weights[at.topk_slot] = *weights_at(at.rank, at.row, 1);
    }
  } else {
    for (const Copy& copy : handle_.routing->copies_of(token)) {
      if (!group_.state.nodes.here(copy.rank)) continue;
      const std::int64_t at = handle_.first_row[copy.rank] + copy.row;
      rows[count++] = local_expert_output_.rows[copy.rank] + at * row_bytes_;
      if (weights == nullptr) continue;
      const float* const of_row = weights_at(copy.rank, at, k);
      for (std::int32_t topk_slot = 0; topk_slot < k; ++topk_slot)
        weights[topk_slot] += of_row[topk_slot];
    }
  }
  sum_node(row, {rows.data(), count}, scratch);
}

Exchange::Scratch Exchange::make_scratch() const {
  Scratch scratch{std::vector<std::byte>(sum_bytes_)};
  if (encodes()) scratch.sums.emplace(encoding_, static_cast<std::size_t>(hidden_));
  return scratch;
}

void Exchange::sum(const Ready& ready, Scratch& scratch) const {
  const std::int32_t k = group_.state.shape.top_k;
  float* const weights =
      options_.weights.defined() ? combined_.topk_weights->as<float>() + ready.item * k : nullptr;
  if (weights != nullptr) std::fill_n(weights, k, 0.0F);
  std::array<const void*, kMaxTopK> levels;
  for (std::size_t i = 0; i < ready.order.count; ++i) {
    if (ready.messages[i] == nullptr) {
      sum_local(ready.item, scratch.row.data(), weights, scratch.unencoded);
      levels[i] = scratch.row.data();
      continue;
    }
    levels[i] = ready.messages[i];
    if (weights == nullptr) continue;
    const auto* const of_node =
        reinterpret_cast<const float*>(ready.messages[i] + message_.weights);
    for (std::int32_t topk_slot = 0; topk_slot < k; ++topk_slot)
      weights[topk_slot] += of_node[topk_slot];
  }
  const auto bias = [&](std::size_t i) -> const void* {
    return options_.bias.size() > i ? options_.bias[i].as<std::byte>() + ready.item * row_bytes_
                                    : nullptr;
  };
  std::byte* const out = combined_.x.as<std::byte>() + ready.item * row_bytes_;
  const std::span<const void* const> sums(levels.data(), ready.order.count);
  if (scratch.sums)
    scratch.sums->sum(reinterpret_cast<std::uint16_t*>(out), sums, bias(0), bias(1));
  else
    sum_rows(dtype_, out, sums, bias(0), bias(1), hidden_, Store::cached);
}

/// Copies the row of a top-k slot, and its weight.
void Exchange::give(const Ready& ready) const {
  std::byte* const row = combined_.x.as<std::byte>() + ready.item * row_bytes_;
  const TopkRow at = topk_row(ready.item);
  const std::byte* from = nullptr;
  const float* weight = nullptr;
  if (ready.order.count > 0 && ready.messages[0] != nullptr) {
    from = ready.messages[0];
    weight = reinterpret_cast<const float*>(from + message_.weights);
  } else if (ready.order.count > 0) {
    from = local_expert_output_.rows[at.rank] + at.row * row_bytes_;
    if (options_.weights.defined()) weight = weights_at(at.rank, at.row, 1);
  }
  if (from != nullptr)
    std::memcpy(row, from, row_bytes_);
  else
    std::memset(row, 0, row_bytes_);
  if (options_.weights.defined())
    combined_.topk_weights->as<float>()[ready.item] = weight != nullptr ? *weight : 0;
}

}  // namespace

void combine_forward(HostGroup& group, const ConstTensorView& y, const HandleState& handle,
                     const CombineOptions& options, const LocalExpertOutput& local_expert_output,
                     Combined& combined) {
  Exchange exchange(group, y, handle, options, local_expert_output, combined);
  run(group, exchange,
      {"combine", shoal::detail::Activity::combine, group.state.epoch, "rail",
       "sums or room for more"});
}

}  // namespace shoal::ep::host
