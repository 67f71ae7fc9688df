// SPDX-License-Identifier: Apache-2.0
#include "support/cuda/device_tensors.hpp"

#include <cstdlib>

#ifdef SHOAL_WITH_CUDA

#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "memory/cuda/stream_pool.hpp"
#include "memory/device.hpp"
#include "pe/memory.hpp"
#include "team/team_state.hpp"
#include "world/state.hpp"

namespace shoal::test {
namespace {

constexpr std::size_t kBounceBytes = std::size_t{4} << 20;
constexpr std::chrono::seconds kLongest{60};

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  (void)cudaGetLastError();
  throw std::runtime_error(fmt::format("{}: {}", what, cudaGetErrorString(status)));
}

/// Pinned host memory, kept until the process ends: freeing it would synchronize the device.
class Bounce {
 public:
  Bounce() {
    const std::lock_guard lock(mutex());
    if (!spare().empty()) {
      memory_ = spare().back();
      spare().pop_back();
      return;
    }
    check(cudaHostAlloc(&memory_, kBounceBytes, cudaHostAllocPortable), "pinned memory of a test");
  }
  ~Bounce() {
    const std::lock_guard lock(mutex());
    spare().push_back(memory_);
  }
  Bounce(const Bounce&) = delete;
  Bounce& operator=(const Bounce&) = delete;
  std::byte* get() const { return static_cast<std::byte*>(memory_); }

 private:
  static std::mutex& mutex() {
    static auto* const mutex = new std::mutex;
    return *mutex;
  }
  static std::vector<void*>& spare() {
    static auto* const spare = new std::vector<void*>;
    return *spare;
  }
  void* memory_ = nullptr;
};

void wait_for(cudaStream_t stream) {
  const auto deadline = std::chrono::steady_clock::now() + kLongest;
  for (;;) {
    const cudaError_t status = cudaStreamQuery(stream);
    if (status == cudaSuccess) return;
    if (status != cudaErrorNotReady) check(status, "work on a stream of a test");
    if (std::chrono::steady_clock::now() > deadline)
      throw std::runtime_error("the work on a stream of a test did not end within a minute");
    std::this_thread::yield();
  }
}

/// Calls `row(offset in elements, index)` for each innermost row of a view, in order.
template <typename Row>
void for_rows(const ConstTensorView& view, Row&& row) {
  const int outer = std::max(view.rank - 1, 0);
  std::array<std::int64_t, TensorView::kMaxRank> at{};
  std::int64_t rows = 1;
  for (int d = 0; d < outer; ++d) rows *= view.shape[d];
  for (std::int64_t i = 0; i < rows; ++i) {
    std::int64_t offset = 0;
    for (int d = 0; d < outer; ++d) offset += at[d] * view.strides[d];
    row(offset, i);
    for (int d = outer; d-- > 0;) {
      if (++at[d] < view.shape[d]) break;
      at[d] = 0;
    }
  }
}

/// A contiguous copy on the host of a view whose elements start at `data`.
Tensor gathered(const ConstTensorView& view, const std::byte* data) {
  TensorView contiguous(nullptr, view);
  std::int64_t stride = 1;
  for (int d = view.rank; d-- > 0;) {
    contiguous.strides[d] = stride;
    stride *= view.shape[d];
  }
  contiguous.device = {};
  const auto memory = std::make_shared<std::vector<std::uint64_t>>(view.bytes() / 8 + 1);
  contiguous.data = memory->data();
  if (view.bytes() == 0) return {contiguous, memory};
  const std::size_t element = size_of(view.dtype);
  const std::int64_t columns = view.rank == 0 ? 1 : view.shape[view.rank - 1];
  const std::int64_t step = view.rank == 0 ? 1 : view.strides[view.rank - 1];
  auto* out = reinterpret_cast<std::byte*>(memory->data());
  for_rows(view, [&](std::int64_t offset, std::int64_t) {
    const std::byte* const from = data + offset * static_cast<std::int64_t>(element);
    if (step == 1) {
      std::memcpy(out, from, columns * element);
    } else {
      for (std::int64_t c = 0; c < columns; ++c)
        std::memcpy(out + c * element, from + c * step * static_cast<std::int64_t>(element),
                    element);
    }
    out += columns * element;
  });
  return {contiguous, memory};
}

/// Bytes from the first element of a view to the end of its last one.
std::size_t extent_of(const TensorView& view) {
  if (view.bytes() == 0) return 0;
  std::int64_t last = 0;
  for (int d = 0; d < view.rank; ++d) last += (view.shape[d] - 1) * view.strides[d];
  return (last + 1) * size_of(view.dtype);
}

std::shared_ptr<CUstream_st> take_stream(const memory::Device& gpu) {
  return memory::cuda::take_stream(gpu, memory::cuda::StreamPriority::lowest);
}

}  // namespace

