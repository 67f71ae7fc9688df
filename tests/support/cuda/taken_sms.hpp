// SPDX-License-Identifier: Apache-2.0
// taken_sms.hpp: a load on all GPUs, for tests of kernels that wait for each other.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <cstddef>
#include <stdexcept>
#include <thread>
#include <vector>

namespace shoal::test {

/// Takes the SMs of all GPUs away from the PEs, again and again: fills large arrays on streams of
/// its own.
class TakenSms {
 public:
  explicit TakenSms(int gpus) {
    arrays_.resize(static_cast<std::size_t>(gpus));
    for (int gpu = 0; gpu < gpus; ++gpu) {
      check(cudaSetDevice(gpu));
      check(cudaMalloc(&arrays_[gpu].memory, kBytes));
      check(cudaStreamCreateWithFlags(&arrays_[gpu].stream, cudaStreamNonBlocking));
    }
    for (Array& array : arrays_)
      threads_.emplace_back([this, &array, gpu = static_cast<int>(&array - arrays_.data())] {
        check(cudaSetDevice(gpu));
        while (!ended_) {
          for (int i = 0; i < kInFlight; ++i)
            check(cudaMemsetAsync(array.memory, i, kBytes, array.stream));
          cudaError_t status = cudaErrorNotReady;
          while ((status = cudaStreamQuery(array.stream)) == cudaErrorNotReady)
            std::this_thread::yield();
          check(status);
        }
      });
  }
  /// Destroy this only when no kernel waits.
  ~TakenSms() {
    ended_ = true;
    for (std::thread& thread : threads_) thread.join();
    for (Array& array : arrays_) {
      (void)cudaStreamDestroy(array.stream);
      (void)cudaFree(array.memory);
    }
  }
  TakenSms(const TakenSms&) = delete;
  TakenSms& operator=(const TakenSms&) = delete;

 private:
  static constexpr std::size_t kBytes = std::size_t{512} << 20;
  static constexpr int kInFlight = 8;
  struct Array {
    void* memory = nullptr;
    cudaStream_t stream = nullptr;
  };
  static void check(cudaError_t status) {
    if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
  }

  std::vector<Array> arrays_;
  std::atomic<bool> ended_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace shoal::test
