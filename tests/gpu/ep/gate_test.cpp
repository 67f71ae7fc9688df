// SPDX-License-Identifier: Apache-2.0
// The gate on a GPU: the bits of the host; on streams of the caller and in graphs.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "checks/ep/gates.hpp"
#include "checks/ep/gpu_normal.hpp"
#include "support/cuda/graph.hpp"
#include "support/expect_error.hpp"

namespace shoal::test {
namespace {

/// A case on the current GPU, and a stream.
class GpuGate {
 public:
  explicit GpuGate(const GateCase& c) : case_(c) {
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
    logits = upload(c.logits, DataType::float32, {c.tokens, c.options.experts});
    if (!c.bias.empty()) bias = upload(c.bias, DataType::float32, {c.options.experts});
    const auto slots = static_cast<std::size_t>(c.tokens * c.options.top_k);
    to.topk_idx =
        upload(std::vector<std::int64_t>(slots, -7), DataType::int64, {c.tokens, c.options.top_k});
    to.topk_weights =
        upload(std::vector<float>(slots, -7), DataType::float32, {c.tokens, c.options.top_k});
    to.stream = stream_;
  }
  ~GpuGate() {
    for (void* const memory : memory_) (void)cudaFree(memory);
    (void)cudaStreamDestroy(stream_);
  }
  GpuGate(const GpuGate&) = delete;
  GpuGate& operator=(const GpuGate&) = delete;

  cudaStream_t stream() const { return stream_; }
  void run() const { ep::gate(logits, bias, case_.options, to); }

  template <typename T>
  std::vector<T> read(const TensorView& view) const {
    std::vector<T> values(static_cast<std::size_t>(view.size()));
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(values.data(), view.data, view.bytes(), cudaMemcpyDeviceToHost),
              cudaSuccess);
    return values;
  }

  TensorView logits, bias;
  ep::GateArrays to;

 private:
  template <typename T>
  TensorView upload(const std::vector<T>& values, DataType dtype,
                    std::initializer_list<std::int64_t> shape) {
    void* memory = nullptr;
    const std::size_t bytes = std::max<std::size_t>(values.size() * sizeof(T), 16);
    EXPECT_EQ(cudaMalloc(&memory, bytes), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(memory, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice),
              cudaSuccess);
    memory_.push_back(memory);
    TensorView view(memory, dtype, shape);
    view.device = {DeviceKind::cuda, 0};
    return view;
  }

  const GateCase& case_;
  cudaStream_t stream_ = nullptr;
  std::vector<void*> memory_;
};

void expect_bits_of_the_host(const GpuGate& gate, const GateCase& c) {
  const ep::Gated want = gate_on_host(c);
  const auto idx = gate.read<std::int64_t>(gate.to.topk_idx);
  const auto weights = gate.read<float>(gate.to.topk_weights);
  EXPECT_EQ(std::memcmp(idx.data(), want.topk_idx.data, want.topk_idx.bytes()), 0) << c.describe();
  EXPECT_EQ(std::memcmp(weights.data(), want.topk_weights.data, want.topk_weights.bytes()), 0)
      << c.describe();
}

TEST(EpGpuGate, SmallCasesHaveTheBitsOfTheHost) {
  SHOAL_SKIP_WITHOUT_GPU();
  for (unsigned number = 0; number < 60; ++number) {
    const GateCase c = gate_case(number, 100, 2560);
    const GpuGate gate(c);
    gate.run();
    expect_bits_of_the_host(gate, c);
    if (HasFailure()) return;
  }
}

/// The sizes of DeepSeek-V3, more tokens than warps, both scores.
TEST(EpGpuGate, ManyTokensHaveTheBitsOfTheHost) {
  SHOAL_SKIP_WITHOUT_GPU();
  for (const auto score : {ep::GateScore::sigmoid, ep::GateScore::softmax}) {
    GateCase c{.options = {.experts = 256, .groups = 8, .groups_kept = 4, .score = score},
               .logits = {},
               .bias = {},
               .tokens = 9000};
    std::mt19937 random(5);
    std::normal_distribution<float> normal(0, 3);
    for (std::int64_t i = 0; i < c.tokens * 256; ++i) c.logits.push_back(normal(random));
    for (int e = 0; e < 256; ++e) c.bias.push_back(0.05f * normal(random));
    const GpuGate gate(c);
    gate.run();
    expect_bits_of_the_host(gate, c);
  }
}

TEST(EpGpuGate, SmallGraphsReplayIt) {
  SHOAL_SKIP_WITHOUT_GPU();
  const GateCase c = gate_case(12, 100, 300);
  const GpuGate gate(c);
  {
    Graph graph(gate.stream(), [&] { gate.run(); });
    EXPECT_EQ(gate.read<std::int64_t>(gate.to.topk_idx),
              std::vector<std::int64_t>(static_cast<std::size_t>(c.tokens * c.options.top_k), -7));
    graph.replay();
    expect_bits_of_the_host(gate, c);
  }
}

TEST(EpGpuGate, SmallErrors) {
  SHOAL_SKIP_WITHOUT_GPU();
  GateCase c{.options = {.experts = 8, .top_k = 2},
             .logits = std::vector<float>(3 * 8, 1.0f),
             .bias = {},
             .tokens = 3};
  c.logits[8 + 3] = NAN;
  const GpuGate gate(c);
  gate.run();
  const auto idx = gate.read<std::int64_t>(gate.to.topk_idx);
  const auto weights = gate.read<float>(gate.to.topk_weights);
  EXPECT_EQ(idx, (std::vector<std::int64_t>{0, 1, -1, -1, 0, 1}));
  for (std::size_t i = 0; i < weights.size(); ++i) EXPECT_EQ(std::isnan(weights[i]), i / 2 == 1);

  const auto refused = [&](Code code, const char* text, const auto& change) {
    TensorView logits = gate.logits;
    ep::GateOptions options = c.options;
    ep::GateArrays to = gate.to;
    change(logits, options, to);
    expect_error(code, text, [&] { ep::gate(logits, {}, options, to); });
  };
  refused(Code::invalid_argument, "GateArrays.topk_idx is int64 [3, 1]",
          [](auto&, auto&, auto& to) { to.topk_idx.shape[1] = 1; });
  refused(Code::invalid_argument, "is wanted, where the logits are",
          [](auto&, auto&, auto& to) { to.topk_weights.device = {}; });
  refused(Code::unsupported, "GateOptions::experts is 5000; on GPUs at most 4096",
          [](auto& logits, auto& options, auto&) {
            options.experts = 5000;
            logits.shape[1] = logits.strides[0] = 5000;
          });
  expect_error(Code::unsupported, "are in GPU memory; give arrays",
               [&] { ep::gate(gate.logits, {}, c.options); });
}

}  // namespace
}  // namespace shoal::test
