// SPDX-License-Identifier: Apache-2.0
#include "transport/cuda_p2p/heap_copies.hpp"

#include <algorithm>

#include "base/check.hpp"

namespace shoal::transport {

HeapCopies::HeapCopies(std::shared_ptr<memory::DeviceHeap> heap)
    : driver_(memory::cuda::driver()),
      kernels_(word_kernels()),
      heap_(std::move(heap)),
      device_(heap_->device()) {
  device_.activate();
  void* words = nullptr;
  memory::cuda::check(driver_,
                      driver_.host_alloc(&words, kWords * sizeof *words_, CU_MEMHOSTALLOC_PORTABLE),
                      "SHOAL-N300: cannot pin host memory");
  words_ = static_cast<std::uint64_t*>(words);
  std::fill_n(words_, kWords, 0);
}

HeapCopies::~HeapCopies() {
  if (driver_.set_current(device_.context) == CUDA_SUCCESS) driver_.host_free(words_);
}

void HeapCopies::copy(CUstream stream, void* target, const void* source, std::size_t bytes,
                      const char* what, Pe pe) const {
  if (bytes == 0 || target == source) return;
  memory::cuda::check(
      driver_,
      driver_.copy(memory::cuda::address(target), memory::cuda::address(source), bytes, stream),
      [&] { return fmt::format("SHOAL-N301: {} of {} bytes with PE {}", what, bytes, pe); });
}

void HeapCopies::started(const char* failure, const char* what) const {
  require(failure == nullptr, Code::system, "SHOAL-N301: {} failed to start on GPU {}: {}", what,
          device_.device, failure == nullptr ? "" : failure);
}

}  // namespace shoal::transport
