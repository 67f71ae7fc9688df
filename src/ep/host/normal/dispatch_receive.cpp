// SPDX-License-Identifier: Apache-2.0
// dispatch_receive: moves nothing; the rows are in place once every rank has raised `finished`.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/align.hpp"
#include "ep/host/normal/normal.hpp"

namespace shoal::ep::host {
namespace {

/// A view into the region, or a copy of it.
Tensor result(const DispatchPlan& plan, bool copy_out, std::byte* at, DataType dtype,
              std::initializer_list<std::int64_t> shape) {
  const TensorView view(at, dtype, shape);
  if (!copy_out) return Tensor(view, plan.region);
  Tensor copy = Tensor::empty(dtype, shape);
  if (view.bytes() > 0) std::memcpy(copy.data, view.data, view.bytes());
  return copy;
}

/// Rows that no token fills: those between the blocks of experts, and those that worst_case_rows
/// has too many.
void clear_unused_rows(const HostGroup& group, const DispatchCall& call, const DispatchPlan& plan) {
  const HandleState& handle = *plan.handle;
  const ReceiveLayout& layout = plan.layout[group.state.me];
  std::byte* base = plan.target[group.state.me];
  const std::int32_t experts = call.topk_slots();
  const bool expert_major = handle.expert_alignment > 0;
  const auto clear = [&](std::int64_t first, std::int64_t end) {
    if (!call.cached) {
      auto* idx = reinterpret_cast<std::int64_t*>(base + layout.topk_idx);
      std::fill(idx + first * experts, idx + end * experts, -1);
      auto* tokens = reinterpret_cast<std::int32_t*>(base + layout.source_token);
      if (expert_major) std::fill(tokens + first, tokens + end, -1);
    }
    if (call.options.weights.defined()) {
      auto* weights = reinterpret_cast<float*>(base + layout.weights);
      std::fill(weights + first * experts, weights + end * experts, 0.0F);
    }
  };
  if (expert_major)
    for (std::int32_t e = 0; e < group.state.shape.experts_of(group.state.me); ++e)
      clear(handle.expert_rows.blocks[e] + handle.expert_rows.counts[e],
            handle.expert_rows.blocks[e + 1]);
  clear(handle.received, handle.result_rows);
}

}  // namespace

detail::AnyDispatched dispatch_receive(HostGroup& group, const DispatchCall& call,
                                       const DispatchPlan& plan) {
  const auto& shape = group.state.shape;
  const HandleState& handle = *plan.handle;
  const ReceiveLayout& layout = plan.layout[group.state.me];
  std::byte* base = plan.target[group.state.me];

  const std::int64_t rows = handle.result_rows;
  const std::int32_t experts = call.topk_slots();
  const bool expert_major = handle.expert_alignment > 0;
  clear_unused_rows(group, call, plan);
  wait_local(group, group.layout.finished, group.state.epoch,
             {"dispatch", shoal::detail::Activity::dispatch, group.state.epoch, "receive", "rows"});

  detail::AnyDispatched received;
  const bool copy = call.options.copy_out;
  received.x = result(plan, copy, base + layout.x, call.row_dtype(), {rows, call.row_elements()});
  if (call.has_scales()) {
    // A row of scales takes whole words.
    const auto stride = static_cast<std::int64_t>(call.scale_bytes() / size_of(call.scale_dtype()));
    received.scales = result(plan, copy, base + layout.scales, call.scale_dtype(), {rows, stride});
    received.scales.shape[1] = call.scale_elements();
  }
  if (!call.cached) {
    received.topk_idx =
        result(plan, copy, base + layout.topk_idx, DataType::int64, {rows, experts});
    received.source_token = result(plan, copy, base + layout.source_token, DataType::int32, {rows});
  }
  if (call.options.weights.defined())
    received.topk_weights =
        result(plan, copy, base + layout.weights, DataType::float32, {rows, experts});
  if (expert_major) {
    received.expert_first_row =
        Tensor::empty(DataType::int32, {shape.experts_of(group.state.me) + 1});
    std::copy(handle.expert_rows.blocks.begin(), handle.expert_rows.blocks.end(),
              received.expert_first_row.as<std::int32_t>());
  }
  for (std::int32_t source = 0; source < shape.ranks; ++source)
    received.rows_per_source.push_back(
        handle.counts[static_cast<std::size_t>(source) * shape.ranks + group.state.me]);
  if (call.options.worst_case_rows == 0) {
    received.has_tokens_per_expert = !call.cached;
    const std::int64_t alignment = call.options.expert_alignment;
    for (std::int64_t tokens : plan.tokens_per_expert)
      received.tokens_per_expert.push_back(static_cast<std::int64_t>(align_up(tokens, alignment)));
  }
  for (std::size_t expert = 0; expert < handle.tokens_per_expert.size(); ++expert)
    group.state.recorder.received(static_cast<std::int64_t>(expert),
                                  static_cast<std::uint64_t>(handle.tokens_per_expert[expert]));
  if (const auto& rank_major = handle.rank_major; rank_major && !call.cached) {
    received.rank_major = shoal::detail::Access::make<Handle>(rank_major);
    received.topk_rows = result(plan, copy, base + layout.topk_rows, DataType::int32,
                                {rank_major->received, shape.top_k});
  }
  received.rows = handle.received;
  received.handle = shoal::detail::Access::make<Handle>(plan.handle);
  group.state.statistics.rows_received += std::accumulate(
      received.rows_per_source.begin(), received.rows_per_source.end(), std::int64_t{0});
  return received;
}

}  // namespace shoal::ep::host
