// SPDX-License-Identifier: Apache-2.0
// Operations on streams as kernels. They move no more than a few hundred KiB each: what is larger
// goes to the copy engines.
//
// Memory order: a kernel starts when what was queued before it is complete, so a signal (a release
// at system scope) covers all earlier work of its stream, copies included. Waits acquire, and what
// is queued after them starts later.
#include <algorithm>

#include "device/cuda/start.cuh"
#include "device/cuda/stream_kernels.hpp"
#include "shoal/device/collective.cuh"
#include "shoal/device/functions.cuh"

namespace shoal::detail::kernels {
namespace {

namespace dd = shoal::device::detail;
using device::Block;
using device::Thread;

constexpr unsigned kThreads = 256;
/// Bytes that a block keeps in flight: the share of a block in a copy.
constexpr std::size_t kBytesPerBlock = kThreads * dd::kUnroll * sizeof(ulonglong2);
/// Few blocks saturate a link (about 8 multiprocessors), and the GPU has other things to do.
constexpr std::size_t kMaxBlocks = 16;

/// Blocks get whole multiples of 16 bytes, so that all of them have the alignment of the first.
__global__ void copy_kernel(std::uint8_t* target, const std::uint8_t* source, std::size_t bytes,
                            std::size_t per_block) {
  const std::size_t first = blockIdx.x * per_block;
  if (first >= bytes) return;
  dd::copy<dd::Direction::get>(threadIdx.x, blockDim.x, target + first, source + first,
                               bytes - first < per_block ? bytes - first : per_block);
}

__global__ void strided_kernel(std::uint8_t* target, std::size_t target_stride,
                               const std::uint8_t* source, std::size_t source_stride,
                               std::size_t element, std::size_t count) {
  dd::copy_strided<dd::Direction::get>(
      static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x,
      static_cast<std::size_t>(gridDim.x) * blockDim.x, target, target_stride, source,
      source_stride, element, count);
}

__global__ void store_kernel(void* target, std::uint64_t value, std::size_t width) {
  switch (width) {
    case 1:
      *static_cast<std::uint8_t*>(target) = static_cast<std::uint8_t>(value);
      break;
    case 2:
      *static_cast<std::uint16_t*>(target) = static_cast<std::uint16_t>(value);
      break;
    case 4:
      ptx::st_release_sys(static_cast<std::uint32_t*>(target), static_cast<std::uint32_t>(value));
      break;
    default:
      ptx::st_release_sys(static_cast<std::uint64_t*>(target), value);
  }
}

template <typename T>
__global__ void atomic_kernel(AtomicOp op, T* word, T operand, T compare, T* result) {
  const T before = dd::atomic_on(op, word, operand, compare);
  if (result != nullptr) *result = before;
}

__device__ void raise(std::uint64_t* word, SignalOp op, std::uint64_t value) {
  if (op == SignalOp::add) {
    ptx::red_release_sys_add(word, value);
  } else {
    ptx::st_release_sys(word, value);
  }
}

__global__ void signal_kernel(std::uint64_t* word, SignalOp op, std::uint64_t value) {
  ptx::fence_acq_rel_sys();
  raise(word, op, value);
}

__global__ void copy_signal_kernel(std::uint8_t* target, const std::uint8_t* source,
                                   std::size_t bytes, std::uint64_t* word, SignalOp op,
                                   std::uint64_t value) {
  dd::copy<dd::Direction::get>(threadIdx.x, blockDim.x, target, source, bytes);
  __syncthreads();
  if (threadIdx.x == 0) raise(word, op, value);
}

template <typename T>
__global__ void wait_kernel(const __grid_constant__ device::World world, const T* variable,
                            Compare compare, T value, Pe setter) {
  dd::wait_for<T>(world, device::FailureKind::wait_until, variable, compare, value, setter);
}

template <typename T>
__global__ void test_kernel(const T* variable, Compare compare, T value, int* result) {
  *result = device::test(Thread{}, variable, compare, value) ? 1 : 0;
}

/// Counts a kernel that has waited for the proxy. nullptr: it is not counted.
__device__ void count_end(std::uint64_t* ended) {
  if (ended != nullptr) ptx::red_release_sys_add(ended, 1);
}

/// Can be set up while the kernel before it ends, and lets the next one do the same.
__global__ void barrier_kernel(const __grid_constant__ device::World world,
                               const __grid_constant__ device::Team team, std::uint64_t* ended) {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
#endif
  device::barrier(Block{}, world, team);
  if (threadIdx.x == 0) count_end(ended);
}

/// One thread: requests of a thread to one PE complete in order, so the wait for the last covers
/// all.
__device__ void run(const device::World& world, const Posts& posts) {
  device::proxy::Request request = posts.request;
  if (posts.result != nullptr) {
    const std::uint64_t before =
        dd::atomic_unreached(world, request.op, world.heap + request.offset, request.operand,
                             request.compare, request.width, request.pe, true);
    if (request.width == 8)
      *static_cast<std::uint64_t*>(posts.result) = before;
    else
      *static_cast<std::uint32_t*>(posts.result) = static_cast<std::uint32_t>(before);
    return;
  }
  for (std::size_t i = 0; i < posts.count; ++i) {
    if (!dd::post(world, request, posts.complete && i + 1 == posts.count)) return;
    request.offset += posts.offset_stride;
    request.source += posts.source_stride;
  }
}

__global__ void post_kernel(const __grid_constant__ device::World world,
                            const __grid_constant__ Posts posts, std::uint64_t* ended) {
  run(world, posts);
  count_end(ended);
}

__global__ void drain_kernel(const __grid_constant__ device::World world, std::uint64_t* ended) {
  dd::drain_proxy(world);
  count_end(ended);
}

__global__ void __launch_bounds__(kThreads)
    fetch_block_kernel(const __grid_constant__ device::World world,
                       const __grid_constant__ device::AllToAllV v, Pe index, Pe me, Pe pe,
                       std::uint64_t* ended) {
  __shared__ std::uint64_t shared_bytes, shared_from;
  if (threadIdx.x == 0) {
    std::uint64_t bytes = device::get_value(world, v.send_bytes + me, pe);
    shared_from = device::get_value(world, v.send_offsets + me, pe);
    if (v.received != nullptr) v.received[index] = bytes;
    if (v.receive_room != nullptr && bytes > v.receive_room[index]) {
      dd::report_block(world, pe, bytes, v.receive_room[index]);
      bytes = v.receive_room[index];
    }
    const std::size_t offset = dd::heap_offset(world, v.source);
    if (offset > world.heap_bytes || shared_from > world.heap_bytes - offset ||
        bytes > world.heap_bytes - offset - shared_from) {
      dd::report_unreached(world, static_cast<const std::byte*>(v.source) + shared_from, bytes, pe);
      bytes = 0;
    }
    shared_bytes = bytes;
  }
  __syncthreads();
  if (shared_bytes != 0)
    device::get_bytes(Block{}, world, static_cast<std::byte*>(v.target) + v.receive_offsets[index],
                      static_cast<const std::byte*>(v.source) + shared_from, shared_bytes, pe);
  if (threadIdx.x == 0) count_end(ended);
}

/// Calls `launch` with a value of the type that the condition's variable has.
template <typename Launch>
const char* with_type(const Condition& condition, Launch&& launch) {
  if (condition.width == 8) {
    if (condition.is_signed) {
      launch(std::int64_t{});
    } else {
      launch(std::uint64_t{});
    }
  } else if (condition.is_signed) {
    launch(std::int32_t{});
  } else {
    launch(std::uint32_t{});
  }
  return started();
}

template <typename T>
void launch_atomic(cuda::Stream stream, AtomicOp op, void* word, std::uint64_t operand,
                   std::uint64_t compare, void* result) {
  atomic_kernel<T><<<1, 1, 0, stream>>>(op, static_cast<T*>(word), static_cast<T>(operand),
                                        static_cast<T>(compare), static_cast<T*>(result));
}

}  // namespace

const char* load() {
  const char* const failure = load_kernels(
      copy_kernel, strided_kernel, store_kernel, atomic_kernel<std::uint32_t>,
      atomic_kernel<std::uint64_t>, signal_kernel, copy_signal_kernel, wait_kernel<std::int32_t>,
      wait_kernel<std::uint32_t>, wait_kernel<std::int64_t>, wait_kernel<std::uint64_t>,
      test_kernel<std::int32_t>, test_kernel<std::uint32_t>, test_kernel<std::int64_t>,
      test_kernel<std::uint64_t>, barrier_kernel, post_kernel, fetch_block_kernel, drain_kernel);
  return failure != nullptr ? failure : load_transfers();
}

const char* copy(cuda::Stream stream, void* target, const void* source, std::size_t bytes) {
  const std::size_t blocks =
      std::clamp((bytes + kBytesPerBlock - 1) / kBytesPerBlock, std::size_t{1}, kMaxBlocks);
  const std::size_t per_block = ((bytes + blocks - 1) / blocks + 15) / 16 * 16;
  copy_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
      static_cast<std::uint8_t*>(target), static_cast<const std::uint8_t*>(source), bytes,
      per_block);
  return started();
}

