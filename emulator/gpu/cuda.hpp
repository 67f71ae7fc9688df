// SPDX-License-Identifier: Apache-2.0
// cuda.hpp: errors of CUDA as exceptions, the current GPU of a thread, and streams.
#pragma once

#include <cuda_runtime_api.h>

#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

namespace shoal::emulator::gpu {

inline void check(cudaError_t result, const char* what) {
  if (result != cudaSuccess)
    throw std::runtime_error(std::string("emulated NIC on a GPU: ") + what + ": " +
                             cudaGetErrorString(result));
}

/// Makes a GPU the thread's own for a while.
class OnDevice {
 public:
  explicit OnDevice(int device) {
    check(cudaGetDevice(&before_), "finding the current GPU");
    check(cudaSetDevice(device), "choosing its GPU");
  }
  ~OnDevice() { cudaSetDevice(before_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int before_ = 0;
};

/// A stream for a kernel that runs beside that of a NIC. Streams are kept for the next user: where
/// they are destroyed and made anew, some drivers put two on one hardware queue, and one of them
/// would wait for a NIC to end. CUDA_DEVICE_MAX_CONNECTIONS must be large enough, such as 32.
class KeptStream {
 public:
  explicit KeptStream(int device) : device_(device) {
    const std::lock_guard lock(mutex());
    std::vector<cudaStream_t>& free = kept()[device];
    if (free.empty()) {
      const OnDevice on(device);
      int least = 0, greatest = 0;
      check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "finding priorities");
      check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest),
            "making a stream");
      return;
    }
    stream_ = free.back();
    free.pop_back();
  }
  ~KeptStream() {
    const std::lock_guard lock(mutex());
    if (stream_ != nullptr) kept()[device_].push_back(stream_);
  }
  KeptStream(const KeptStream&) = delete;
  KeptStream& operator=(const KeptStream&) = delete;

  cudaStream_t get() const { return stream_; }
  /// Its kernel does not end: no other user gets it.
  void abandon() { stream_ = nullptr; }

 private:
  static std::mutex& mutex() {
    static std::mutex mutex;
    return mutex;
  }
  static std::map<int, std::vector<cudaStream_t>>& kept() {
    static auto* const streams = new std::map<int, std::vector<cudaStream_t>>;
    return *streams;
  }

  int device_;
  cudaStream_t stream_ = nullptr;
};

}  // namespace shoal::emulator::gpu
