// dispatch_receive: nothing is moved; the rows lie where they belong once every member has raised `finished`.
#include <algorithm>
#include <cstring>

#include "ep/host/normal.hpp"

namespace shoal::ep::host {
namespace {

/// A view into the region, or a copy of it.
Tensor result(const DispatchPlan& plan, bool copy_out, const std::byte* at, DataType dtype,
              std::initializer_list<std::int64_t> shape) {
  const TensorView view(at, dtype, shape);
  if (!copy_out) return Tensor(view, plan.region);
  Tensor copy = Tensor::empty(dtype, shape);
  if (view.bytes() > 0) std::memcpy(copy.data, view.data, view.bytes());
  return copy;
}

}  // namespace

Dispatched dispatch_receive(GroupState& group, const DispatchCall& call, const DispatchPlan& plan) {
  const auto& shape = group.shape;
  const HandleState& handle = *plan.handle;
  const detail::ReceiveLayout& layout = plan.layout[group.me];
  std::byte* base = plan.target[group.me];

  const std::int64_t rows = handle.result_rows;
  // Rows of worst_case_rows that no token fills.
  const std::int64_t first = handle.received * shape.top_k, end = rows * shape.top_k;
  if (!call.cached) {
    auto* idx = reinterpret_cast<std::int64_t*>(base + layout.topk_idx);
    std::fill(idx + first, idx + end, -1);
  }
  if (call.options.weights.defined()) {
    auto* weights = reinterpret_cast<float*>(base + layout.weights);
    std::fill(weights + first, weights + end, 0.0F);
  }
  wait_all(group, group.host->layout.finished, group.epoch,
           {"dispatch", shoal::detail::Activity::dispatch, group.epoch, "receive", "rows"});

  Dispatched received;
  const bool copy = call.options.copy_out;
  received.x = result(plan, copy, base + layout.x, call.x.dtype, {rows, call.x.shape[1]});
  if (call.options.scales.defined())
    received.scales =
        result(plan, copy, base + layout.scales, call.options.scales.dtype, {rows, call.options.scales.shape[1]});
  if (!call.cached) {
    received.topk_idx = result(plan, copy, base + layout.topk_idx, DataType::int64, {rows, shape.top_k});
    received.source_token = result(plan, copy, base + layout.source_token, DataType::int32, {rows});
  }
  if (call.options.weights.defined())
    received.topk_weights = result(plan, copy, base + layout.weights, DataType::float32, {rows, shape.top_k});
  for (std::int32_t source = 0; source < shape.ranks; ++source)
    received.rows_per_source.push_back(handle.counts[static_cast<std::size_t>(source) * shape.ranks + group.me]);
  if (call.options.worst_case_rows == 0) {
    const std::int64_t alignment = call.options.expert_alignment;
    for (std::int64_t tokens : plan.tokens_per_expert)
      received.tokens_per_expert.push_back((tokens + alignment - 1) / alignment * alignment);
  }
  received.rows = handle.received;
  received.handle = Handle(plan.handle);
  group.statistics.rows_received += handle.received;
  return received;
}

}  // namespace shoal::ep::host
