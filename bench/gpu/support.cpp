// SPDX-License-Identifier: Apache-2.0
// Inputs in device memory, chains and their times.
#include <algorithm>
#include <cstring>
#include <set>

#include "base/check.hpp"
#include "gpu/bench.hpp"

namespace shoal::bench::gpu {

void check(cudaError_t status, const char* what) {
  require(status == cudaSuccess, Code::system, "{}: {}: {}", what, cudaGetErrorName(status),
          cudaGetErrorString(status));
}

std::vector<std::vector<double>> Peers::gather(const std::vector<double>& mine) {
  std::vector<std::vector<double>> all;
  for (const std::vector<std::byte>& bytes :
       bootstrap_.all_gather(std::as_bytes(std::span(mine)), "benchmark results")) {
    all.emplace_back(bytes.size() / sizeof(double));
    std::memcpy(all.back().data(), bytes.data(), bytes.size());
  }
  return all;
}

Tensor device_tensor(DataType dtype, std::initializer_list<std::int64_t> shape) {
  TensorView view(nullptr, dtype, shape);
  check(cudaGetDevice(&view.device.index), "finding this PE's GPU");
  view.device.kind = DeviceKind::cuda;
  const std::size_t bytes = std::max<std::size_t>(view.bytes(), 1);
  check(cudaMalloc(&view.data, bytes), "allocating GPU memory");
  return Tensor(view, std::shared_ptr<void>(view.data, [](void* memory) { cudaFree(memory); }));
}

Tensor upload(const TensorView& host) {
  Tensor copy = host.rank == 1 ? device_tensor(host.dtype, {host.shape[0]})
                               : device_tensor(host.dtype, {host.shape[0], host.shape[1]});
  check(cudaMemcpy(copy.data, host.data, host.bytes(), cudaMemcpyHostToDevice),
        "copying to the GPU");
  return copy;
}

TensorView first_rows(const TensorView& tensor, std::int64_t rows) {
  TensorView view = tensor;
  view.shape[0] = rows;
  return view;
}

Tensor expert_factors(const ep::Group& group, Pe me) {
  const std::int64_t first = group.first_expert()[static_cast<std::size_t>(me)];
  const Tensor factors = Tensor::empty(DataType::float32, {group.max_local_experts()});
  for (std::int64_t e = 0; e < factors.size(); ++e)
    factors.as<float>()[e] = e < group.local_experts() ? expert_factor(first + e) : 0;
  return upload(factors);
}

DeviceBatch make_device_batch(const Shape& shape, std::int64_t tokens, const Peers& peers,
                              std::int32_t set, cudaStream_t stream) {
  const Batch host = make_batch(shape, tokens, peers.me(), set);
  const Tensor factor = Tensor::empty(DataType::float32, {tokens}),
               size = Tensor::empty(DataType::float32, {tokens}),
               ranks = Tensor::empty(DataType::float32, {tokens});
  const ep::detail::Partition spread = shape.spread(peers.count());
  for (std::int64_t token = 0; token < tokens; ++token) {
    float sum = 0, magnitude = 0;
    std::set<std::int32_t> ranks_of_token;
    for (std::int64_t k = 0; k < shape.top_k; ++k) {
      const std::int64_t expert = host.topk_idx.as<std::int64_t>()[token * shape.top_k + k];
      const float term = host.weights.as<float>()[token * shape.top_k + k] * expert_factor(expert);
      sum += term;
      magnitude += std::abs(term);
      ranks_of_token.insert(spread.place(expert).rank);
    }
    factor.as<float>()[token] = sum;
    size.as<float>()[token] = magnitude;
    ranks.as<float>()[token] = static_cast<float>(ranks_of_token.size());
  }
  DeviceBatch batch;
  batch.x = upload(host.x);
  batch.topk_idx = upload(host.topk_idx);
  batch.weights = upload(host.weights);
  batch.factor = upload(factor);
  batch.size = upload(size);
  batch.ranks = upload(ranks);
  batch.quantized = device_tensor(DataType::float8_e4m3, {tokens, shape.hidden});
  batch.scales = device_tensor(DataType::float32, {tokens, (shape.hidden + 127) / 128});
  batch.first_bad = device_tensor(DataType::int64, {1});
  quantize(stream, batch.x, batch.quantized, batch.scales);
  check(cudaStreamSynchronize(stream), "making the inputs");
  return batch;
}

Stream::Stream() {
  int lowest = 0, highest = 0;
  check(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "asking for stream priorities");
  check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, highest), "making a stream");
}

Stream::~Stream() {
  cudaStreamDestroy(stream_);
}

Marks::~Marks() {
  for (const cudaEvent_t event : events_) cudaEventDestroy(event);
}

void Marks::reserve(std::size_t count) {
  while (events_.size() < count) {
    cudaEvent_t event{};
    check(cudaEventCreate(&event), "making an event");
    events_.push_back(event);
  }
}

void Marks::mark(cudaStream_t stream) {
  reserve(used_ + 1);
  check(cudaEventRecord(events_[used_++], stream), "recording an event");
}

double Marks::seconds(std::size_t from, std::size_t to) const {
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, events_[from], events_[to]), "reading events");
  return milliseconds * 1e-3;
}

