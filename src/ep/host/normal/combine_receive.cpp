// SPDX-License-Identifier: Apache-2.0
// combine_receive: fetches the rows of each token from the ranks that hold them and sums them in
// one pass.
//
// Reads one row per copy and writes one row per token. The sum is float32, in the order of
// RoutingState::copies (expert-major: of the token's top-k slots), rounded once; encoded rows are
// decoded first. With CombineOptions::unsummed it writes the row of each top-k slot as it is. The
// `finished` signal tells an owner that its rows have been fetched. This rank ends when all ranks
// have raised it, so that the caller may change y afterwards.
#include <algorithm>
#include <array>
#include <numeric>
#include <optional>

#include "ep/host/normal/forward.hpp"
#include "ep/host/rows/combine_row.hpp"

namespace shoal::ep::host {
namespace {

using detail::Copy;

/// Start of every rank's rows, as addresses here.
std::vector<const std::byte*> bases(const HostGroup& group, const NoticeBoard& board,
                                    std::uint64_t NormalNotice::* field) {
  std::vector<const std::byte*> result;
  for (std::int32_t rank = 0; rank < group.state.shape.ranks; ++rank) {
    const std::uint64_t offset = board[rank].*field;
    result.push_back(offset == detail::kNoRoom ? nullptr : group.state.heap_of(rank, offset));
  }
  return result;
}

void sum_weights(float* out, std::span<const float* const> rows, std::int32_t top_k) {
  for (std::int32_t topk_slot = 0; topk_slot < top_k; ++topk_slot) {
    float sum = 0;
    for (const float* row : rows) sum += row[topk_slot];
    out[topk_slot] = sum;
  }
}

/// Expert-major: each top-k slot has a row of its own.
void fetch_weights(float* out, const HandleState& handle, std::int64_t token,
                   const std::vector<const std::byte*>& weights_at) {
  std::fill_n(out, handle.routing->shape.top_k, 0.0F);
  for (const TopkRow& at : TopkRows(handle, token))
    out[at.topk_slot] = reinterpret_cast<const float*>(weights_at[at.rank])[at.row];
}

/// All ranks are on this node: one pass over the tokens.
void combine_local(HostGroup& group, const ConstTensorView& y, const HandleState& handle,
                   const CombineOptions& options, const LocalExpertOutput& outputs,
                   Combined& combined) {
  const detail::RoutingState& routing = *handle.routing;
  const std::int64_t hidden = y.shape[1];
  const std::int32_t top_k = group.state.shape.top_k;
  const std::size_t row_bytes = hidden * size_of(y.dtype);
  const std::size_t output_bytes = routing.tokens * row_bytes;
  const Store store = choose_store(output_bytes, group.state.shape.ranks, last_level_cache_bytes());
  const auto bias_row = [&](std::size_t i, std::int64_t token) -> const void* {
    return options.bias.size() > i ? options.bias[i].as<std::byte>() + token * row_bytes : nullptr;
  };

  group.workers.for_ranges(routing.tokens, [&](std::int64_t first, std::int64_t last) {
    std::array<const void*, kMaxTopK> rows;
    std::array<const float*, kMaxTopK> weights;
    std::optional<EncodedSums> encoded;
    if (options.quantize != Quantize::none)
      encoded.emplace(detail::encoding_of(options.quantize), static_cast<std::size_t>(hidden));
    const auto sum = [&](std::int64_t token, std::size_t count) {
      std::byte* const out = combined.x.as<std::byte>() + token * row_bytes;
      if (encoded)
        encoded->sum(reinterpret_cast<std::uint16_t*>(out), {rows.data(), count},
                     bias_row(0, token), bias_row(1, token));
      else
        sum_rows(y.dtype, out, {rows.data(), count}, bias_row(0, token), bias_row(1, token), hidden,
                 store);
    };
    for (std::int64_t token = first; token < last; ++token) {
      std::size_t count = 0;
      if (handle.expert_alignment > 0) {
        for (const TopkRow& at : TopkRows(handle, token))
          rows[count++] = outputs.rows[at.rank] + at.row * row_bytes;
        sum(token, count);
        if (options.weights.defined())
          fetch_weights(combined.topk_weights->as<float>() + token * top_k, handle, token,
                        outputs.weights);
        continue;
      }
      for (const Copy& copy : routing.copies_of(token)) {
        const std::int64_t row = handle.first_row[copy.rank] + copy.row;
        if (options.weights.defined())
          weights[count] = reinterpret_cast<const float*>(outputs.weights[copy.rank]) + row * top_k;
        rows[count++] = outputs.rows[copy.rank] + row * row_bytes;
      }
      sum(token, count);
      if (options.weights.defined())
        sum_weights(combined.topk_weights->as<float>() + token * top_k, {weights.data(), count},
                    top_k);
    }
  });
}

/// All ranks are on this node: copies the row of each top-k slot.
void give_local(HostGroup& group, const ConstTensorView& y, const HandleState& handle,
                const LocalExpertOutput& outputs, Combined& combined) {
  const std::int32_t top_k = group.state.shape.top_k;
  const std::size_t row_bytes = y.shape[1] * size_of(y.dtype);
  const Store store =
      choose_store(combined.x.bytes(), group.state.shape.ranks, last_level_cache_bytes());
  group.workers.for_ranges(
      handle.routing->tokens * top_k, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t i = first; i < last; ++i) {
          const TopkRow at(handle, i / top_k, static_cast<std::int32_t>(i % top_k));
          std::byte* const target = combined.x.as<std::byte>() + i * row_bytes;
          if (at.rank < 0)
            std::fill_n(target, row_bytes, std::byte{0});
          else
            copy_row(target, outputs.rows[at.rank] + at.row * row_bytes, row_bytes, store);
          if (combined.topk_weights)
            combined.topk_weights->as<float>()[i] =
                at.rank < 0 ? 0 : reinterpret_cast<const float*>(outputs.weights[at.rank])[at.row];
        }
      });
}

}  // namespace

