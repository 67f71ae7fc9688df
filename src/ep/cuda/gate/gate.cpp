// SPDX-License-Identifier: Apache-2.0
#include "ep/cuda/gate/gate.cuh"

#include "base/check.hpp"

namespace shoal::ep::cuda {
namespace {

/// Makes a GPU the current one of this thread while it lives.
class CurrentGpu {
 public:
  explicit CurrentGpu(int device) {
    checked(cudaGetDevice(&before_));
    checked(cudaSetDevice(device));
  }
  ~CurrentGpu() { (void)cudaSetDevice(before_); }
  CurrentGpu(const CurrentGpu&) = delete;
  CurrentGpu& operator=(const CurrentGpu&) = delete;

  static void checked(cudaError_t result) {
    require(result == cudaSuccess, Code::system, "SHOAL-N460: gate: {}",
            [&] { return cudaGetErrorString(result); });
  }

 private:
  int before_ = 0;
};

}  // namespace

void gate(const ConstTensorView& logits, const ConstTensorView& bias, const GateOptions& options,
          const GateArrays& to) {
  require(options.experts <= Gate::kMostExperts, Code::unsupported,
          "SHOAL-N508: GateOptions::experts is {}; on GPUs at most {}", options.experts,
          Gate::kMostExperts);
  const CurrentGpu current(logits.device.index);
  CurrentGpu::checked(launch_gate({.logits = logits.as<float>(),
                                   .bias = bias.defined() ? bias.as<float>() : nullptr,
                                   .topk_idx = to.topk_idx.as<std::int64_t>(),
                                   .topk_weights = to.topk_weights.as<float>(),
                                   .tokens = logits.shape[0],
                                   .experts = options.experts,
                                   .groups = options.groups,
                                   .groups_kept = options.groups_kept,
                                   .top_k = options.top_k,
                                   .softmax = options.score == GateScore::softmax,
                                   .normalize = options.normalize,
                                   .scaling = options.routed_scaling},
                                  static_cast<cudaStream_t>(to.stream)));
}

}  // namespace shoal::ep::cuda
