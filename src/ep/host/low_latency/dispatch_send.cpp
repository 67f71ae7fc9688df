// SPDX-License-Identifier: Apache-2.0
// low_latency_dispatch_send: writes each token once to this rank's outbox, and a header to a fixed
// slot (source, row) of every rank that holds one of its experts. Receivers fetch the rows. Ranks
// of other nodes cannot fetch: each gets its headers, with the weights if known, and its rows in
// one message.
//
// Bytes per token: the row (detail::RowFormat); per copy 4 B and 4 B per top-k slot. On one host a
// fetched row comes from a cache that all ranks share; copies pushed to each of them would not fit
// there. slots_read of the use before last granted the half of outbox and slots; slots_sent is
// raised after all writes.
#include <cstring>

#include "ep/host/low_latency/low_latency.hpp"
#include "ep/host/signals/reach.hpp"

namespace shoal::ep::host {
namespace {

using shoal::detail::Activity;

/// Puts one token into the outbox in the form in which it travels.
void encode(std::int64_t hidden, Quantize quantize, float global, std::byte* target,
            const std::uint16_t* row) {
  const detail::RowFormat format(quantize);
  if (quantize == Quantize::none)
    return copy_row(target, row, format.row_bytes(hidden), Store::cached);
  encode_row(quantize, global, reinterpret_cast<std::uint8_t*>(target),
             target + format.scales_at(hidden), row, static_cast<std::size_t>(hidden));
}

void write_header(std::byte* slot, std::int64_t token, std::span<const std::int64_t> experts,
                  std::int32_t rank, const Shape& shape) {
  const SlotHeader header{static_cast<std::int32_t>(token)};
  std::memcpy(slot, &header, sizeof header);
  auto* local = reinterpret_cast<std::int32_t*>(slot + sizeof header);
  for (std::size_t k = 0; k < experts.size(); ++k) {
    const bool there = experts[k] >= 0 && shape.rank_of(experts[k]) == rank;
    local[k] = there ? shape.local_of(experts[k]) : -1;
  }
}

/// Packs what a rank of another node needs and sends it; its half was granted like all others.
void send_remote(HostGroup& group, std::uint64_t epoch, const detail::RoutingState& routing,
                 const LowLatencyDispatchOptions& options, std::int32_t to) {
  const auto& shape = group.state.shape;
  const GroupLayout& layout = group.layout;
  const InternodeSlots slots(shape, layout, options.quantize, options.weights.defined());
  std::byte* const out =
      group.state.block + layout.remote_slots(layout.remote_out, epoch,
                                              group.state.nodes.remote_index(group.state.me, to),
                                              shape);
  std::int32_t count = 0;
  for (std::int64_t token = 0; token < routing.tokens; ++token)
    for (const detail::Copy& copy : routing.copies_of(token)) {
      if (copy.rank != to) continue;
      std::byte* const header = out + count * slots.header_bytes;
      write_header(header, token, routing.experts_of(token), to, shape);
      if (options.weights.defined())
        std::memcpy(header + layout.slot_bytes, options.weights.as<float>() + token * shape.top_k,
                    shape.top_k * sizeof(float));
      std::memcpy(out + slots.rows(routing.tokens_per_rank[to]) + count * slots.row_bytes,
                  group.state.block + layout.outbox_row(epoch, token, shape), slots.row_bytes);
      ++count;
    }
  const std::size_t bytes = slots.rows(count) + count * slots.row_bytes;
  if (count > 0)
    put_remote(group, to,
               layout.remote_slots(layout.remote_in, epoch,
                                   group.state.nodes.remote_index(to, group.state.me), shape),
               out, bytes);
}

}  // namespace

std::shared_ptr<LowLatencyHandleState> low_latency_dispatch_send(
    HostGroup& group, const ConstTensorView& x, std::shared_ptr<const detail::RoutingState> routing,
    const LowLatencyDispatchOptions& options) {
  const Quantize quantize = options.quantize;
  const float global = detail::global_scale_of(options);
  const auto& shape = group.state.shape;
  const std::uint64_t epoch = ++group.state.low_latency_dispatch_epoch;
  enter_phase(group, Activity::low_latency_dispatch, epoch, "send");
  wait_for_readers_of_half(group, group.layout.slots_read,
                           {"low_latency_dispatch", Activity::low_latency_dispatch, epoch, "send",
                            "its acknowledgement of read rows"});

  group.workers.for_ranges(routing->tokens, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t token = first; token < last; ++token) {
      if (routing->copies_of(token).empty()) continue;
      encode(shape.hidden, quantize, global,
             group.state.block + group.layout.outbox_row(epoch, token, shape),
             x.as<std::uint16_t>() + token * shape.hidden);
      for (const detail::Copy& copy : routing->copies_of(token)) {
        if (group.masked[copy.rank] || !group.state.nodes.here(copy.rank)) continue;
        write_header(group.state.peers[copy.rank] +
                         group.layout.slot(epoch, group.state.me, copy.row, shape),
                     token, routing->experts_of(token), copy.rank, shape);
      }
    }
  });
  for (std::int32_t i = 0; i < shape.ranks; ++i) {
    const std::int32_t rank = (group.state.me + 1 + i) % shape.ranks;
    if (group.masked[rank]) continue;
    const LowLatencyDispatchNotice notice{epoch, static_cast<std::uint32_t>(quantize), global,
                                          routing->tokens_per_rank[rank],
                                          options.weights.defined() ? 1U : 0U};
    write_or_mask(group, rank, [&] {
      if (!group.state.nodes.here(rank)) send_remote(group, epoch, *routing, options, rank);
      put(group, rank, group.layout.dispatch_notice(epoch, group.state.me, shape), &notice,
          sizeof notice);
    });
  }
  raise_or_mask(group, group.layout.slots_sent, epoch);
  group.state.statistics.rows_sent += routing->copies.size();
  const std::size_t row_bytes = detail::RowFormat(quantize).row_bytes(shape.hidden);
  count_rows(group, routing->copies.size(), row_bytes, routing->tokens_per_rank.data());
  for (std::int32_t rank = 0; rank < shape.ranks; ++rank)
    if (!group.state.nodes.here(rank))
      group.state.recorder.sent_over_network(
          rank, static_cast<std::uint64_t>(routing->tokens_per_rank[rank]),
          routing->tokens_per_rank[rank] * row_bytes);

  auto handle = std::make_shared<LowLatencyHandleState>();
  handle->group = group.state.weak_from_this();
  handle->epoch = epoch;
  handle->routing = std::move(routing);
  handle->has_weights = options.weights.defined();
  if (handle->has_weights)
    handle->weights.assign(options.weights.as<float>(),
                           options.weights.as<float>() + options.weights.size());
  return handle;
}

}  // namespace shoal::ep::host
