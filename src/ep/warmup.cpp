// warmup: real operations of the largest size on made-up tokens, so that code, pages and peers are those that later
// calls use.
#include <cstring>

#include "base/check.hpp"
#include "ep/state.hpp"

namespace shoal::ep {
namespace {

Tensor zeros(DataType dtype, std::initializer_list<std::int64_t> shape) {
  Tensor tensor = Tensor::empty(dtype, shape);
  if (tensor.bytes() > 0) std::memset(tensor.data, 0, tensor.bytes());
  return tensor;
}

/// Indices that load all experts evenly and name none twice in a row.
Tensor even_topk(std::int64_t tokens, std::int32_t top_k, std::int32_t experts) {
  Tensor topk = Tensor::empty(DataType::int64, {tokens, top_k});
  const std::int64_t stride = std::max(1, experts / top_k);
  for (std::int64_t t = 0; t < tokens; ++t)
    for (std::int32_t k = 0; k < top_k; ++k)
      topk.as<std::int64_t>()[t * top_k + k] = k < experts ? (t + k * stride) % experts : -1;
  return topk;
}

void warm_normal(Group& group, const GroupOptions& options) {
  const Routing routing = group.route(even_topk(options.max_tokens, options.top_k, options.experts));
  const Tensor x = zeros(options.dtype, {options.max_tokens, options.hidden});
  Dispatched received = group.dispatch(x, routing);
  if (options.dtype == DataType::float8_e4m3)
    group.combine(zeros(DataType::bfloat16, {received.x.shape[0], options.hidden}), received.handle);
  else
    group.combine(received.x, received.handle);
}

void warm_low_latency(Group& group, const GroupOptions& options) {
  const Tensor topk = even_topk(options.low_latency_max_tokens, options.top_k, options.experts);
  const Tensor x = zeros(DataType::bfloat16, {options.low_latency_max_tokens, options.hidden});
  const Tensor weights = zeros(DataType::float32, {options.low_latency_max_tokens, options.top_k});
  for (const Quantize quantize : {Quantize::none, Quantize::fp8}) {  // both forms, and both halves of the buffers
    if (quantize == Quantize::fp8 && options.hidden % 16 != 0) continue;
    const LowLatencyReceived received = group.low_latency_dispatch(x, topk, {.quantize = quantize}).receive();
    const TensorView y = group.next_combine_buffer();
    group.low_latency_combine(y, topk, weights, received.handle, {.zero_copy = true}).receive();
  }
}

}  // namespace

void Group::warmup() {
  require(state_ != nullptr && !state_->closed, Code::closed, "warmup: the group is closed");
  const Statistics before = state_->statistics;
  if (options().max_tokens > 0) warm_normal(*this, options());
  if (options().low_latency_max_tokens > 0) warm_low_latency(*this, options());
  state_->statistics = before;
}

}  // namespace shoal::ep
