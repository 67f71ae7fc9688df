// SPDX-License-Identifier: Apache-2.0
// list_node_tokens.cu: the tokens that go to each node, from their indices among them.
//
// Moves: 4 B for each token and node. Waits for nothing and publishes nothing.
#include "ep/cuda/normal/internode/kernels.cuh"

namespace shoal::ep::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    list_node_tokens_kernel(const __grid_constant__ ListNodeTokens params) {
  const auto token = static_cast<std::int32_t>(blockIdx.x * kThreads + threadIdx.x);
  if (token >= params.tokens) return;
  const NodeRouting& routing = params.routing;
  for (std::int32_t c = 0; c < routing.copies_per_token; ++c) {
    const std::int32_t copy =
        routing.copies[static_cast<std::int64_t>(token) * routing.copies_per_token + c];
    if (copy == kNoCopy) return;
    routing.tokens[copy_rank(copy) * routing.stride + copy_row_index(copy)] = token;
  }
}

}  // namespace

void launch_list_node_tokens(const ListNodeTokens& params, cudaStream_t stream) {
  if (params.tokens == 0) return;
  NormalPlan plan;
  plan.blocks = (params.tokens + kThreads - 1) / kThreads;
  plan.warps = kThreads / 32;
  launch(list_node_tokens_kernel, params, plan, stream);
}

void preload_list_node_tokens() {
  cudaFuncAttributes attributes;
  (void)cudaFuncGetAttributes(&attributes, list_node_tokens_kernel);
}

}  // namespace shoal::ep::cuda
