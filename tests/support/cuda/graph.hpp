// SPDX-License-Identifier: Apache-2.0
// graph.hpp: captures calls in a CUDA graph, for tests that replay them.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <functional>
#include <stdexcept>

namespace shoal::test {

/// Captures the work that `calls` queues on `stream` as a graph. Other threads continue meanwhile:
/// they may be PEs that share the GPU, except in the global mode. If `calls` throws, ends the
/// capture and rethrows.
///
/// Loads the graph, for which the driver may wait until the kernels on the GPU have ended. PEs that
/// share a GPU meet (sync) after that and before a replay of any of them, or a PE waits for one
/// whose kernels wait for it.
class Graph {
 public:
  Graph(cudaStream_t stream, const std::function<void()>& calls,
        cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal)
      : stream_(stream) {
    check(cudaStreamBeginCapture(stream, mode));
    try {
      calls();
    } catch (...) {
      if (cudaStreamEndCapture(stream, &graph_) == cudaSuccess && graph_ != nullptr)
        (void)cudaGraphDestroy(graph_);
      (void)cudaGetLastError();
      throw;
    }
    check(cudaStreamEndCapture(stream, &graph_));
    check(cudaGraphInstantiate(&executable_, graph_, 0));
    upload(stream);
  }
  ~Graph() {
    if (executable_ != nullptr) (void)cudaGraphExecDestroy(executable_);
    if (graph_ != nullptr) (void)cudaGraphDestroy(graph_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  std::size_t nodes() const {
    std::size_t count = 0;
    check(cudaGraphGetNodes(graph_, nullptr, &count));
    return count;
  }
  /// For a replay on another stream than the captured one while other PEs of the GPU wait.
  void upload(cudaStream_t on) const {
    check(cudaGraphUpload(executable_, on));
    check(cudaStreamSynchronize(on));
  }
  void replay() const { replay(stream_); }
  void replay(cudaStream_t on) const { check(cudaGraphLaunch(executable_, on)); }

 private:
  static void check(cudaError_t status) {
    if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
  }

  cudaStream_t stream_;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

}  // namespace shoal::test