namespace {

/// Runs a chain of so many operations on all PEs together; what it put on the links, per operation.
std::optional<LinkBytes> links_of_chain(Peers& peers, std::int64_t operations,
                                        const std::function<void()>& chain) {
  peers.barrier();  // all PEs have finished sending
  const auto before = read_links();
  peers.barrier();
  chain();
  peers.barrier();
  auto links = read_links();
  if (!before || !links) return std::nullopt;
  for (std::size_t i = 0; i < links->size(); ++i)
    (*links)[i] = ((*links)[i] - (*before)[i]) / static_cast<double>(operations);
  return links;
}

}  // namespace

Timing time_chain(Peers& peers, cudaStream_t stream, const Shape& shape, const Operation& operation,
                  const Finish& finish) {
  Marks marks;
  marks.reserve(2);
  const auto links = links_of_chain(peers, shape.dropped + shape.iterations, [&] {
    for (std::int64_t i = 0; i < shape.dropped; ++i) operation(i);
    marks.mark(stream);
    for (std::int64_t i = 0; i < shape.iterations; ++i) operation(shape.dropped + i);
    marks.mark(stream);
    finish();
  });
  return {marks.seconds(0, 1) / static_cast<double>(shape.iterations), {}, links};
}

Timing time_graph(Peers& peers, cudaStream_t stream, const Shape& shape, const Operation& operation,
                  const Finish& finish) {
  cudaGraph_t graph{};
  cudaGraphExec_t replay{};
  // Thread-local: PEs that are threads of this process continue with their own work meanwhile.
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "beginning a capture");
  for (std::int64_t i = 0; i < kSets; ++i) operation(i);
  check(cudaStreamEndCapture(stream, &graph), "ending a capture");
  const std::shared_ptr<void> graph_owner(
      graph, [](void* owned) { cudaGraphDestroy(static_cast<cudaGraph_t>(owned)); });
  check(cudaGraphInstantiate(&replay, graph, 0), "instantiating a graph");
  const std::shared_ptr<void> replay_owner(
      replay, [](void* owned) { cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(owned)); });

  Marks marks;
  marks.reserve(2);
  const auto replays = [](std::int64_t operations) { return (operations + kSets - 1) / kSets; };
  const auto launch = [&] { check(cudaGraphLaunch(replay, stream), "replaying a graph"); };
  const auto links =
      links_of_chain(peers, kSets * (replays(shape.dropped) + replays(shape.iterations)), [&] {
        for (std::int64_t i = 0; i < replays(shape.dropped); ++i) launch();
        marks.mark(stream);
        for (std::int64_t i = 0; i < replays(shape.iterations); ++i) launch();
        marks.mark(stream);
        finish();
      });
  return {marks.seconds(0, 1) / static_cast<double>(kSets * replays(shape.iterations)), {}, links};
}

std::vector<Timing> time_steps(Peers& peers, const Shape& shape, const Steps& steps,
                               const std::function<void(std::int64_t, Marks&)>& round,
                               const Finish& finish) {
  Marks marks;
  marks.reserve(steps.marks * static_cast<std::size_t>(shape.iterations));
  peers.barrier();
  for (std::int64_t i = 0; i < shape.dropped + shape.iterations; ++i) {
    if (i == shape.dropped) marks.clear();
    round(i, marks);
  }
  finish();
  std::vector<Timing> timings;
  for (std::size_t step = 0; step < steps.count; ++step) {
    Timing& timing = timings.emplace_back();
    for (std::size_t first = step * steps.distance; first + 1 < marks.count(); first += steps.marks)
      timing.samples.push_back(marks.seconds(first, first + 1));
    for (const double sample : timing.samples)
      timing.mean += sample / static_cast<double>(timing.samples.size());
  }
  return timings;
}

void check_output(const DeviceBatch& batch, const TensorView& out, const TensorView& factor,
                  const TensorView& size, const ep::detail::CombineError& error,
                  cudaStream_t stream, const std::string& what, std::int64_t block) {
  const Tensor& first_bad = batch.first_bad;
  check(cudaMemsetAsync(first_bad.data, 0xff, sizeof(std::uint64_t), stream),
        "clearing the result of a comparison");
  compare(stream, first_rows(batch.x, out.shape[0]), out, factor, size, error, block,
          first_bad.as<std::uint64_t>());
  std::uint64_t bad = 0;
  check(cudaMemcpyAsync(&bad, first_bad.data, sizeof bad, cudaMemcpyDeviceToHost, stream),
        "reading a comparison");
  check(cudaStreamSynchronize(stream), "comparing results");
  if (bad == ~std::uint64_t{0}) return;
  const std::uint64_t token = bad / static_cast<std::uint64_t>(out.shape[1]);
  std::uint16_t x = 0, got = 0;
  float wanted = 0;
  check(cudaMemcpy(&x, batch.x.as<std::uint16_t>() + bad, sizeof x, cudaMemcpyDeviceToHost),
        "reading a wrong value");
  check(cudaMemcpy(&got, out.as<std::uint16_t>() + bad, sizeof got, cudaMemcpyDeviceToHost),
        "reading a wrong value");
  check(cudaMemcpy(&wanted, factor.as<float>() + token, sizeof wanted, cudaMemcpyDeviceToHost),
        "reading a factor");
  const auto value = [](std::uint16_t bits) {
    const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
    return __builtin_bit_cast(float, wide);
  };
  fail(Code::mismatch, "{}: token {}, channel {} is {}; expected {}", what, token,
       bad % static_cast<std::uint64_t>(out.shape[1]), value(got), value(x) * wanted);
}

}  // namespace shoal::bench::gpu