const char* copy_strided(cuda::Stream stream, void* target, std::size_t target_stride,
                         const void* source, std::size_t source_stride, std::size_t element,
                         std::size_t count) {
  const std::size_t blocks =
      std::clamp((count + kThreads - 1) / kThreads, std::size_t{1}, kMaxBlocks);
  strided_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
      static_cast<std::uint8_t*>(target), target_stride, static_cast<const std::uint8_t*>(source),
      source_stride, element, count);
  return started();
}

const char* store(cuda::Stream stream, void* target, std::uint64_t value, std::size_t width) {
  store_kernel<<<1, 1, 0, stream>>>(target, value, width);
  return started();
}

const char* atomic(cuda::Stream stream, AtomicOp op, void* word, std::uint64_t operand,
                   std::uint64_t compare, std::size_t width, void* result) {
  if (width == 8) {
    launch_atomic<std::uint64_t>(stream, op, word, operand, compare, result);
  } else {
    launch_atomic<std::uint32_t>(stream, op, word, operand, compare, result);
  }
  return started();
}

const char* signal(cuda::Stream stream, std::uint64_t* word, SignalOp op, std::uint64_t value) {
  signal_kernel<<<1, 1, 0, stream>>>(word, op, value);
  return started();
}

const char* copy_signal(cuda::Stream stream, void* target, const void* source, std::size_t bytes,
                        std::uint64_t* word, SignalOp op, std::uint64_t value) {
  copy_signal_kernel<<<1, kThreads, 0, stream>>>(static_cast<std::uint8_t*>(target),
                                                 static_cast<const std::uint8_t*>(source), bytes,
                                                 word, op, value);
  return started();
}

