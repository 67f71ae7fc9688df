// SPDX-License-Identifier: Apache-2.0
// captured_memory.hpp: the memory that CUDA graphs of a group's calls write to.
//
// A graph can be replayed long after its calls returned, and a failed capture leaves no graph. The
// memory of captured calls is therefore kept by graph, until CUDA destroys the last instance of it:
// each graph gets a user object whose destructor says so. That destructor runs on a thread of CUDA
// that may call neither CUDA nor this group, so it sets a flag, which the next call looks at.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

namespace shoal::ep::cuda {

class ArrayPool;

/// One call at a time, as CudaGroup.
class CapturedMemory {
 public:
  /// Starts a call on a stream. Returns the number of the graph that captures it, which no other
  /// graph of the process has; 0 where none does. Throws Error{invalid_argument} where the capture
  /// of the stream has failed.
  std::uint64_t enter(cudaStream_t on);
  // These are for the last call, which was captured.

  /// A block that is kept until the graph is gone. Blocks that earlier calls of this capture have
  /// taken and that nothing else refers to come first: the nodes of a graph use them in turn.
  std::shared_ptr<void> take(ArrayPool& pool);
  /// Keeps `block` until the graph is gone.
  void keep(const std::shared_ptr<void>& block);

  /// Releases the blocks of graphs that are gone, and calls `gone` with the number of each.
  void release_gone(const std::function<void(std::uint64_t)>& gone);

 private:
  struct Graph {
    std::uint64_t number;
    unsigned long long capture;  ///< CUDA's number
    std::shared_ptr<std::atomic<bool>> gone;
    struct Kept {
      std::shared_ptr<void> memory;
      const ArrayPool* taken_from;  ///< nullptr: by a call outside this capture
    };
    std::map<const void*, Kept> blocks;
  };
  static Graph make_graph(unsigned long long capture, cudaGraph_t graph);

  std::vector<Graph> graphs_;  ///< the last one is that of the last call
};

}  // namespace shoal::ep::cuda
