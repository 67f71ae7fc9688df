// SPDX-License-Identifier: Apache-2.0
// relaxed_capture.hpp: a thread that works on streams of its own while graphs are captured.
#pragma once

#include <cuda_runtime.h>

#include "ep/cuda/group/resources.hpp"
#include "memory/device.hpp"

namespace shoal::ep::cuda {

/// While it lives, this thread may use and await streams that take no part in a capture, whichever
/// thread captures. Makes the GPU's context current first: on a thread that has none, every call of
/// the CUDA runtime, also that of the capture mode, creates a context on GPU 0.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const memory::Device& gpu) {
    gpu.activate();
    check(cudaThreadExchangeStreamCaptureMode(&mode_), "capture mode of this thread");
  }
  /// Needs the GPU's context to be current. Ignores errors, because a deleter of memory can only
  /// try.
  RelaxedCapture() noexcept { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;
  ~RelaxedCapture() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace shoal::ep::cuda
