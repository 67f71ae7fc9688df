// SPDX-License-Identifier: Apache-2.0
// device_tensors.hpp: tensors in the memory of a PE's GPU for tests: filled from the host, fetched
// to the host, poisoned so that a byte that was not written shows.
//
// Other PEs can share the GPU and have kernels on it that wait for this PE. So nothing here
// synchronises a device or uses the default stream, waits poll with a deadline, and memory is freed
// only when no stream of this PE can still use it.
#pragma once

#include <initializer_list>
#include <memory>
#include <string>

#include "shoal/tensor.hpp"
#include "shoal/world.hpp"

struct CUstream_st;

namespace shoal::test {

/// Why tests that need a GPU cannot run here; empty where they can. Sets what the driver must know
/// before it starts: each stream needs a hardware queue of its own, and kernels are loaded before
/// anything waits.
std::string why_no_gpu();
/// GPUs of this machine; 0 without a driver.
int gpu_count();

#define SHOAL_SKIP_WITHOUT_GPU() \
  if (const std::string why = shoal::test::why_no_gpu(); !why.empty()) GTEST_SKIP() << why

/// The GPU of one PE. Used by the PE's thread alone; made before anything of this world waits on
/// the GPU.
class DeviceTensors {
 public:
  explicit DeviceTensors(const World& world);
  ~DeviceTensors();
  DeviceTensors(const DeviceTensors&) = delete;
  DeviceTensors& operator=(const DeviceTensors&) = delete;

  Device device() const;

  /// A contiguous tensor with the values of `host`, which may be strided.
  Tensor upload(const TensorView& host);
  /// A contiguous tensor, every byte 0xff.
  Tensor empty(DataType dtype, std::initializer_list<std::int64_t> shape);

  // These wait for the work of all followed streams first.

  /// A contiguous tensor on the host with the values of `tensor`, whose strides are not negative.
  Tensor download(const TensorView& tensor);
  /// Values of `host` for `tensor`, of the same shape; rows of both contiguous, their strides any
  /// that are not negative.
  void write(const TensorView& tensor, const TensorView& host);
  /// Every byte of `tensor` 0xff: of one or two dimensions, with contiguous rows.
  void poison(const TensorView& tensor);
  /// Waits, throws std::runtime_error when it takes more than a minute, and frees what tensors have
  /// left behind.
  void settle();

  /// `stream` runs work on this PE's tensors. unfollow waits for it: before the stream is
  /// destroyed.
  void follow(void* stream);
  void unfollow(void* stream);
  /// A stream that is followed and lives as long as this.
  CUstream_st* new_stream();

 private:
  struct Memory;
  std::shared_ptr<Memory> memory_;
};

}  // namespace shoal::test
