// SPDX-License-Identifier: Apache-2.0
// graph.hpp: captures calls in a CUDA graph, for tests that replay them.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <functional>
#include <stdexcept>

namespace shoal::test {

/// Captures the work that `calls` queues on `stream` as a graph. Other threads continue meanwhile:
/// they may be PEs that share the GPU. If `calls` throws, ends the capture and rethrows.
class Graph {
 public:
  Graph(cudaStream_t stream, const std::function<void()>& calls) : stream_(stream) {
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
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
  void replay() const { check(cudaGraphLaunch(executable_, stream_)); }

 private:
  static void check(cudaError_t status) {
    if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
  }

  cudaStream_t stream_;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

}  // namespace shoal::test
