// SPDX-License-Identifier: Apache-2.0
// quiet.cu: waits until everything that kernels of this PE have started to send is complete. Before
// a group returns its memory: the last signals of an operation may still be on their way to it.
#include "ep/cuda/device/network.cuh"
#include "ep/cuda/normal/internode/kernels.cuh"

namespace shoal::ep::cuda {
namespace {

template <class Network>
__global__ void quiet_kernel(const __grid_constant__ device::World world) {
  if (threadIdx.x == 0) Network::wait_for_puts(world);
}

}  // namespace

void launch_quiet(const device::World& world, NetworkPath path, cudaStream_t stream) {
  NormalPlan plan;
  plan.blocks = 1;
  plan.warps = 1;
  launch(path == NetworkPath::nic ? quiet_kernel<ByNic> : quiet_kernel<ByProxy>, world, plan,
         stream);
}

void preload_quiet() {
  cudaFuncAttributes attributes;
  (void)cudaFuncGetAttributes(&attributes, quiet_kernel<ByProxy>);
  (void)cudaFuncGetAttributes(&attributes, quiet_kernel<ByNic>);
}

}  // namespace shoal::ep::cuda
