// SPDX-License-Identifier: Apache-2.0
// reduced.cpp: combines of bfloat16 by where the expert output lies: in place, outside the heap
// (staged), and expert-major outside the heap, whose rows of a token are summed before they are
// sent (CombineOptions.topk_rows); each with weights outside the heap, and without.
#include <algorithm>

#include "base/check.hpp"
#include "gpu/bench.hpp"

namespace shoal::bench::gpu {
namespace {

/// The expert-major row of each top-k slot, numbered by expert, then row; -1: expert elsewhere.
struct ExpertMajor {
  std::vector<std::int32_t> topk_rows;
  std::int64_t rows = 0;
};

ExpertMajor expert_major(const std::vector<std::int64_t>& topk_idx, std::int64_t local_experts) {
  std::vector<std::int64_t> next(static_cast<std::size_t>(local_experts) + 1);
  for (const std::int64_t expert : topk_idx)
    if (expert >= 0) ++next[static_cast<std::size_t>(expert) + 1];
  for (std::size_t expert = 1; expert < next.size(); ++expert) next[expert] += next[expert - 1];
  ExpertMajor result;
  result.rows = next.back();
  for (const std::int64_t expert : topk_idx)
    result.topk_rows.push_back(
        expert < 0 ? -1 : static_cast<std::int32_t>(next[static_cast<std::size_t>(expert)]++));
  return result;
}

/// Values of a contiguous or strided int64 tensor of two dimensions.
std::vector<std::int64_t> download(const TensorView& tensor) {
  std::vector<std::int64_t> values(static_cast<std::size_t>(tensor.size()));
  const auto row = static_cast<std::size_t>(tensor.shape[1]) * sizeof(std::int64_t);
  check(cudaMemcpy2D(values.data(), row, tensor.data,
                     static_cast<std::size_t>(tensor.strides[0]) * sizeof(std::int64_t), row,
                     static_cast<std::size_t>(tensor.shape[0]), cudaMemcpyDeviceToHost),
        "reading indices");
  return values;
}

}  // namespace

void run_reduced(World& world, Peers& peers, const Options& options) {
  const Shape& shape = options.shape;
  const Stream stream;
  ep::GroupOptions group_options = normal_options(options, shape.tokens);
  group_options.combine_staging = true;
  ep::Group group(world.team(), group_options);
  const DeviceBatch batch = make_device_batch(shape, shape.tokens, peers, 0, stream.get());
  const Tensor output = device_tensor(DataType::bfloat16, {shape.tokens, shape.hidden});
  Results results(peers, options, "reduced");
  const auto finish = [&] {
    group.synchronize();
    check(cudaStreamSynchronize(stream.get()), "waiting for a chain");
  };
  for (const std::int32_t sms : options.sms) {
    // PEs that share a GPU have freed the arrays of the round before: cudaFree waits for kernels.
    peers.barrier();
    const ep::Launch launch{.stream = stream.get(), .after = nullptr, .done = nullptr, .sms = sms};
    const ep::Routing routing = group.route(batch.topk_idx, launch);
    ep::DispatchOptions dispatch;
    dispatch.weights = batch.weights;
    dispatch.launch = launch;
    const ep::Dispatched received = group.dispatch(batch.x, routing, dispatch);
    finish();
    const ExpertMajor major = expert_major(download(received.topk_idx), group.local_experts());
    const Tensor topk_rows = upload(
        TensorView(major.topk_rows.data(), DataType::int32, {received.rows, group_options.top_k}));
    const Tensor outside = device_tensor(DataType::bfloat16, {received.rows, shape.hidden});
    const Tensor expanded = device_tensor(DataType::bfloat16, {major.rows, shape.hidden});
    const Tensor row_weights = device_tensor(DataType::float32, {major.rows});
    const Tensor slot_weights =
        device_tensor(DataType::float32, {received.rows, group_options.top_k});
    const Tensor out_weights =
        device_tensor(DataType::float32, {shape.tokens, group_options.top_k});
    const auto measure = [&](const char* name, const TensorView& y, bool summed,
                             const TensorView& weights = {}) {
      const Timing timing = time_chain(
          peers, stream.get(), shape,
          [&](std::int64_t) {
            ep::CombineOptions combine;
            combine.out = output;
            combine.launch = launch;
            if (summed) combine.topk_rows = topk_rows;
            combine.weights = weights;
            if (weights.defined()) combine.out_weights = out_weights;
            (void)group.combine(y, received.handle, combine);
          },
          finish);
      results.add({{"operation", name}, {"tokens", shape.tokens}, {"sms", sms}}, timing,
                  static_cast<double>(received.rows * shape.row_bytes()));
    };
    measure("combine in place", received.x, false);
    measure("combine in place, weights", received.x, false, slot_weights);
    measure("combine staged", outside, false);
    measure("combine staged, weights", outside, false, slot_weights);
    measure("combine reduced", expanded, true);
    measure("combine reduced, weights", expanded, true, row_weights);
  }
  group.close();
}

}  // namespace shoal::bench::gpu
