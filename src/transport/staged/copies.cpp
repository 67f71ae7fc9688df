// SPDX-License-Identifier: Apache-2.0
#include "transport/staged/copies.hpp"

#include <cstring>

#include "base/check.hpp"
#include "base/log.hpp"

namespace shoal::transport::staged {

void Copies::to_chunk(std::byte* chunk, const Elements& source) const {
  rows({chunk, source.element, source.count, source.element}, source);
}

void Copies::from_chunk(const Elements& target, const std::byte* chunk) const {
  rows(target, {const_cast<std::byte*>(chunk), target.element, target.count, target.element});
}

void Copies::rows(const Elements& target, const Elements& source) const {
  if (target.element == 0 || target.count == 0) return;
  if (!on_gpu(source.start) && !on_gpu(target.start)) {
    for (std::size_t i = 0; i < target.count; ++i)
      std::memcpy(target.start + i * target.pitch, source.start + i * source.pitch, target.element);
    return;
  }
  memory::cuda::check(driver_, start_copy(driver_, target, source, device_.stream),
                      fmt::format("SHOAL-N361: copy of {} x {} bytes between the GPU and staging",
                                  target.count, target.element));
  device_.synchronize("a copy between the GPU and staging");
}

bool Copies::on_gpu(const void* pointer) const {
  device_.activate();
  return memory::cuda::on_gpu(driver_, pointer);
}

void Copies::pin(void* memory, std::size_t bytes) {
  device_.activate();
  const CUresult result = driver_.host_register(memory, bytes, CU_MEMHOSTREGISTER_PORTABLE);
  if (result == CUDA_SUCCESS) {
    pinned_ = memory;
  } else {
    log::info("{} bytes of staging are not pinned, copies will be slower: {}", bytes,
              memory::cuda::describe(driver_, result));
  }
}

void Copies::unpin() noexcept {
  if (pinned_ != nullptr && driver_.set_current(device_.context) == CUDA_SUCCESS)
    driver_.host_unregister(pinned_);
  pinned_ = nullptr;
}

}  // namespace shoal::transport::staged