int gpu_count() {
  static const int count = [] {
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    int found = 0;
    if (cudaGetDeviceCount(&found) == cudaSuccess) return found;
    (void)cudaGetLastError();
    return 0;
  }();
  return count;
}

std::string why_no_gpu() {
  return gpu_count() > 0 ? "" : "no GPU: " + memory::describe_gpus().unavailable;
}

struct DeviceTensors::Memory {
  explicit Memory(const memory::Device& gpu)
      : device(gpu.device), pooled(take_stream(gpu)), stream(pooled.get()) {}
  ~Memory() {
    for (void* pointer : retired) (void)cudaFreeAsync(pointer, stream);
    (void)cudaStreamSynchronize(stream);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  /// Selects the GPU for the calling thread. The world may have ended.
  void activate() const { check(cudaSetDevice(device), "GPU of a test"); }

  const int device;
  const std::shared_ptr<CUstream_st> pooled;
  const cudaStream_t stream;
  Bounce bounce;
  std::vector<cudaStream_t> followed;
  std::vector<std::shared_ptr<CUstream_st>> owned;
  std::mutex mutex;  // tensors may end on any thread
  std::vector<void*> retired;
};

DeviceTensors::DeviceTensors(const World& world)
    : gpu_(*state_of(world).memory().cuda()), memory_(std::make_shared<Memory>(gpu_)) {}

DeviceTensors::~DeviceTensors() {
  try {
    settle();
  } catch (const std::exception&) {  // the test has failed, or fails at its next call
  }
  memory_->owned.clear();
}

Device DeviceTensors::device() const {
  return {DeviceKind::cuda, memory_->device};
}

void DeviceTensors::settle() {
  memory_->activate();
  for (const cudaStream_t stream : memory_->followed) wait_for(stream);
  std::vector<void*> retired;
  {
    const std::lock_guard lock(memory_->mutex);
    retired.swap(memory_->retired);
  }
  for (void* pointer : retired) check(cudaFreeAsync(pointer, memory_->stream), "memory of a test");
  wait_for(memory_->stream);
}

void DeviceTensors::follow(void* stream) {
  memory_->followed.push_back(static_cast<cudaStream_t>(stream));
}

void DeviceTensors::unfollow(void* stream) {
  const auto last = static_cast<cudaStream_t>(stream);
  // Erased even if a wait throws, because the caller may destroy the stream afterwards.
  std::erase(memory_->followed, last);
  wait_for(last);
  settle();
}

CUstream_st* DeviceTensors::new_stream() {
  memory_->owned.push_back(take_stream(gpu_));
  CUstream_st* const stream = memory_->owned.back().get();
  follow(stream);
  return stream;
}

Tensor DeviceTensors::empty(DataType dtype, std::initializer_list<std::int64_t> shape) {
  memory_->activate();
  TensorView view(nullptr, dtype, shape);
  view.device = device();
  const std::size_t bytes = std::max<std::size_t>(view.bytes(), 16);
  check(cudaMallocAsync(&view.data, bytes, memory_->stream), "memory of a test");
  const std::shared_ptr<void> owner(view.data, [memory = memory_](void* pointer) {
    const std::lock_guard lock(memory->mutex);
    memory->retired.push_back(pointer);
  });
  check(cudaMemsetAsync(view.data, 0xff, bytes, memory_->stream), "memory of a test");
  wait_for(memory_->stream);
  return {view, owner};
}

Tensor DeviceTensors::upload(const ConstTensorView& host) {
  const Tensor values = gathered(host, static_cast<const std::byte*>(host.data));
  const Tensor flat = empty(DataType::uint8, {static_cast<std::int64_t>(values.bytes())});
  TensorView view = values;
  view.data = flat.data;
  view.device = device();
  const auto* from = static_cast<const std::byte*>(values.data);
  for (std::size_t at = 0; at < values.bytes(); at += kBounceBytes) {
    const std::size_t bytes = std::min(kBounceBytes, values.bytes() - at);
    std::memcpy(memory_->bounce.get(), from + at, bytes);
    check(cudaMemcpyAsync(static_cast<std::byte*>(view.data) + at, memory_->bounce.get(), bytes,
                          cudaMemcpyHostToDevice, memory_->stream),
          "upload of a test");
    wait_for(memory_->stream);
  }
  return {view, flat.owner};
}

void DeviceTensors::write(const TensorView& tensor, const ConstTensorView& host) {
  const bool same =
      tensor.shape == host.shape && tensor.rank == host.rank && tensor.dtype == host.dtype;
  const bool rows = tensor.rank > 0 && tensor.strides[tensor.rank - 1] == 1;
  if (!same || !(rows || tensor.contiguous()))
    throw std::runtime_error("write: " + tensor.describe() + " from " + host.describe());
  settle();
  const Tensor values = gathered(host, static_cast<const std::byte*>(host.data));
  if (values.bytes() == 0) return;
  const auto* const from = static_cast<const std::byte*>(values.data);
  auto* const to = static_cast<std::byte*>(tensor.data);
  const auto copy = [&](std::size_t target, std::size_t source, std::size_t bytes) {
    for (std::size_t at = 0; at < bytes; at += kBounceBytes) {
      const std::size_t count = std::min(kBounceBytes, bytes - at);
      std::memcpy(memory_->bounce.get(), from + source + at, count);
      check(cudaMemcpyAsync(to + target + at, memory_->bounce.get(), count, cudaMemcpyHostToDevice,
                            memory_->stream),
            "write of a test");
      wait_for(memory_->stream);
    }
  };
  if (tensor.contiguous()) return copy(0, 0, values.bytes());
  const std::size_t width = tensor.shape[tensor.rank - 1] * size_of(tensor.dtype);
  for_rows(tensor, [&](std::int64_t offset, std::int64_t row) {
    copy(offset * size_of(tensor.dtype), row * width, width);
  });
}

Tensor DeviceTensors::download(const TensorView& tensor) {
  if (!(tensor.device == device()))
    throw std::runtime_error("download: " + tensor.describe() + " is elsewhere");
  settle();
  const std::size_t extent = extent_of(tensor);
  std::vector<std::byte> bytes(extent);
  for (std::size_t at = 0; at < extent; at += kBounceBytes) {
    const std::size_t count = std::min(kBounceBytes, extent - at);
    check(cudaMemcpyAsync(memory_->bounce.get(), static_cast<const std::byte*>(tensor.data) + at,
                          count, cudaMemcpyDeviceToHost, memory_->stream),
          "download of a test");
    wait_for(memory_->stream);
    std::memcpy(bytes.data() + at, memory_->bounce.get(), count);
  }
  return gathered(tensor, bytes.data());
}

void DeviceTensors::poison(const TensorView& tensor) {
  settle();
  if (tensor.bytes() == 0) return;
  const std::size_t element = size_of(tensor.dtype);
  const bool rows = tensor.rank == 2 && tensor.strides[1] == 1;
  if (!rows && tensor.rank != 1) throw std::runtime_error("poison: " + tensor.describe());
  const std::size_t width = (rows ? tensor.shape[1] : 1) * element;
  const std::size_t pitch = std::max<std::size_t>(tensor.strides[0] * element, width);
  check(cudaMemset2DAsync(tensor.data, pitch, 0xff, width, tensor.shape[0], memory_->stream),
        "poison of a test");
  wait_for(memory_->stream);
}

}  // namespace shoal::test

#else  // without CUDA there are no tests that use the rest

namespace shoal::test {

int gpu_count() {
  return 0;
}
std::string why_no_gpu() {
  return "no GPU: this build has no CUDA";
}

}  // namespace shoal::test

#endif
