// SPDX-License-Identifier: Apache-2.0
#include "ep/cuda/warmup.hpp"

#include <utility>
#include <vector>

#include "base/check.hpp"
#include "ep/plan/routing.hpp"
#include "memory/cuda/stream_pool.hpp"
#include "pe/memory.hpp"

namespace shoal::ep::cuda {

namespace {

/// A device tensor with the bytes of a host tensor, or zeros.
Tensor on_device(CudaGroup& group, DataType dtype, std::initializer_list<std::int64_t> shape,
                 const Tensor* from) {
  const TensorView extents(nullptr, dtype, shape);
  Tensor out = group.tensor(group.allocate(extents.bytes()), 0, dtype, shape);
  if (extents.bytes() == 0) return out;
  cudaStream_t on = group.last_stream;  // on which the memory was allocated
  if (from != nullptr)
    check(cudaMemcpyAsync(out.data, from->data, extents.bytes(), cudaMemcpyHostToDevice, on),
          "warm-up");
  else
    check(cudaMemsetAsync(out.data, 0, extents.bytes(), on), "warm-up");
  check(cudaStreamSynchronize(on), "warm-up");
  return out;
}

/// Runs normal mode twice. The first result is kept, so that the second one uses other memory where
/// the arena has room for two.
void warm_normal(Group& group, CudaGroup& device, const Launch& launch) {
  const GroupOptions& options = device.state.options;
  const Tensor host_topk = detail::even_topk(options.max_tokens, options.top_k, options.experts);
  const Tensor topk =
      on_device(device, DataType::int64, {options.max_tokens, options.top_k}, &host_topk);
  const Tensor x = on_device(device, options.dtype, {options.max_tokens, options.hidden}, nullptr);
  const bool quantized = options.dtype == DataType::float8_e4m3;
  Dispatched kept;
  std::vector<Combined> sums;  // live until the stream has ended, like all memory here
  std::vector<Tensor> outputs;
  for (int round = 0; round < 2; ++round) {
    Dispatched received = group.dispatch(x, group.route(topk, launch), {.launch = launch});
    if (!quantized) {
      sums.push_back(group.combine(received.x, received.handle, {.launch = launch}));
    } else if (options.combine_staging) {
      outputs.push_back(
          on_device(device, DataType::bfloat16, {received.x.shape[0], options.hidden}, nullptr));
      sums.push_back(group.combine(outputs.back(), received.handle, {.launch = launch}));
    }
    if (options.live_results > 1 && device.state.arena.regions() == 1) kept = std::move(received);
  }
  device.synchronize();
}

/// Runs each form in both halves of the buffers: weights travel with the dispatch in one half and
/// with the combine in the other.
void warm_low_latency(Group& group, CudaGroup& device, LowLatency& low_latency,
                      const Launch& launch) {
  const GroupOptions& options = device.state.options;
  const std::int64_t tokens = options.low_latency_max_tokens;
  const Tensor host_topk = detail::even_topk(tokens, options.top_k, options.experts);
  const Tensor topk = on_device(device, DataType::int64, {tokens, options.top_k}, &host_topk);
  const Tensor x = on_device(device, DataType::bfloat16, {tokens, options.hidden}, nullptr);
  const Tensor weights = on_device(device, DataType::float32, {tokens, options.top_k}, nullptr);
  low_latency.preload();
  const TensorView y = low_latency.memory_of_results();
  std::vector<Tensor> sums;  // live until the stream has ended
  for (const Quantize quantize : {Quantize::none, Quantize::fp8, Quantize::mxfp8, Quantize::nvfp4})
    for (int half = 0; half < 2; ++half) {
      if (options.hidden % detail::hidden_multiple(quantize) != 0) continue;
      LowLatencyDispatchOptions dispatch{.quantize = quantize, .launch = launch};
      if (half == 1) dispatch.weights = weights;
      const LowLatencyReceived received = group.low_latency_dispatch(x, topk, dispatch).receive();
      sums.push_back(
          group.low_latency_combine(y, topk, weights, received.handle, {.launch = launch})
              .receive());
    }
  device.synchronize();
}

}  // namespace

void warm_up(Group& group, CudaGroup& device, LowLatency& low_latency) {
  const GroupOptions& options = device.state.options;
  device.begin({});
  // The calls of users come on streams of their own.
  const auto callers = memory::cuda::take_stream(*device.state.world->memory().cuda(),
                                                 memory::cuda::StreamPriority::highest);
  const Launch launch{.stream = callers.get(), .after = nullptr, .done = nullptr, .sms = 0};
  if (options.max_tokens > 0) warm_normal(group, device, launch);
  if (options.low_latency_max_tokens > 0) warm_low_latency(group, device, low_latency, launch);
  check(cudaStreamSynchronize(callers.get()), "warm-up");
}

}  // namespace shoal::ep::cuda
