// SPDX-License-Identifier: Apache-2.0
// shoal/device/launch.cuh: launching kernels whose blocks or PEs wait for each other.
#pragma once

#include <shoal/config.hpp>

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>
#include <utility>

#include <shoal/device/host.hpp>
#include <shoal/error.hpp>

namespace shoal::device {

/// Grid and block of a kernel.
struct LaunchShape {
  dim3 grid{0, 1, 1};  ///< x = 0: as many blocks as are resident at once
  dim3 block{256, 1, 1};
  std::size_t shared_bytes = 0;  ///< dynamic shared memory of a block
};

namespace detail {

inline void check_cuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // reported here: the next caller must not see it
  throw Error(Code::system, std::string(what) + ": " + cudaGetErrorName(error) + ": " +
                                cudaGetErrorString(error));
}

/// Makes a GPU current for the lifetime of the object.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device) {
    check_cuda(cudaGetDevice(&before_), "cudaGetDevice");
    check_cuda(cudaSetDevice(device), "cudaSetDevice");
  }
  ~CurrentDevice() { cudaSetDevice(before_); }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int before_ = 0;
};

}  // namespace detail

/// The number of blocks of this kernel that this PE's GPU runs at once, divided evenly among the
/// PEs that use the GPU.
///
/// Loads the kernel as well, which may wait for running kernels: call it (or launch_collective)
/// once before anything waits. Throws Error{invalid_argument} when no block fits or the block size
/// exceeds the kernel's limit, Error{system} with CUDA's reason.
template <typename... Parameters>
int resident_blocks(const shoal::World& world, void (*kernel)(Parameters...), dim3 block,
                    std::size_t shared_bytes) {
  const cuda::LaunchContext context = cuda::launch_context(world);
  const detail::CurrentDevice current(context.device);
  const std::size_t threads = static_cast<std::size_t>(block.x) * block.y * block.z;
  cudaFuncAttributes attributes{};
  detail::check_cuda(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel)),
                     "launch_collective: cudaFuncGetAttributes");
  if (threads == 0 || threads > static_cast<std::size_t>(attributes.maxThreadsPerBlock))
    throw Error(Code::invalid_argument, "launch_collective: a block of " + std::to_string(threads) +
                                            " threads; this kernel allows 1 to " +
                                            std::to_string(attributes.maxThreadsPerBlock));
  if (shared_bytes > static_cast<std::size_t>(attributes.maxDynamicSharedSizeBytes))
    detail::check_cuda(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                            cudaFuncAttributeMaxDynamicSharedMemorySize,
                                            static_cast<int>(shared_bytes)),
                       "launch_collective: the dynamic shared memory of a block");
  int per_multiprocessor = 0, multiprocessors = 0;
  detail::check_cuda(cudaOccupancyMaxActiveBlocksPerMultiprocessor(
                         &per_multiprocessor, kernel, static_cast<int>(threads), shared_bytes),
                     "launch_collective: occupancy");
  detail::check_cuda(
      cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, context.device),
      "launch_collective: multiprocessors");
  const int blocks = per_multiprocessor * multiprocessors / context.pes_on_device;
  if (blocks == 0)
    throw Error(Code::invalid_argument,
                "launch_collective: not one block of " + std::to_string(threads) + " threads and " +
                    std::to_string(shared_bytes) + " bytes of dynamic shared memory fits: " +
                    std::to_string(per_multiprocessor) + " per multiprocessor, " +
                    std::to_string(multiprocessors) + " multiprocessors, shared by " +
                    std::to_string(context.pes_on_device) + " PEs");
  return blocks;
}

/// Launches `kernel(arguments...)` cooperatively, so that all of its blocks run at once, on this
/// PE's high-priority stream. The kernel runs after the work queued on `stream` so far and before
/// work queued there later. Returns at once; can be captured in a CUDA graph.
///
///   shoal::device::launch_collective(world, stream, {.block = 256}, ring_kernel, device_world, n);
///
/// Throws Error{invalid_argument} when the grid does not fit alongside the same kernel of the other
/// PEs on this GPU, stating how many blocks do; Error{unsupported} when the world has no device
/// side. The caller ensures that other kernels leave room.
template <typename... Parameters, typename... Arguments>
void launch_collective(const shoal::World& world, cudaStream_t stream, LaunchShape shape,
                       void (*kernel)(Parameters...), Arguments&&... arguments) {
  static_assert(sizeof...(Parameters) == sizeof...(Arguments),
                "the kernel takes another number of arguments");
  const int fitting = resident_blocks(world, kernel, shape.block, shape.shared_bytes);
  if (shape.grid.x == 0) shape.grid = dim3(static_cast<unsigned>(fitting), 1, 1);
  const std::size_t blocks = static_cast<std::size_t>(shape.grid.x) * shape.grid.y * shape.grid.z;
  const cuda::LaunchContext context = cuda::launch_context(world);
  if (blocks == 0 || blocks > static_cast<std::size_t>(fitting))
    throw Error(Code::invalid_argument, "launch_collective: a grid of " + std::to_string(blocks) +
                                            " blocks; at once fit 1 to " + std::to_string(fitting) +
                                            " of this kernel and block size, with " +
                                            std::to_string(context.pes_on_device) +
                                            " PEs on the GPU");

  const detail::CurrentDevice current(context.device);
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeCooperative;
  attribute.val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = context.priority;
  config.attrs = &attribute;
  config.numAttrs = 1;
  cuda::order(world, stream, context.priority);
  detail::check_cuda(
      cudaLaunchKernelEx(&config, kernel,
                         static_cast<Parameters>(std::forward<Arguments>(arguments))...),
      "launch_collective");
  cuda::order(world, context.priority, stream);
}

}  // namespace shoal::device
