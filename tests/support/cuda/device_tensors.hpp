// SPDX-License-Identifier: Apache-2.0
// device_tensors.hpp: tensors in the memory of a PE's GPU for tests: filled from the host, fetched
// to the host, poisoned so that a byte that was not written shows.
//
// Other PEs can share the GPU and have kernels on it that wait for this PE. Nothing here therefore
// synchronizes a device or uses the default stream, waits have a deadline, and memory is freed only
// when no stream of this PE can still use it.
#pragma once

#include <initializer_list>
#include <memory>
#include <string>

#include "shoal/tensor.hpp"
#include "shoal/world.hpp"

struct CUstream_st;
namespace shoal::memory {
class Device;
}

namespace shoal::test {

/// The reason why tests that need a GPU cannot run here; empty if they can. Sets the driver's
/// environment variables before it starts: each stream needs a separate hardware queue, and kernels
/// must be loaded before any of them waits.
std::string why_no_gpu();
/// GPUs of this machine; 0 without a driver.
int gpu_count();

#define SHOAL_SKIP_WITHOUT_GPU() \
  if (const std::string why = shoal::test::why_no_gpu(); !why.empty()) GTEST_SKIP() << why

/// The GPU of one PE. Only the PE's thread uses it. Construct it before any kernel of this world
/// waits on the GPU.
class DeviceTensors {
 public:
  explicit DeviceTensors(const World& world);
  ~DeviceTensors();
  DeviceTensors(const DeviceTensors&) = delete;
  DeviceTensors& operator=(const DeviceTensors&) = delete;

  Device device() const;

  /// A contiguous tensor with the values of `host`, which may be strided.
  Tensor upload(const ConstTensorView& host);
  /// A contiguous tensor, every byte 0xff.
  Tensor empty(DataType dtype, std::initializer_list<std::int64_t> shape);

  // These first wait for the work of all followed streams.

  /// A contiguous tensor on the host with the values of `tensor`, whose strides are not negative.
  Tensor download(const TensorView& tensor);
  /// Copies `host` to `tensor`, of the same shape. Rows of both are contiguous, with any strides
  /// that are not negative.
  void write(const TensorView& tensor, const ConstTensorView& host);
  /// Sets every byte of `tensor` to 0xff. It has one or two dimensions and contiguous rows.
  void poison(const TensorView& tensor);
  /// Waits and frees the memory of destroyed tensors. Throws std::runtime_error after a minute.
  void settle();

  /// Registers `stream` as one that uses this PE's tensors. Call unfollow, which waits for it,
  /// before the stream is destroyed.
  void follow(void* stream);
  void unfollow(void* stream);
  /// A stream that is followed and lives as long as this.
  CUstream_st* new_stream();

 private:
  struct Memory;
  const memory::Device& gpu_;
  std::shared_ptr<Memory> memory_;
};

}  // namespace shoal::test
