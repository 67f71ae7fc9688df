// SPDX-License-Identifier: Apache-2.0
#include "ep/cuda/group/captured_memory.hpp"

#include <algorithm>
#include <utility>

#include "base/check.hpp"
#include "ep/cuda/group/resources.hpp"

namespace shoal::ep::cuda {
namespace {

constexpr const char* kWhat = "memory of captured calls";
using Flag = std::shared_ptr<std::atomic<bool>>;

}  // namespace

CapturedMemory::Graph CapturedMemory::make_graph(unsigned long long capture, cudaGraph_t graph) {
  static std::atomic<std::uint64_t> last = 0;
  Graph made{++last, capture, std::make_shared<std::atomic<bool>>(false), {}};
  auto owned = std::make_unique<Flag>(made.gone);
  cudaUserObject_t object = nullptr;
  const auto set = [](void* flag) {
    const std::unique_ptr<Flag> set_now(static_cast<Flag*>(flag));
    **set_now = true;
  };
  Flag* const flag = owned.release();  // the object's from here on
  const cudaError_t created =
      cudaUserObjectCreate(&object, flag, set, 1, cudaUserObjectNoDestructorSync);
  if (created != cudaSuccess) owned.reset(flag);
  check(created, kWhat);
  const cudaError_t retained = cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove);
  if (retained != cudaSuccess) (void)cudaUserObjectRelease(object, 1);
  check(retained, kWhat);
  return made;
}

std::uint64_t CapturedMemory::enter(cudaStream_t on) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(on, &status), "Launch.stream");
  if (status == cudaStreamCaptureStatusNone) return 0;
  require(status == cudaStreamCaptureStatusActive, Code::invalid_argument,
          "SHOAL-N535: Launch.stream: the capture of this stream has failed; end it "
          "(cudaStreamEndCapture)");
  unsigned long long capture = 0;
  cudaGraph_t graph = nullptr;
  check(cudaStreamGetCaptureInfo(on, &status, &capture, &graph), "Launch.stream");
  const auto known = std::find_if(graphs_.begin(), graphs_.end(),
                                  [&](const Graph& each) { return each.capture == capture; });
  if (known == graphs_.end())
    graphs_.push_back(make_graph(capture, graph));
  else
    std::rotate(known, std::next(known), graphs_.end());
  return graphs_.back().number;
}

std::shared_ptr<void> CapturedMemory::take(ArrayPool& pool) {
  auto& blocks = graphs_.back().blocks;
  for (const auto& [address, block] : blocks)
    if (block.taken_from == &pool && block.memory.use_count() == 1) return block.memory;
  auto memory = pool.take();
  blocks.insert_or_assign(memory.get(), Graph::Kept{memory, &pool});
  return memory;
}

void CapturedMemory::keep(const std::shared_ptr<void>& block) {
  graphs_.back().blocks.try_emplace(block.get(), Graph::Kept{block, nullptr});
}

void CapturedMemory::release_gone(const std::function<void(std::uint64_t)>& gone) {
  std::erase_if(graphs_, [&](const Graph& graph) {
    if (!*graph.gone) return false;
    gone(graph.number);
    return true;
  });
}

}  // namespace shoal::ep::cuda