Combined combine_receive(HostGroup& group, const ConstTensorView& y, const HandleState& handle,
                         const CombineOptions& options, const NoticeBoard& board) {
  const std::uint64_t epoch = group.state.epoch;
  enter_phase(group, shoal::detail::Activity::combine, epoch, "receive");
  const detail::RoutingState& routing = *handle.routing;
  const LocalExpertOutput outputs{bases(group, board, &NormalNotice::base),
                                  bases(group, board, &NormalNotice::weights)};

  Combined combined;
  combined.x = options.out.defined() ? Tensor(options.out, nullptr)
                                     : routing.shape.with_combined_extents(
                                           routing.tokens, options.unsummed, [&](auto extents) {
                                             return Tensor::empty(y.dtype, extents);
                                           });
  if (options.weights.defined())
    combined.topk_weights =
        options.out_weights.defined()
            ? Tensor(options.out_weights, nullptr)
            : Tensor::empty(DataType::float32, {routing.tokens, group.state.shape.top_k});
  if (group.state.nodes.count > 1)
    combine_forward(group, y, handle, options, outputs, combined);
  else if (options.unsummed)
    give_local(group, y, handle, outputs, combined);
  else
    combine_local(group, y, handle, options, outputs, combined);
  const std::size_t rows = handle.expert_alignment > 0
                               ? static_cast<std::size_t>(std::accumulate(
                                     routing.tokens_per_expert.begin(),
                                     routing.tokens_per_expert.end(), std::int64_t{0}))
                               : routing.copies.size();
  group.state.recorder.moved(
      rows, rows * (encodes_rows(group, options)
                        ? detail::RowFormat(options.quantize).wire_bytes(y.shape[1])
                        : static_cast<std::size_t>(y.shape[1]) * size_of(y.dtype)));
  raise_local(group, group.layout.finished, epoch);
  wait_local(group, group.layout.finished, epoch,
             {"combine", shoal::detail::Activity::combine, epoch, "finish",
              "its acknowledgement of fetched rows"});
  return combined;
}

}  // namespace shoal::ep::host