const char* wait(cuda::Stream stream, const device::World& world, const Condition& condition) {
  return with_type(condition, [&]<typename T>(T) {
    wait_kernel<T><<<1, 1, 0, stream>>>(world, static_cast<const T*>(condition.variable),
                                        condition.compare, static_cast<T>(condition.value),
                                        condition.setter);
  });
}

const char* test(cuda::Stream stream, const Condition& condition, int* result) {
  return with_type(condition, [&]<typename T>(T) {
    test_kernel<T><<<1, 1, 0, stream>>>(static_cast<const T*>(condition.variable),
                                        condition.compare, static_cast<T>(condition.value), result);
  });
}

const char* post(cuda::Stream stream, const device::World& world, const Posts& posts,
                 std::uint64_t* ended) {
  post_kernel<<<1, 1, 0, stream>>>(world, posts, ended);
  return started();
}

const char* fetch_block(cuda::Stream stream, const device::World& world,
                        const device::AllToAllV& arguments, Pe index, Pe me, Pe pe,
                        std::uint64_t* ended) {
  fetch_block_kernel<<<1, kThreads, 0, stream>>>(world, arguments, index, me, pe, ended);
  return started();
}

const char* drain(cuda::Stream stream, const device::World& world, std::uint64_t* ended) {
  drain_kernel<<<1, 1, 0, stream>>>(world, ended);
  return started();
}

const char* barrier(cuda::Stream stream, const device::World& world, const device::Team& team,
                    bool alone, std::uint64_t* ended) {
  // A thread per member, so that signals go out and are waited for side by side.
  const unsigned threads =
      std::clamp((static_cast<unsigned>(world.n_pes) + 31) / 32 * 32, 32U, kThreads);
  return start(stream, 1, threads, alone, barrier_kernel, world, team, ended);
}

}  // namespace shoal::detail::kernels
